package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/patience"
)

// conversation is what one run says to the API. Its errors name hosts only: a URL may carry a key.
type conversation struct {
	config
	operator *operator
	task     *operators.Task
	first    *url.URL    // with the parameters that all pages have
	keys     url.Values  // those of them that are secrets
	headers  http.Header // of requests to the API
	token    token       // of oauth2
	pace     patience.Pace
}

// Of requests that the API does not answer for now.
const (
	mostTries   = 6                // of one request
	longestWait = 10 * time.Minute // within an attempt, whatever the answer asks for
)

func (o *operator) converse(t *operators.Task, c config) (*conversation, error) {
	talk := &conversation{config: c, operator: o, task: t, keys: url.Values{}, headers: http.Header{}}
	var err error
	if talk.first, err = url.Parse(operators.ExpandURL(c.URL, t.Partition)); err != nil {
		return nil, operators.Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}
	if err := talk.setQuery(); err != nil {
		return nil, operators.Permanent(err)
	}

	talk.headers.Set("User-Agent", "dagctl")
	talk.headers.Set("Accept", "application/json")
	if err := operators.SetHeaders(talk.headers, talk.first, c.Headers, t.SecretTo); err != nil {
		return nil, err
	}
	return talk, operators.Permanent(talk.authorize())
}

// reveal returns the text of a field that is text or {secret: NAME}, for a request to a URL.
func (talk *conversation) reveal(field any, at string, to *url.URL) (text string, isSecret bool, err error) {
	text, sealed, isSecret, err := talk.task.SecretFor(field, at)
	if err == nil && isSecret {
		text, err = sealed.For(to)
	}
	return text, isSecret, err
}

// setQuery adds the parameters of the config to the first URL. A value stays text: numbers are written as in the file.
func (talk *conversation) setQuery() error {
	query := talk.first.Query()
	for name, text := range talk.Query {
		field, err := literal.Decode(text)
		if err != nil {
			return fault.New(fault.Invalid, "config.query.%s: %w", name, err)
		}
		values, several := field.([]any)
		if !several {
			values = []any{field}
		}

		query.Del(name)
		for _, value := range values {
			text, isSecret := operators.ExpandText(fmt.Sprint(value), talk.task.Partition), false
			if _, named := value.(map[string]any); named {
				if text, isSecret, err = talk.reveal(value, "config.query."+name, talk.first); err != nil {
					return err
				}
			}
			query.Add(name, text)
			if isSecret {
				talk.keys.Add(name, text)
			}
		}
	}
	talk.first.RawQuery = query.Encode()
	return nil
}

// authorize sets the header that says who sends the requests, unless a token has to be asked for.
func (talk *conversation) authorize() error {
	switch a := talk.Auth; a.Kind {
	case bearer:
		text, _, err := talk.reveal(a.Token, "config.auth.token", talk.first)
		talk.headers.Set("Authorization", "Bearer "+text)
		return err
	case basic:
		user, _, err := talk.reveal(a.Username, "config.auth.username", talk.first)
		password, _, err2 := talk.reveal(a.Password, "config.auth.password", talk.first)
		talk.headers.Set("Authorization", basicAuth(user, password))
		return errors.Join(err, err2)
	case oauth2:
		return talk.prepareToken()
	}
	return nil
}

// answer is an answer of the API, whose body is in a file.
type answer struct {
	url    *url.URL // after redirects
	header http.Header
	bytes  int64
	empty  bool // 204: it has no body
}

// get asks for a URL until it is answered, and writes the body, of at most limit bytes, to a file. A token that the API
// refuses is renewed once.
func (talk *conversation) get(ctx context.Context, u *url.URL, file string, limit int64) (a answer, err error) {
	once := func() (err error) {
		if err = talk.pace.Turn(ctx, talk.Rate); err == nil {
			a, err = talk.ask(ctx, u, file, limit)
		}
		return err
	}

	for renewed := false; ; renewed = true {
		if err = talk.haveToken(ctx); err == nil {
			err = talk.tries().Do(ctx, once)
		}
		if talk.Auth.Kind != oauth2 || !errors.Is(err, errUnauthorized) || renewed {
			return a, err
		}
		talk.token.text = ""
	}
}

// errUnauthorized is the cause of the error of an answer 401.
var errUnauthorized = errors.New("the credentials were refused")

// ask asks once.
func (talk *conversation) ask(ctx context.Context, u *url.URL, file string, limit int64) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return answer{}, operators.Permanent(fault.New(fault.Invalid, "%s: the address of a page is not a URL", u.Host))
	}
	request.Header = talk.headers.Clone()
	response, err := talk.operator.client.Do(request)
	if err != nil {
		return answer{}, patience.Unanswered(ctx, "GET "+u.Host, err)
	}
	defer response.Body.Close()

	switch code := response.StatusCode; {
	case code == http.StatusUnauthorized:
		return answer{}, operators.Permanent(fault.New(fault.Unavailable, "GET %s: the server answered %s: %w", u.Host,
			response.Status, errUnauthorized))
	case patience.Passes(code):
		return answer{}, patience.NewLater(operators.StatusError(response), patience.AskedToWait(response, time.Now()))
	}
	if err := operators.StatusError(response); err != nil {
		return answer{}, err
	}

	a := answer{url: response.Request.URL, header: response.Header,
		empty: response.StatusCode == http.StatusNoContent}
	a.bytes, err = save(file, io.LimitReader(response.Body, limit+1))
	var disk *fs.PathError
	switch {
	case ctx.Err() != nil:
		return a, context.Cause(ctx)
	case errors.As(err, &disk):
		return a, fmt.Errorf("keep the answer of %s: %w", u.Host, disk.Err)
	case err != nil:
		return a, patience.NewLater(fmt.Errorf("GET %s: read the answer: %w", u.Host, err), 0)
	case a.bytes > limit:
		return a, operators.Permanent(fault.New(fault.TooLarge, "the answers of %s have more than %d bytes", u.Host,
			talk.MaxBytes).WithHint("raise config.max_bytes"))
	}
	return a, nil
}

// save writes a body to a file, in place of what an earlier try wrote.
func save(file string, body io.Reader) (int64, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, body)
	return n, errors.Join(err, f.Close())
}

// tries returns how often a request is sent, and with which waits.
func (talk *conversation) tries() patience.Tries {
	return patience.Tries{Most: mostTries, Longest: longestWait,
		Hint: "let `retry` wait as long before the next attempt, or lower config.requests_per_second",
		Tell: func(text string) { talk.task.Progress(0, text) }}
}

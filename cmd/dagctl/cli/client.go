package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// Client calls the HTTP API of a target.
type Client struct {
	Target Target
	http   *http.Client
	header http.Header
	warn   func(until time.Time)                         // told when the token ends; nil: nobody is told
	dated  func(date time.Time, before, after time.Time) // told the date of each answer; nil: nobody is told
	waits  bool                                          // sends a call again that the server answered with 429

	explains bool // says which name was meant where there is none: see explain
}

// Connect returns a client of the target. Where that is not the one that commands talk to by default, it prints which
// one it is, so that nobody has to guess where a command did what it did.
func (c *CLI) Connect() (*Client, error) {
	t, err := c.ResolveTarget()
	if err != nil {
		return nil, err
	}
	if (c.Target != "" || c.Getenv("DAGCTL_URL") != "") && c.Output != "json" {
		fmt.Fprintln(c.Err, c.Style(c.Err).Dim(fmt.Sprintf("Target %s · %s", t.Name, t.URL)))
	}
	client := NewClient(t)
	client.explains, client.dated = true, c.setClock
	var once sync.Once
	if strings.HasPrefix(t.Token, "dagctl_user_") { // use prolongs sessions, and tokens of pipelines are short-lived
		client.warn = func(until time.Time) { once.Do(func() { c.warnOfEnd(until) }) }
	}
	return client, nil
}

// endsSoon is how long before its end people are told of it.
const endsSoon = 7 * 24 * time.Hour

// warnOfEnd says that the token ends soon, if it does.
func (c *CLI) warnOfEnd(until time.Time) {
	left := until.Sub(c.Now())
	if left > endsSoon {
		return
	}
	fmt.Fprintln(c.Err, c.Style(c.Err).Busy(fmt.Sprintf("This token ends in %s, at %s. "+
		"`dagctl tokens create` makes another; an admin may do that.", Duration(left), until.Format(time.RFC3339))))
}

// NewClient returns a client of the API at t.URL.
func NewClient(t Target) *Client {
	header := http.Header{}
	header.Set("Accept", "application/json")
	header.Set("User-Agent", "dagctl/"+Version())
	if t.Token != "" {
		header.Set("Authorization", "Bearer "+t.Token)
	}

	t.URL = strings.TrimRight(t.URL, "/")
	return &Client{
		Target: t,
		header: header,
		http: &http.Client{
			Timeout: time.Minute,
			// A redirect to another place is a misconfiguration, and would send the token there.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Get decodes the answer to a GET request.
func (c *Client) Get(ctx context.Context, path string, query url.Values, answer any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.Do(ctx, http.MethodGet, path, nil, answer)
}

// Post sends a body as JSON and decodes the answer.
func (c *Client) Post(ctx context.Context, path string, body, answer any) error {
	return c.Do(ctx, http.MethodPost, path, body, answer)
}

// Put is Post with the method PUT.
func (c *Client) Put(ctx context.Context, path string, body, answer any) error {
	return c.Do(ctx, http.MethodPut, path, body, answer)
}

// Patch is Post with the method PATCH.
func (c *Client) Patch(ctx context.Context, path string, body, answer any) error {
	return c.Do(ctx, http.MethodPatch, path, body, answer)
}

// Delete sends a DELETE request without a body, and ignores the answer.
func (c *Client) Delete(ctx context.Context, path string) error {
	return c.Do(ctx, http.MethodDelete, path, nil, nil)
}

// Do sends a body, if there is one, as JSON, and decodes the answer. The status of the answer classifies the error,
// from which the exit code follows.
func (c *Client) Do(ctx context.Context, method, path string, body, answer any) error {
	if body == nil {
		return c.explain(ctx, method, path, c.DoRaw(ctx, method, path, "", nil, answer))
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return c.explain(ctx, method, path, c.DoRaw(ctx, method, path, "application/json", bytes.NewReader(text), answer))
}

// DoRaw sends content of any type, or none, and decodes the answer.
func (c *Client) DoRaw(ctx context.Context, method, path, contentType string, content io.Reader, answer any) error {
	for {
		wait, err := c.try(ctx, method, path, contentType, content, answer)
		if wait == 0 || !c.waits {
			return err
		}
		if again, ok := content.(io.Seeker); ok {
			if _, err := again.Seek(0, io.SeekStart); err != nil {
				return fmt.Errorf("%s %s: %w", method, path, err)
			}
		} else if content != nil {
			return err
		}
		if err := Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// try is DoRaw, once. wait is how long the server wants the caller to wait before the next try; zero: it did not say.
func (c *Client) try(ctx context.Context, method, path, contentType string, content io.Reader, answer any) (
	wait time.Duration, err error,
) {
	request, err := http.NewRequestWithContext(ctx, method, c.Target.URL+path, content)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}

	request.Header = c.header.Clone()
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.send(request)
	if err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, c.unanswered(err)
	}
	defer response.Body.Close()

	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, c.brokenOff(method, path, err)
	}

	until, err := time.Parse(time.RFC3339, response.Header.Get(rest.TokenExpires))
	if err == nil && c.warn != nil {
		c.warn(until)
	}
	if response.StatusCode >= 300 {
		return waitOf(response), c.refusal(method, path, response, text)
	}
	if answer == nil || len(text) == 0 {
		return 0, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // a number in an any keeps its digits
	if err := decoder.Decode(answer); err != nil {
		return 0, fault.New(fault.Unavailable,
			"the answer to %s %s is not that of a dagctl server: %w", method, path, err).
			WithHint("check that %s is a dagctl server of this version", c.Target.URL)
	}
	return 0, nil
}

// send sends a request, and notes what time it is for the server.
func (c *Client) send(request *http.Request) (*http.Response, error) {
	before := time.Now()
	response, err := c.http.Do(request)
	if err != nil || c.dated == nil {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		c.dated(date, before, time.Now())
	}
	return response, nil
}

// waitOf returns how long a caller is to wait who sent too much; zero: the status is another one.
func waitOf(response *http.Response) time.Duration {
	if response.StatusCode != http.StatusTooManyRequests {
		return 0
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		return time.Second
	}
	return time.Duration(min(max(seconds, 1), 60)) * time.Second
}

// maxAnswer is the limit in bytes of an answer; pages are far smaller.
const maxAnswer = 64 << 20

// Cause returns a network error without its method and URL, which messages name already.
func Cause(err error) error {
	var network *url.Error
	if errors.As(err, &network) {
		return network.Err
	}
	return err
}

// unanswered returns the error of a request to which there was no answer.
func (c *Client) unanswered(err error) error {
	if c.timedOut(err) {
		return fault.New(fault.Unavailable, "%s has not answered within %s", c.Target.URL, Duration(c.http.Timeout)).
			WithHint("`curl %s/readyz` says what it lacks", c.Target.URL)
	}
	return fault.New(fault.Unavailable, "%s does not answer: %w", c.Target.URL, Cause(err)).
		WithHint("check that the server runs there, or choose another with --target")
}

// brokenOff returns the error of an answer that ended before it was whole.
func (c *Client) brokenOff(method, path string, err error) error {
	if c.timedOut(err) {
		return fault.New(fault.Unavailable, "the answer to %s %s was not whole within %s", method, path,
			Duration(c.http.Timeout))
	}
	return fault.New(fault.Unavailable, "the answer to %s %s broke off: %w", method, path, err)
}

// timedOut reports whether an error means that the time of the client is over.
func (c *Client) timedOut(err error) bool {
	return c.http.Timeout > 0 && errors.Is(err, context.DeadlineExceeded)
}

// refusal returns the error of an answer whose status is one.
func (c *Client) refusal(method, path string, response *http.Response, text []byte) error {
	p := rest.Problem{Status: response.StatusCode}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == "application/problem+json" {
		_ = json.Unmarshal(text, &p) // without it, the status has to do
	}
	err := p.Fault()
	if err.Message == "" {
		err.Message = fmt.Sprintf("%s %s answered %s", method, path, response.Status)
	}
	if err.Kind == fault.Internal && p.RequestID != "" {
		err.Message += " (request " + p.RequestID + ")"
	}
	if err.Kind == fault.Unauthenticated {
		err.Hint = "sign in with `dagctl login`, or set DAGCTL_TOKEN"
	}
	return err
}

// Patient gives calls 20 minutes, for work that the server itself ends when it takes too long.
func (c *Client) Patient() { c.http.Timeout = 20 * time.Minute }

// Wait makes calls wait as long as the server says when it answers that they are too many (429), and then try again.
func (c *Client) Wait() { c.waits = true }

// NoTimeout lets calls take as long as the server allows.
func (c *Client) NoTimeout() { c.http.Timeout = 0 }

// IfMatch makes later calls fail unless what they change has this version.
func (c *Client) IfMatch(version string) { c.header.Set("If-Match", strconv.Quote(version)) }

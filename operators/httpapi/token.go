package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/patience"
)

// tokenRequest asks for a token by the client credentials grant of OAuth 2 (RFC 6749, section 4.4).
type tokenRequest struct {
	url    *url.URL
	form   url.Values
	header string // Authorization; empty: the client's id and secret are in the form
}

// token is what the API accepts instead of the client's secret, while it is valid.
type token struct {
	tokenRequest
	text string    // empty: there is none
	ends time.Time // zero: it is not known
}

// beforeEnd is how long before its end a token is renewed, so that none ends on its way.
const beforeEnd = 30 * time.Second

// prepareToken resolves the client's id and secret. Whoever has the token can act as the client, so a secret has to be
// bound to the API's host, too: a config cannot send what comes of it elsewhere.
func (talk *conversation) prepareToken() error {
	a := talk.Auth
	to, err := url.Parse(a.TokenURL)
	if err != nil {
		return fault.New(fault.Invalid, "config.auth.token_url is not a URL")
	}
	var texts [2]string
	for i, field := range []any{a.ClientID, a.ClientSecret} {
		at := []string{"config.auth.client_id", "config.auth.client_secret"}[i]
		if _, _, err := talk.reveal(field, at, talk.first); err != nil {
			return err
		}
		if texts[i], _, err = talk.reveal(field, at, to); err != nil {
			return err
		}
	}

	r := tokenRequest{url: to, form: url.Values{}}
	for name, text := range a.Params {
		r.form.Set(name, text)
	}
	r.form.Set("grant_type", "client_credentials")
	if a.Scope != "" {
		r.form.Set("scope", a.Scope)
	}
	if a.Send == "body" {
		r.form.Set("client_id", texts[0])
		r.form.Set("client_secret", texts[1])
	} else {
		r.header = basicAuth(url.QueryEscape(texts[0]), url.QueryEscape(texts[1])) // section 2.3.1
	}
	talk.token.tokenRequest = r
	return nil
}

func basicAuth(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// haveToken asks for a token unless there is one that is valid.
func (talk *conversation) haveToken(ctx context.Context) error {
	t := &talk.token
	if talk.Auth.Kind != oauth2 || t.text != "" && (t.ends.IsZero() || time.Now().Before(t.ends)) {
		return nil
	}

	talk.task.Progress(0, "asking "+t.url.Host+" for a token")
	err := talk.tries().Do(ctx, func() error {
		fresh, err := talk.askForToken(ctx)
		if err == nil {
			t.text, t.ends = fresh.text, fresh.ends
		}
		return err
	})
	if err == nil {
		talk.headers.Set("Authorization", "Bearer "+t.text)
	}
	return err
}

// errorCode is the form of an error's code in RFC 6749. Nothing else of a refusal is shown: it may quote what was sent.
var errorCode = late.Pattern(`^[a-z_]{1,40}$`)

const maxTokenBytes = 1 << 20

func (talk *conversation) askForToken(ctx context.Context) (fresh token, err error) {
	r := talk.token.tokenRequest
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url.String(), strings.NewReader(r.form.Encode()))
	if err != nil {
		return fresh, operators.Permanent(fault.New(fault.Invalid, "config.auth.token_url is not a URL"))
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "dagctl")
	if r.header != "" {
		request.Header.Set("Authorization", r.header)
	}

	response, err := talk.operator.strict.Do(request)
	if err != nil {
		return fresh, patience.Unanswered(ctx, "POST "+r.url.Host, err)
	}
	defer response.Body.Close()
	var said struct {
		Error       string  `json:"error"`
		AccessToken string  `json:"access_token"`
		TokenType   string  `json:"token_type"`
		ExpiresIn   float64 `json:"expires_in"` // seconds
	}
	malformed := json.NewDecoder(io.LimitReader(response.Body, maxTokenBytes)).Decode(&said)

	answered := fmt.Sprintf("POST %s: the server answered %s", r.url.Host, response.Status)
	switch code := response.StatusCode; {
	case ctx.Err() != nil:
		return fresh, context.Cause(ctx)
	case patience.Passes(code):
		return fresh, patience.NewLater(fault.New(fault.Unavailable, "%s", answered),
			patience.AskedToWait(response, time.Now()))
	case code != http.StatusOK && malformed == nil && errorCode.MatchString(said.Error):
		return fresh, operators.Permanent(fault.New(fault.Invalid, "%s: %s", answered, said.Error))
	case code != http.StatusOK:
		return fresh, operators.Permanent(fault.New(fault.Invalid, "%s to a request for a token", answered))
	case malformed != nil || said.AccessToken == "":
		return fresh, fault.New(fault.Unavailable, "%s, but with no access_token", answered)
	case said.TokenType != "" && !strings.EqualFold(said.TokenType, "bearer"):
		return fresh, operators.Permanent(fault.New(fault.Invalid, "%s: its token is of a type other than bearer",
			answered))
	}

	fresh.text = said.AccessToken
	if lives := time.Duration(said.ExpiresIn * float64(time.Second)); lives > 0 {
		fresh.ends = time.Now().Add(lives - min(beforeEnd, lives/2))
	}
	return fresh, nil
}

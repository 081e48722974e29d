package main

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
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// client is the HTTP API as commands use it.
type client struct {
	target target
	http   *http.Client
	header http.Header
}

// connect resolves the target and says which it is; what a command did must never be a riddle.
func (c *cli) connect() (*client, error) {
	t, err := c.resolveTarget()
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(c.err, c.style(c.err).dim(fmt.Sprintf("Target %s · %s", t.Name, t.URL)))
	return newClient(t), nil
}

func newClient(t target) *client {
	header := http.Header{}
	header.Set("Accept", "application/json")
	header.Set("User-Agent", "dagctl/"+buildVersion())
	if t.Token != "" {
		header.Set("Authorization", "Bearer "+t.Token)
	}
	t.URL = strings.TrimRight(t.URL, "/")
	return &client{
		target: t,
		header: header,
		http: &http.Client{
			Timeout: time.Minute,
			// A redirect to another place is a misconfiguration, and would take the token along.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (c *client) get(ctx context.Context, path string, query url.Values, answer any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, nil, answer)
}

func (c *client) post(ctx context.Context, path string, body, answer any) error {
	return c.do(ctx, http.MethodPost, path, body, answer)
}

func (c *client) put(ctx context.Context, path string, body, answer any) error {
	return c.do(ctx, http.MethodPut, path, body, answer)
}

func (c *client) patch(ctx context.Context, path string, body, answer any) error {
	return c.do(ctx, http.MethodPatch, path, body, answer)
}

func (c *client) delete(ctx context.Context, path string) error {
	return c.do(ctx, http.MethodDelete, path, nil, nil)
}

// do makes one call. An error is classified by the answer's status, so that exit codes follow from it.
func (c *client) do(ctx context.Context, method, path string, body, answer any) error {
	if body == nil {
		return c.doRaw(ctx, method, path, "", nil, answer)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return c.doRaw(ctx, method, path, "application/json", bytes.NewReader(text), answer)
}

// doRaw makes one call with a body of a type of its own, or without one.
func (c *client) doRaw(ctx context.Context, method, path, contentType string, content io.Reader, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.target.URL+path, content)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	request.Header = c.header.Clone()
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.New(fault.Unavailable, "%s does not answer: %w", c.target.URL, cause(err)).
			WithHint("check that the server runs there, or choose another with --target")
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fault.New(fault.Unavailable, "the answer of %s %s broke off: %w", method, path, err)
	}
	if response.StatusCode >= 300 {
		return c.refusal(method, path, response, text)
	}
	if answer == nil || len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fault.New(fault.Unavailable, "the answer of %s %s is not what a dagctl server sends: %w", method, path, err).
			WithHint("check that %s is a dagctl server of this version", c.target.URL)
	}
	return nil
}

// maxAnswer bounds what is read of an answer; pages are far smaller.
const maxAnswer = 64 << 20

// cause takes the method and URL off a network error, which the message names already.
func cause(err error) error {
	var network *url.Error
	if errors.As(err, &network) {
		return network.Err
	}
	return err
}

// refusal turns an error answer into the error it stands for.
func (c *client) refusal(method, path string, response *http.Response, text []byte) error {
	p := rest.Problem{Status: response.StatusCode}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == "application/problem+json" {
		_ = json.Unmarshal(text, &p) // what cannot be read is told by the status
	}
	err := p.Fault()
	if err.Message == "" {
		err.Message = fmt.Sprintf("%s %s answered %s", method, path, response.Status)
	}
	if err.Kind == fault.Internal && p.RequestID != "" {
		err.Message += " (request " + p.RequestID + ")"
	}
	if err.Kind == fault.Unauthenticated {
		err.Hint = "set DAGCTL_TOKEN, or store a token with `dagctl target add --token-file`"
	}
	return err
}

package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
)

const schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["url"],
  "properties": {
    "url": {"type": "string", "pattern": "^https?://",
      "description": "The URL to GET. {partition}, {start}, {end}: the task's partition and its range (RFC 3339)."},
    "query": {"type": "object",
      "additionalProperties": {"anyOf": [{"type": ["string", "number", "boolean"]},
        {"type": "array", "maxItems": 100, "items": {"type": ["string", "number", "boolean"]}}]},
      "description": "Parameters to add to the URL, with the same placeholders; a list repeats one. A value may be {secret: NAME}."},
    "headers": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9-]+$"},
      "additionalProperties": {"type": "string"}, "description": "Request headers. A value may be {secret: NAME}."},
    "auth": {"type": "object", "additionalProperties": false, "required": ["kind"],
      "description": "How requests say who sends them; by default they do not.",
      "properties": {
        "kind": {"enum": ["bearer", "basic", "oauth2"],
          "description": "oauth2: a token by the client credentials grant."},
        "token": {"type": "string", "minLength": 1, "description": "bearer: the token, such as {secret: NAME}."},
        "username": {"type": "string", "minLength": 1, "description": "basic."},
        "password": {"type": "string", "description": "basic: such as {secret: NAME}."},
        "token_url": {"type": "string", "pattern": "^https?://", "description": "oauth2: where to ask for tokens."},
        "client_id": {"type": "string", "minLength": 1, "description": "oauth2."},
        "client_secret": {"type": "string", "minLength": 1, "description": "oauth2: such as {secret: NAME}."},
        "send": {"enum": ["basic", "body"],
          "description": "oauth2: how to send the client's id and secret: as a header, the default, or as fields of the form."},
        "scope": {"type": "string", "minLength": 1, "description": "oauth2: scopes, with spaces between them."},
        "params": {"type": "object", "additionalProperties": {"type": "string"},
          "description": "oauth2: further fields of the form, such as audience."}
      }},
    "records": {"type": "string", "minLength": 1,
      "description": "Path of the list of rows in an answer, with dots between its parts; by default the answer is the list."},
    "pagination": {"type": "object", "additionalProperties": false, "required": ["by"],
      "description": "How to come to the next page; by default there is one page.",
      "properties": {
        "by": {"enum": ["link", "next_url", "page", "offset", "cursor"],
          "description": "link: the Link header; next_url, cursor: at a path of the answer; page, offset: counted."},
        "param": {"type": "string", "minLength": 1, "description": "page, offset, cursor: the query parameter to set."},
        "path": {"type": "string", "minLength": 1, "description": "next_url, cursor: where the answer has it."},
        "more": {"type": "string", "minLength": 1,
          "description": "Path of a boolean of the answer that says whether there is another page. Not for link."},
        "first": {"type": "integer", "minimum": 0, "description": "page: the number of the first, 1 by default."}
      }},
    "max_pages": {"type": "integer", "minimum": 1, "maximum": 100000,
      "description": "The most pages to read; 1,000 by default. A longer listing fails."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 17179869184,
      "description": "The most bytes of all answers together; 256 MiB by default."},
    "max_rows": {"type": "integer", "minimum": 1, "description": "The most rows of all pages together; no bound by default."},
    "requests_per_second": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000,
      "description": "The most requests to send in a second, on average; no bound by default."},` +
	operators.JSONRowsSchema + `
  }
}`

type config struct {
	operators.JSONRows
	URL        string                     `json:"url"`
	Query      map[string]json.RawMessage `json:"query"` // numbers stay as they are written
	Headers    map[string]any             `json:"headers"`
	Auth       auth                       `json:"auth"`
	Records    string                     `json:"records"`
	Pagination pagination                 `json:"pagination"`
	MaxPages   int                        `json:"max_pages"`
	MaxBytes   int64                      `json:"max_bytes"`
	MaxRows    int64                      `json:"max_rows"`
	Rate       float64                    `json:"requests_per_second"`
}

// The kinds of auth.
const (
	bearer = "bearer"
	basic  = "basic"
	oauth2 = "oauth2"
)

// auth has text or {secret: NAME} in fields of type any.
type auth struct {
	Kind         string            `json:"kind"`
	Token        any               `json:"token"`
	Username     any               `json:"username"`
	Password     any               `json:"password"`
	TokenURL     string            `json:"token_url"`
	ClientID     any               `json:"client_id"`
	ClientSecret any               `json:"client_secret"`
	Send         string            `json:"send"`
	Scope        string            `json:"scope"`
	Params       map[string]string `json:"params"`
}

// The ways to the next page.
const (
	byLink    = "link"
	byNextURL = "next_url"
	byPage    = "page"
	byOffset  = "offset"
	byCursor  = "cursor"
)

type pagination struct {
	By    string `json:"by"`
	Param string `json:"param"`
	Path  string `json:"path"`
	More  string `json:"more"`
	First *int64 `json:"first"`
}

const (
	defaultMaxPages = 1000
	defaultMaxBytes = 256 << 20
)

// parse returns a config, with its defaults.
func parse(from map[string]any) (config, *dag.ConfigError) {
	var c config
	if err := operators.DecodeConfig(from, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if c.MaxPages == 0 {
		c.MaxPages = defaultMaxPages
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}

	if !operators.IsURL(operators.ExpandURL(c.URL, nil)) {
		return c, &dag.ConfigError{Key: "url", Message: "it must be a URL with a host and without a password"}
	}
	for _, check := range []func() *dag.ConfigError{c.checkAuth, c.checkPagination, c.JSONRows.Check} {
		if err := check(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// use is a field and the cases that it is for.
type use struct {
	name     string
	set      bool
	cases    []string
	required bool // in those cases
}

// misused returns the field that is set in a case that it is not for, or missing in one that it is for.
func misused(key, kind string, uses []use) *dag.ConfigError {
	for _, u := range uses {
		is := slices.Contains(u.cases, kind)
		switch {
		case u.set && !is:
			return &dag.ConfigError{Key: key, Message: fmt.Sprintf("%s is for %s, not %s", u.name,
				strings.Join(u.cases, ", "), kind)}
		case !u.set && is && u.required:
			return &dag.ConfigError{Key: key, Message: fmt.Sprintf("%s needs %s", kind, u.name)}
		}
	}
	return nil
}

func (c config) checkAuth() *dag.ConfigError {
	a := c.Auth
	if a.Kind == "" {
		return nil
	}
	err := misused("auth", a.Kind, []use{
		{"token", a.Token != nil, []string{bearer}, true},
		{"username", a.Username != nil, []string{basic}, true},
		{"password", a.Password != nil, []string{basic}, true},
		{"token_url", a.TokenURL != "", []string{oauth2}, true},
		{"client_id", a.ClientID != nil, []string{oauth2}, true},
		{"client_secret", a.ClientSecret != nil, []string{oauth2}, true},
		{"send", a.Send != "", []string{oauth2}, false},
		{"scope", a.Scope != "", []string{oauth2}, false},
		{"params", a.Params != nil, []string{oauth2}, false},
	})
	switch {
	case err != nil:
		return err
	case a.Kind == oauth2 && !operators.IsURL(a.TokenURL):
		return &dag.ConfigError{Key: "auth", Message: "token_url must be a URL with a host and without a password"}
	}

	for name := range c.Headers {
		if http.CanonicalHeaderKey(name) == "Authorization" {
			return &dag.ConfigError{Key: "auth", Message: "`auth` sets the header Authorization, and so does `headers`"}
		}
	}
	return nil
}

// checkNew refuses what a config may have that was deployed before it was refused.
func (c config) checkNew() *dag.ConfigError {
	if err := operators.CheckRequest(c.URL, c.Headers); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Query)) {
		if unknown := operators.UnknownPlaceholder(string(c.Query[name])); unknown != "" {
			return &dag.ConfigError{Key: "query", Message: fmt.Sprintf("%s: there is no %s: use {partition}, {start} "+
				"or {end}", name, unknown)}
		}
	}

	for _, path := range []string{c.Records, c.Pagination.Path, c.Pagination.More} {
		if path != "" && slices.Contains(strings.Split(path, "."), "") {
			return &dag.ConfigError{Message: fmt.Sprintf("path %q has an empty part between its dots", path)}
		}
	}
	for _, secret := range []any{c.Auth.Token, c.Auth.Password, c.Auth.ClientSecret} {
		if err := operators.WrittenOut("auth", "secret", secret); err != nil {
			return err
		}
	}
	return nil
}

func (c config) checkPagination() *dag.ConfigError {
	p := c.Pagination
	if p.By == "" {
		return nil
	}
	fail := func(format string, args ...any) *dag.ConfigError {
		return &dag.ConfigError{Key: "pagination", Message: fmt.Sprintf(format, args...)}
	}
	if err := misused("pagination", p.By, []use{
		{"param", p.Param != "", []string{byPage, byOffset, byCursor}, true},
		{"path", p.Path != "", []string{byNextURL, byCursor}, true},
		{"more", p.More != "", []string{byNextURL, byCursor, byPage, byOffset}, false},
		{"first", p.First != nil, []string{byPage}, false},
	}); err != nil {
		return err
	}

	if p.Path+p.More != "" && c.Records == "" {
		return fail("%s needs `records`: an answer that has more than the rows is an object", p.By)
	}
	if _, twice := c.Query[p.Param]; twice && p.By != byCursor {
		return fail("parameter %q is counted, and `query` sets it, too: give `first` instead", p.Param)
	}
	paths := slices.DeleteFunc([]string{c.Records, p.Path, p.More}, func(path string) bool { return path == "" })
	for i, a := range paths {
		for j, b := range paths {
			if i != j && strings.HasPrefix(b+".", a+".") {
				return fail("%q lies within %q: each path leads to a value of its own", b, a)
			}
		}
	}
	return nil
}

// usesRange reports whether the requests name the range of a partition.
func (c config) usesRange() bool {
	used := strings.Contains(c.URL, "{start}") || strings.Contains(c.URL, "{end}")
	for _, value := range c.Query {
		used = used || bytes.Contains(value, []byte("{start}")) || bytes.Contains(value, []byte("{end}"))
	}
	return used
}

// secretTo is the SecretTo: the client's secret of OAuth goes to the token URL, and what comes of it to the API.
func secretTo(from map[string]any, name string) []string {
	c, configFault := parse(from)
	if configFault != nil {
		return nil
	}
	is := func(field any) bool {
		m, ok := field.(map[string]any)
		return ok && m["secret"] == name
	}

	to := []string{operators.ExpandURL(c.URL, nil)}
	if is(c.Auth.ClientID) || is(c.Auth.ClientSecret) {
		to = append(to, c.Auth.TokenURL)
	}
	return to
}

package operators

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/operators/textfile"
)

// httpSource reads one URL as a table. Its requests are conditional (ETag, Last-Modified). If the answer is 304 or the
// content has not changed, nothing is published. The URL has only its present content, so the source is forward-only:
// it cannot be rebuilt.
//
// Operator state: the URL and config that it belongs to, the validators of the last answer and the hash of its content.
type httpSource struct {
	options Options
	client  *http.Client
}

func newHTTPSource(o Options) (*httpSource, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	if err != nil {
		return nil, err
	}
	return &httpSource{options: o, client: d.Client(0)}, nil // the task's own timeout bounds the request
}

const httpSourceSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["url", "format"],
  "properties": {
    "url": {"type": "string", "pattern": "^https?://",
      "description": "The URL to GET. {partition}, {start}, {end}: the task's partition and its range (RFC 3339)."},
    "headers": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9-]+$"},
      "additionalProperties": {"type": "string"}, "description": "Request headers. A value may be {secret: NAME}."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 17179869184,
      "description": "The longest answer to accept; 256 MiB by default."},` + tabularSchema + `
  }
}`

type httpSourceConfig struct {
	tabular
	URL      string         `json:"url"`
	Headers  map[string]any `json:"headers"`
	MaxBytes int64          `json:"max_bytes"`
}

const defaultMaxBytes = 256 << 20

func (o *httpSource) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "http_source", Version: "1.0.0", Source: true, Effect: dag.EffectInternal, Splits: true,
		ConfigSchema: json.RawMessage(httpSourceSchema),
		Shape:        declaredColumns,
		Reading:      declaredReading,
		Operational:  []string{"max_bytes"},
		CheckFields:  CheckRequestOf,
		SecretsTo: func(config map[string]any) string {
			address, _ := config["url"].(string)
			return ExpandURL(address, nil)
		},
		Canonical: func(config map[string]any) (any, *dag.ConfigError) {
			c, err := parseHTTPConfig(config)
			if err == nil {
				err = CheckRequest(c.URL, c.Headers)
			}
			return config, err
		},
	}
}

func parseHTTPConfig(config map[string]any) (httpSourceConfig, *dag.ConfigError) {
	var c httpSourceConfig
	if err := DecodeConfig(config, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if !IsURL(ExpandURL(c.URL, nil)) {
		return c, &dag.ConfigError{Key: "url", Message: notAURL}
	}
	return c, c.check()
}

// ExpandURL puts the partition into the URL, escaped so that it stays one part of the path or one value of the query.
func ExpandURL(text string, p *PartitionRange) string {
	return expand(text, p, func(s string) string {
		return strings.NewReplacer("&", "%26", "=", "%3D", "+", "%2B", ":", "%3A").Replace(url.PathEscape(s))
	})
}

// ExpandText puts the partition into a text as it is.
func ExpandText(text string, p *PartitionRange) string {
	return expand(text, p, func(s string) string { return s })
}

func expand(text string, p *PartitionRange, escape func(string) string) string {
	var key, start, end string
	if p != nil {
		key = p.Key
		if p.Start != nil && p.End != nil {
			start, end = p.Start.UTC().Format(time.RFC3339), p.End.UTC().Format(time.RFC3339)
		}
	}
	return strings.NewReplacer("{partition}", escape(key), "{start}", escape(start), "{end}", escape(end)).Replace(text)
}

// IsURL reports whether requests can be sent to a text.
func IsURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && u.User == nil && (u.Scheme == "http" || u.Scheme == "https")
}

var placeholder = late.Pattern(`\{[A-Za-z_]+\}`)

// UnknownPlaceholder returns the first placeholder of a text that ExpandURL and ExpandText leave as it is, or "".
func UnknownPlaceholder(text string) string {
	return placeholder.FindString(strings.NewReplacer("{partition}", "", "{start}", "", "{end}", "").Replace(text))
}

// CheckRequest refuses a URL with an unknown placeholder, and headers that no request can carry. Only new configs are
// checked: what a version was deployed with stays as it was.
func CheckRequest(address string, headers map[string]any) *dag.ConfigError {
	if unknown := UnknownPlaceholder(address); unknown != "" {
		return &dag.ConfigError{Key: "url", Message: fmt.Sprintf("there is no %s: use {partition}, {start} or {end}",
			unknown)}
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if value, ok := headers[name].(string); ok && !httpguts.ValidHeaderFieldValue(value) {
			return &dag.ConfigError{Key: "headers", Message: fmt.Sprintf("the value of %s has a character that no "+
				"header may have, such as the end of a line", name)}
		}
	}
	return nil
}

// CheckRequestOf is the CheckFields of operators whose config has a `url` and `headers`.
func CheckRequestOf(config map[string]any) *dag.ConfigError {
	address, _ := config["url"].(string)
	headers, _ := config["headers"].(map[string]any)
	if address != "" && !IsURL(ExpandURL(address, nil)) {
		return &dag.ConfigError{Key: "url", Message: notAURL}
	}
	return CheckRequest(address, headers)
}

const notAURL = "it must be a URL with a host and without a password"

// SetHeaders sets the headers that a config wants for requests to a URL. secretTo is that of the task or the
// enumeration.
func SetHeaders(
	to http.Header, u *url.URL, headers map[string]any, secretTo func(u *url.URL, field any, at string) (string, error),
) error {
	for _, name := range sortedKeys(headers) {
		at := "config.headers." + name
		text, err := secretTo(u, headers[name], at)
		if err != nil {
			return err
		}
		if !httpguts.ValidHeaderFieldValue(text) {
			return Permanent(fault.New(fault.Invalid, "%s: the value has a character that no header may have, such as "+
				"the end of a line", at).WithHint("store the secret without it: dagctl secrets set"))
		}
		to.Set(name, text)
	}
	return nil
}

// httpState is what the source remembers of the last answer.
type httpState struct {
	Request      string `json:"request"` // hash of URL and config; validators of another request are useless
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"`
	SHA256       string `json:"sha256"`
}

func (o *httpSource) Run(ctx context.Context, t *Task) (Result, error) {
	c, configFault := parseHTTPConfig(t.Config)
	if configFault != nil {
		return Result{}, Permanent(ConfigError(configFault))
	}
	state, err := priorState(t, c)
	if err != nil {
		return Result{}, err
	}

	response, err := o.get(ctx, t, c, state)
	if err != nil {
		return Result{}, err
	}
	defer response.Body.Close()

	if response.StatusCode == http.StatusNotModified {
		return Result{Unchanged: true, SourceVersion: "sha256:" + state.SHA256}, nil
	}
	if err := StatusError(response); err != nil {
		return Result{}, err
	}

	local := filepath.Join(t.Scratch, "body."+c.Format+responseCompression(response))
	sum, err := download(ctx, response.Body, local, c.MaxBytes)
	if err != nil {
		return Result{}, err
	}

	unchanged := state.SHA256 == sum
	state.ETag, state.LastModified, state.SHA256 = response.Header.Get("ETag"), response.Header.Get("Last-Modified"),
		sum
	result := Result{SourceVersion: "sha256:" + sum, Unchanged: unchanged}
	if !t.Asked { // then rows are compared, and partitions are read side by side
		result.State, err = json.Marshal(state)
	}
	if err != nil || unchanged {
		return result, err
	}

	t.Progress(50, "reading rows")
	files := []textfile.File{{Name: "the answer", Path: local}}
	found, err := reads{c.tabular, o.options, t}.convert(ctx, files)
	if err != nil {
		return Result{}, err
	}
	result.Reading = found.reading
	result.Result, err = json.Marshal(found)
	return result, err
}

// priorState returns the operator state if it belongs to this request and what it tells of is there, else an empty
// state.
func priorState(t *Task, c httpSourceConfig) (httpState, error) {
	text, err := json.Marshal(t.Config)
	if err != nil {
		return httpState{}, err
	}
	request := sha256.Sum256(append([]byte(ExpandURL(c.URL, t.Partition)+"\n"), text...))
	fresh := httpState{Request: hex.EncodeToString(request[:])}
	var prior httpState
	if len(t.State) > 0 && !t.Purged() && json.Unmarshal(t.State, &prior) == nil && prior.Request == fresh.Request {
		return prior, nil
	}
	return fresh, nil
}

func (o *httpSource) get(ctx context.Context, t *Task, c httpSourceConfig, state httpState) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, ExpandURL(c.URL, t.Partition), nil)
	if err != nil {
		return nil, Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}
	request.Header.Set("User-Agent", "dagctl")
	if err := SetHeaders(request.Header, request.URL, c.Headers, t.SecretTo); err != nil {
		return nil, err
	}
	if state.ETag != "" {
		request.Header.Set("If-None-Match", state.ETag)
	}
	if state.LastModified != "" {
		request.Header.Set("If-Modified-Since", state.LastModified)
	}

	t.Progress(0, "asking "+request.URL.Host)
	response, err := o.client.Do(request)
	return response, Unanswered(ctx, "GET "+request.URL.Host, err)
}

// Unanswered returns the error of a request without a whole answer, permanent if its address may not be reached; nil if
// err is. what begins its text; of the URL, which may carry a key, nothing is shown.
func Unanswered(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	err = fmt.Errorf("%s: %w", what, err)
	if fault.Is(err, fault.Forbidden) || fault.Is(err, fault.Invalid) {
		return Permanent(err)
	}
	return err
}

// StatusError returns an error unless the request succeeded. It is permanent if a later request would fail, too.
func StatusError(response *http.Response) error {
	code := response.StatusCode
	if code >= 200 && code < 300 {
		return nil
	}
	err := fault.New(fault.Unavailable, "GET %s: the server answered %s", response.Request.URL.Host, response.Status)
	switch {
	case code == http.StatusNotFound, code == http.StatusRequestTimeout, code == http.StatusTooEarly,
		code == http.StatusTooManyRequests, code >= 500:
		return err
	}
	return Permanent(err)
}

// responseCompression returns the extension for the compression of the file itself. The transport has already undone
// that of the transfer.
func responseCompression(response *http.Response) string {
	if ext := compression(path.Base(response.Request.URL.Path)); ext != "" {
		return ext
	}
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch media {
	case "application/gzip", "application/x-gzip":
		return ".gz"
	case "application/zstd":
		return ".zst"
	}
	return ""
}

func download(ctx context.Context, body io.Reader, target string, limit int64) (string, error) {
	if limit == 0 {
		limit = defaultMaxBytes
	}
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}

	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), contextReader{ctx, io.LimitReader(body, limit+1)})
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if n > limit {
		return "", Permanent(fault.New(fault.TooLarge, "the answer has more than %d bytes", limit).
			WithHint("raise config.max_bytes"))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

package operators

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
)

func TestASecretGoesToItsHostsOnly(t *testing.T) {
	t.Parallel()
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("X-Key")
	}))

	t.Cleanup(server.Close)
	source, err := newHTTPSource(Options{AllowedAddresses: []string{"127.0.0.0/8"}})
	require.NoError(t, err)

	for host, may := range map[string]bool{server.URL: true, strings.TrimPrefix(server.URL, "http://"): false,
		"example.org": false} {
		got = ""
		task := &Task{Assignment: Assignment{
			Config: map[string]any{"url": server.URL, "format": "csv",
				"headers": map[string]any{"X-Key": map[string]any{"secret": "KEY"}}},
			Secrets: map[string]secret.Value{"KEY": secret.New("KEY", "hunter2", []string{host})},
		}, Progress: func(int, string) {}}

		c, configFault := parseHTTPConfig(task.Config)
		require.Nil(t, configFault)
		response, err := source.get(t.Context(), task, c, httpState{})
		if may {
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, "hunter2", got)
			continue
		}
		require.True(t, fault.Is(err, fault.Forbidden), "%s: %v", host, err)
		require.True(t, IsPermanent(err))
		require.Empty(t, got)
	}

	_, _, _, err = (&Task{}).SecretFor(map[string]any{"secret": "KEY"}, "config.x")
	require.ErrorContains(t, err, "not available to this task")
}

// A secret with the end of a line in it cannot be a header: no retry mends that, and no error tells it.
func TestASecretThatNoHeaderMayHave(t *testing.T) {
	t.Parallel()
	to, err := url.Parse("https://example.org")
	require.NoError(t, err)
	task := &Task{Assignment: Assignment{Secrets: map[string]secret.Value{
		"KEY": secret.New("KEY", "hunter2\nx", []string{"*"})}}}
	header := http.Header{}
	err = SetHeaders(header, to, map[string]any{"X-Key": map[string]any{"secret": "KEY"}, "X-A": "a"}, task.SecretTo)
	require.ErrorContains(t, err, "config.headers.X-Key: the value has a character that no header may have")
	require.True(t, IsPermanent(err))
	require.NotContains(t, err.Error(), "hunter2")
	require.Equal(t, http.Header{"X-A": {"a"}}, header)
}

func TestOutcomesAreRedacted(t *testing.T) {
	t.Parallel()
	a := Assignment{Secrets: map[string]secret.Value{"KEY": secret.New("KEY", `hunter"2`, nil)}}
	quoted, err := json.Marshal(map[string]any{"a": []any{`x hunter"2 y`}, `hunter"2`: 1})
	require.NoError(t, err)

	out := a.Redact(Outcome{Err: Permanent(fault.New(fault.Forbidden, `no: hunter"2`).WithHint(`say hunter"2`)),
		Result: Result{Result: quoted, State: quoted, SourceVersion: `hunter"2`}})
	text := fmt.Sprintf("%v %s %s %s", out.Err, out.Result.Result, out.State, out.SourceVersion)
	require.NotContains(t, text, "hunter")
	require.True(t, fault.Is(out.Err, fault.Forbidden))

	var f *fault.Error
	require.True(t, errors.As(out.Err, &f))
	require.Equal(t, "say [secret]", f.Hint)

	// JSON without secrets stays the same, byte by byte.
	plain := json.RawMessage(`{ "b":1,  "a":12345678901234567890 }`)
	require.Equal(t, plain, a.Redact(Outcome{Result: Result{Result: plain}}).Result.Result)

	encoded, err := json.Marshal(a)
	require.NoError(t, err)
	require.NotContains(t, string(encoded), "hunter")
}

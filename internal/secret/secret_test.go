package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

func TestAValueIsNeverShown(t *testing.T) {
	t.Parallel()
	v := New("key", "hunter2", nil)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", v, "all", map[string]Value{"key": v})
	text, err := json.Marshal(map[string]any{"v": v, "p": &v})
	require.NoError(t, err)
	all := fmt.Sprintf("%v %+v %#v %s %q %v %+v %#v", v, v, v, v, v, &v, []Value{v}, map[string]Value{"a": v})
	for _, shown := range []string{log.String(), string(text), all} {
		require.NotContains(t, shown, "hunter2")
		require.Contains(t, shown, "[secret]")
	}
	require.Equal(t, "hunter2", v.Reveal())
}

func TestHostsOfAValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		hosts []string
		url   string
		may   bool
	}{
		{nil, "https://api.example.com/x", false},
		{[]string{"api.example.com"}, "https://api.example.com/x", true},
		{[]string{"api.example.com"}, "https://API.example.com:443/x", true},
		{[]string{"api.example.com"}, "https://api.example.com:8443/x", false},
		{[]string{"api.example.com"}, "http://api.example.com/x", false},
		{[]string{"api.example.com"}, "https://evil.example.com/api.example.com", false},
		{[]string{"api.example.com"}, "https://api.example.com.evil.org/", false},
		{[]string{"example.com"}, "https://api.example.com/", false},
		{[]string{"api.example.com:8443"}, "https://api.example.com:8443/", true},
		{[]string{"http://box.internal:8080"}, "http://box.internal:8080/", true},
		{[]string{"http://box.internal:8080"}, "https://box.internal:8080/", false},
		{[]string{"http://[::1]:80"}, "http://[::1]/", true},
		{[]string{"a.example.com", "b.example.com"}, "https://b.example.com", true},
		{[]string{"*"}, "https://anything/", true},
		{[]string{"*"}, "https://anything:8443/", true},
		{[]string{"*"}, "http://anything/", false},
		{[]string{"http://*"}, "http://anything:8080/", true},
		{[]string{"http://*"}, "https://anything/", false},
	} {
		u, err := url.Parse(tc.url)
		require.NoError(t, err)

		for _, h := range tc.hosts {
			require.NoError(t, ValidHost(h))
		}
		text, err := New("key", "hunter2", tc.hosts).For(u)
		if tc.may {
			require.NoError(t, err, tc)
			require.Equal(t, "hunter2", text)
			continue
		}

		require.True(t, fault.Is(err, fault.Forbidden), "%v", tc)
		require.Empty(t, text)
		require.NotContains(t, err.Error(), "hunter2")
	}

	_, err := New("key", "hunter2", []string{"api.example.com"}).ForProgram("d/j")
	require.True(t, fault.Is(err, fault.Forbidden))
	text, err := New("key", "hunter2", nil).Granted().ForProgram("d/j")
	require.NoError(t, err)
	require.Equal(t, "hunter2", text)
	for _, bad := range []string{"", "https://x", "x/y", "x y", "*.example.com", "user@x", "x:port", "ftp://x",
		"x:65536", "http://x:99999", "x:0", "https://*", "*:8443"} {
		require.Error(t, ValidHost(bad), bad)
	}
}

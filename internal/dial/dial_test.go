package dial_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
)

func TestRefusedAddresses(t *testing.T) {
	t.Parallel()
	d, err := dial.New(dial.Config{})
	require.NoError(t, err)
	for _, address := range []string{
		"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1",
		"192.0.0.8", "198.18.0.1", "224.0.0.1", "255.255.255.255",
		"240.0.0.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
		"::ffff:169.254.169.254", "::127.0.0.1",
		"::ffff:0:127.0.0.1", "::ffff:0:a9fe:a9fe",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:db8::1", "2001::1",
		"fec0::1", "localhost",
	} {
		_, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(address, "9"))
		require.True(t, fault.Is(err, fault.Forbidden), "%s: %v", address, err)
	}
}

// Errors name a host as the user does, and neither its address nor who resolves it.
func TestErrorsDoNotTellAddresses(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(closed.Addr().String())
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	strict, err := dial.New(dial.Config{})
	require.NoError(t, err)
	open, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8", "::1/128"}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		dialer *dial.Dialer
		host   string
	}{
		"not allowed":  {strict, "localhost"},
		"nobody there": {open, "localhost"},
		"no such name": {open, "none.such.invalid"},
	} {
		_, err := c.dialer.Client(time.Minute).Get("http://" + net.JoinHostPort(c.host, port) + "/")
		require.ErrorContains(t, err, c.host, name)
		require.NotRegexp(t, `\d+\.\d+\.\d+\.\d+|::1`, err.Error(), name)
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	t.Cleanup(server.Close)
	for allowed, want := range map[string]bool{"127.0.0.0/8": true, "127.0.0.1/32": true, "10.0.0.0/8": false,
		"::1/128": false} {
		d, err := dial.New(dial.Config{Allowed: []string{allowed}})
		require.NoError(t, err)
		response, err := d.Client(time.Minute).Get(server.URL)
		if !want {
			require.True(t, fault.Is(err, fault.Forbidden), "%s: %v", allowed, err)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}

	// An IPv4 address that is written as IPv6 is treated like the IPv4 address.
	d, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	_, err = d.DialContext(t.Context(), "tcp", net.JoinHostPort("::ffff:10.0.0.1", u.Port()))
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	_, err = dial.New(dial.Config{Allowed: []string{"127.0.0.1"}})
	require.True(t, fault.Is(err, fault.Invalid))
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the redirect was followed")
	}))
	t.Cleanup(other.Close)
	mux := http.NewServeMux()
	mux.Handle("/other", http.RedirectHandler(other.URL, http.StatusFound))
	mux.Handle("/same", http.RedirectHandler("/end", http.StatusFound))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	mux.HandleFunc("/end", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	d, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(t, err)

	client := d.Client(time.Minute)
	_, err = client.Get(server.URL + "/other")
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	_, err = client.Get(server.URL + "/loop")
	require.ErrorContains(t, err, "redirects too often")
	response, err := client.Get(server.URL + "/same")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

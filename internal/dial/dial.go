// Package dial opens connections to addresses that a user can name: sources' URLs, webhooks, issuers, S3 endpoints.
//
// Vocabulary: an address is public if it can be reached from anywhere. Others (private, loopback, link-local and so on)
// belong to the machine or its network, and are refused unless the server's config allows their prefix. The address is
// checked when the connection is made, after the name was resolved, so a name that resolves differently the second time
// gains nothing. It owns no tables.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// Config lists what may be reached.
type Config struct {
	Allowed []string // prefixes (CIDR) that may be reached although they are not public
}

// Dialer connects to the addresses that its Config allows.
type Dialer struct {
	net.Dialer
	allowed []netip.Prefix
}

// New returns a Dialer. It returns an error if a prefix is not valid.
func New(cfg Config) (*Dialer, error) {
	d := &Dialer{Dialer: net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}}
	for _, text := range cfg.Allowed {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fault.New(fault.Invalid, "allowed address %q is not a prefix such as 10.1.0.0/16", text)
		}
		d.allowed = append(d.allowed, prefix.Masked())
	}
	d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error { return d.check(address) }
	return d, nil
}

// DialContext connects to an address. Its errors name the address as the caller does: what a name leads to inside of
// the server's network, or who answers for it there, is nothing that a user may learn.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, err
	}
	if _, notAName := netip.ParseAddr(host); notAName == nil {
		return nil, err
	}

	var (
		unknown *net.DNSError
		failed  *net.OpError
	)
	switch {
	case fault.Is(err, fault.Forbidden):
		return nil, fault.New(fault.Forbidden, "%s may not be reached: its address is not public", host).
			WithHint("an admin can allow its network in the server's config")
	case errors.As(err, &unknown):
		return nil, &net.DNSError{Err: unknown.Err, Name: unknown.Name, IsTimeout: unknown.IsTimeout,
			IsTemporary: unknown.IsTemporary, IsNotFound: unknown.IsNotFound}
	case errors.As(err, &failed):
		return nil, fmt.Errorf("connect to %s: %w", address, failed.Err)
	}
	return nil, fmt.Errorf("connect to %s: %w", address, err)
}

// check returns an error if the address of a connection that is about to be made is not allowed.
func (d *Dialer) check(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fault.New(fault.Forbidden, "address %q may not be reached", address)
	}
	ip := ap.Addr().WithZone("")
	inner := embedded(ip)
	for _, a := range []netip.Addr{ip, inner} {
		if !public(a) && !slices.ContainsFunc(d.allowed, func(p netip.Prefix) bool { return p.Contains(inner) }) {
			return fault.New(fault.Forbidden, "address %s may not be reached: it is not public", ap.Addr()).
				WithHint("an admin can allow its network in the server's config")
		}
	}
	return nil
}

// notPublic are the special-purpose networks of RFC 6890 and its successors that netip's predicates do not cover.
var notPublic = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20",
	"5f00::/16", "fec0::/10",
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool {
		return p.Contains(a)
	})
}

var (
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
	sixTo = netip.MustParsePrefix("2002::/16")
	siit  = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765: IPv4-translated
)

// embedded returns the IPv4 address that an IPv6 address leads to (mapped, translated, NAT64 or 6to4), or the address
// itself.
func embedded(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if !a.Is6() {
		return a
	}
	b := a.As16()
	switch {
	case nat64.Contains(a), siit.Contains(a), b[0]|b[1]|b[2]|b[3]|b[4]|b[5]|b[6]|b[7]|b[8]|b[9]|b[10]|b[11] == 0 &&
		(b[12]|b[13]|b[14]) != 0:
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixTo.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}

// StrictClient is Client without redirects: they could lead elsewhere with what is posted.
func (d *Dialer) StrictClient(timeout time.Duration) *http.Client {
	client := d.Client(timeout)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

// Client returns an HTTP client that connects through the dialer. It uses no proxy from the environment, and follows at
// most five redirects, only to the same host and scheme.
func (d *Dialer) Client(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext:           d.DialContext,
			ForceAttemptHTTP2:     true,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConns:          100,
			MaxIdleConnsPerHost:   4,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if next.URL.Host != via[0].URL.Host || next.URL.Scheme != via[0].URL.Scheme {
				return fault.New(fault.Forbidden, "%s redirects to another host, which is not followed",
					via[0].URL.Host).
					WithHint("name the other address itself, if it is the right one")
			}

			if len(via) > 5 {
				return fault.New(fault.Invalid, "%s redirects too often", via[0].URL.Host)
			}
			return nil
		},
	}
}

package authz

import (
	"crypto/sha256"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// failures bounds how many credentials of one address are looked up and refused. Many callers may share an address,
// that of a proxy, so it never stands between a good credential and its caller for long: what was good before is looked
// up whatever others of the address send, and one in lookAnyway of the others as well, however many there are.
type failures struct {
	limiter *rest.Limiter // by address; nil: no limit

	mu         sync.Mutex
	young, old map[[sha256.Size]byte]bool // hashes of credentials that were good lately
}

const (
	lookAnyway = 8
	goodAtMost = 8192 // entries of young, and of old
)

// guard authenticates the sender of r, which has a credential, by look. If too many credentials from its address have
// been refused it returns a TooMany fault instead, without calling look.
func (f *failures) guard(r *http.Request, credential string, now time.Time, look func() error) error {
	if f.limiter == nil || credential == "" {
		return look()
	}

	from, hash := AddressOf(r), sha256.Sum256([]byte(credential))
	good := f.wasGood(hash)
	if !good && rand.IntN(lookAnyway) > 0 {
		if wait := f.limiter.Has(from, now); wait > 0 {
			return tooManyRefused(wait)
		}
	}

	err := look()
	switch {
	case err == nil && !good:
		f.keep(hash)
	case fault.Is(err, fault.Unauthenticated):
		_ = f.limiter.Take(from, now) // whether the next one is looked up is decided then
	}
	return err
}

// refused counts a credential that was refused without a look at the database, and returns the answer to it. A call
// without any counts as nothing.
func (f *failures) refused(r *http.Request, credential string, cause error, now time.Time) error {
	if f.limiter == nil || credential == "" {
		return cause
	}
	from := AddressOf(r)
	if wait := f.limiter.Has(from, now); wait > 0 {
		return tooManyRefused(wait)
	}
	_ = f.limiter.Take(from, now) // whether the next one is answered so is decided then
	return cause
}

func tooManyRefused(wait time.Duration) error {
	return rest.RetryAfter(fault.New(fault.TooMany, "too many credentials from your address were refused").
		WithHint("wait as long as Retry-After says, and send one that is valid"), wait)
}

// wasGood reports whether a credential was good lately. It may have been revoked since.
func (f *failures) wasGood(hash [sha256.Size]byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.young[hash] || f.old[hash]
}

// keep remembers a good credential. When the young half is full, it drops the older half.
func (f *failures) keep(hash [sha256.Size]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.young == nil || len(f.young) >= goodAtMost {
		f.young, f.old = map[[sha256.Size]byte]bool{}, f.young
	}
	f.young[hash] = true
}

// AddressOf returns the address that r comes from. A customer has a /64 of IPv6, so that counts as one address. Headers
// that name another are not believed: anybody can send them.
func AddressOf(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	a := from.Addr().Unmap().WithZone("")
	if prefix, err := a.Prefix(64); err == nil && a.Is6() {
		return prefix.String()
	}
	return a.String()
}

package authz

import (
	"cmp"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// DevConfig configures how `dagctl dev` authenticates its one user.
type DevConfig struct {
	Org       Org
	Addr      string // where the server listens; a loopback address, or NewDev refuses
	TokenFile string // where NewDev writes the token for the command line, readable by its owner only
	// WorkerTokenFile keeps the token of workers, which NewDev writes in the same way: it stays from start to start, so
	// that workers go on. Empty: the token is that of this start alone.
	WorkerTokenFile string
}

// Dev is the Authenticator of `dagctl dev`: anyone who can read the token file, or open the printed address, is a local
// admin until the process ends.
type Dev struct {
	org     Org
	token   string
	workers string // token of workers
	port    string
	origins []string

	mu       sync.Mutex
	link     string          // secret of the sign-in address of this start
	sessions map[string]bool // by hash of the cookie's value
}

// NewDev creates the tokens of this start and writes them to their files.
func NewDev(cfg DevConfig) (*Dev, error) {
	host, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fault.New(fault.Invalid, "address %q: %w", cfg.Addr, err).
			WithHint("use host:port, such as 127.0.0.1:7070")
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, fault.New(fault.Invalid,
			"dagctl dev lets anyone on this machine in as admin, so it does not listen on %s", cfg.Addr).
			WithHint("use 127.0.0.1, or dagctl serve")
	}

	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return nil, fault.New(fault.Invalid, "address %q: the port must be the one that the server listens on",
			cfg.Addr)
	}
	d := &Dev{
		org: cfg.Org, token: NewSecret("dev"), workers: NewSecret(string(KindWorker)), port: port,
		link: NewSecret("link"), sessions: map[string]bool{},
	}
	if kept := workerTokenIn(cfg.WorkerTokenFile); kept != "" {
		d.workers = kept
	}
	for _, host := range []string{"127.0.0.1", "localhost", "::1"} {
		d.origins = append(d.origins, "http://"+net.JoinHostPort(host, port))
	}
	if ip, err := netip.ParseAddr(host); err == nil && host != "127.0.0.1" && host != "::1" {
		d.origins = append(d.origins, "http://"+net.JoinHostPort(ip.String(), port)) // another of 127.0.0.0/8
	}
	if cfg.WorkerTokenFile != "" {
		if err := writePrivate(cfg.WorkerTokenFile, d.workers+"\n"); err != nil {
			return nil, err
		}
	}
	return d, writePrivate(cfg.TokenFile, d.token+"\n")
}

// workerTokenIn returns the token of workers that an earlier start has written to a file, if there is one.
func workerTokenIn(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	token := strings.TrimSpace(string(text))
	if kind, ok := SecretKind(token); !ok || kind != string(KindWorker) {
		return ""
	}
	return token
}

// writePrivate replaces a file with one that only its owner can read, whatever the mode of the old one.
func writePrivate(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteString(content)
	err = cmp.Or(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Token returns the token of this start, which is also in the token file.
func (d *Dev) Token() string { return d.token }

// WorkerToken returns the token with which workers claim tasks of every runtime while the process runs.
func (d *Dev) WorkerToken() string { return d.workers }

// worker returns the worker that sent r, if r has the token of workers.
func (d *Dev) worker(r *http.Request) (Worker, bool) {
	token, ok := Bearer(r)
	if !ok || subtle.ConstantTimeCompare(HashSecret(token), HashSecret(d.workers)) != 1 {
		return Worker{}, false
	}
	return Worker{OrgID: d.org.ID, TokenName: "(dev)", Orgs: []uuid.UUID{d.org.ID}}, true
}

// Origins returns the addresses that browsers may use.
func (d *Dev) Origins() []string { return d.origins }

// SignInURL returns an address that signs browsers in until the process ends. It works more than once: for a second
// browser, or for one whose cookies were cleared.
func (d *Dev) SignInURL() string { return d.origins[0] + "/?token=" + d.link }

// Caller returns the local admin.
func (d *Dev) Caller() Caller {
	return Caller{OrgID: d.org.ID, OrgSlug: d.org.Slug, Actor: "dev", Role: RoleAdmin}
}

// devCookie begins the names of cookies of dev servers.
const devCookie = "dagctl_dev_"

// cookieName returns a name with the port in it, because browsers share cookies between ports.
func (d *Dev) cookieName() string { return devCookie + d.port }

// Authenticate recognises the token of this start, and the cookie of a browser that signed in.
func (d *Dev) Authenticate(r *http.Request) (Caller, bool, error) {
	if token, ok := Bearer(r); ok {
		if subtle.ConstantTimeCompare(HashSecret(token), HashSecret(d.token)) == 1 {
			return d.Caller(), true, nil
		}
		if kind, ok := SecretKind(token); ok && kind == "dev" {
			return Caller{}, false, fault.New(fault.Unauthenticated, "the token is from another start of dagctl dev").
				WithHint("read the token file again")
		}
		return Caller{}, false, nil
	}

	cookie, err := r.Cookie(d.cookieName())
	if err != nil {
		return Caller{}, false, nil
	}
	d.mu.Lock()
	known := d.sessions[string(HashSecret(cookie.Value))]
	d.mu.Unlock()
	if !known {
		return Caller{}, false, fault.New(fault.Unauthenticated,
			"this browser was signed in to another start of dagctl dev").
			WithHint("open the address that dagctl dev printed")
	}
	caller := d.Caller()
	caller.csrf = csrfToken(cookie.Value)
	return caller, true, nil
}

// signIn exchanges the secret of a sign-in address for a cookie, and redirects to the address without the secret even
// if the secret is wrong. It reports whether it has answered the request.
func (d *Dev) signIn(w http.ResponseWriter, r *http.Request) bool {
	query := r.URL.Query()
	secret := query.Get("token")
	if secret == "" || r.Method != http.MethodGet {
		return false
	}
	if subtle.ConstantTimeCompare(HashSecret(secret), HashSecret(d.link)) == 1 {
		session := NewSecret("session")
		d.mu.Lock()
		d.sessions[string(HashSecret(session))] = true
		d.mu.Unlock()
		http.SetCookie(w, &http.Cookie{
			Name: d.cookieName(), Value: session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
			Secure: false, // loopback is served without TLS
		})
	}
	query.Del("token")

	// Two slashes at the beginning would name a host.
	there := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/\\"), RawQuery: query.Encode()}
	http.Redirect(w, r, there.String(), http.StatusSeeOther)
	return true
}

package pg

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
)

// RequestRole is the role that holds the rights of requests. A migration creates it; it owns nothing, and row-level
// security applies to it. Nobody logs in as it: requests log in as a member of it, see RequestLogin.
const RequestRole = "dagctl_app"

// longestRole is the most bytes that PostgreSQL keeps of a role's name.
const longestRole = 63

// Login is the role by which requests log in. It is a member of RequestRole and of no other role, so that nothing that
// a request says makes it anybody else.
type Login struct {
	Name string
	// Given reports whether the config names the role and its password. Otherwise both are derived from the owner's.
	Given    bool
	password string
}

// RequestLogin returns the login of requests: the user of a URL of their own, or a role beside the owner of the
// database, with a password that only who knows the owner's can compute. So all servers agree on it, and it is stored
// nowhere.
func RequestLogin(ownerURL, requestsURL string) (Login, error) {
	cfg, err := pgxpool.ParseConfig(cmp.Or(requestsURL, ownerURL))
	if err != nil {
		return Login{}, badURL(err)
	}
	if requestsURL != "" {
		return Login{Name: cfg.ConnConfig.User, Given: true, password: cfg.ConnConfig.Password}, nil
	}
	return loginBeside(cfg), nil
}

// loginBeside derives the login of requests from that of the owner. Databases of one owner share it; those of others
// have another one, as roles belong to the whole cluster.
func loginBeside(owner *pgxpool.Config) Login {
	const suffix = "_requests"
	name := owner.ConnConfig.User + suffix
	if len(name) > longestRole {
		sum := sha256.Sum256([]byte(name))
		name = "dagctl_" + hex.EncodeToString(sum[:8]) + suffix
	}

	login := Login{Name: name}
	if secret := owner.ConnConfig.Password; secret != "" { // otherwise the server trusts, or asks for something else
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte("dagctl: login of requests: " + name))
		login.password = hex.EncodeToString(mac.Sum(nil))
	}
	return login
}

// Verifier returns what the server stores of the password, hashed here so that the password never gets into its log.
// It is empty if there is no password. method is the server's password_encryption.
func (l Login) Verifier(method string) (string, error) {
	if l.password == "" {
		return "", nil
	}
	if method == "md5" {
		sum := md5.Sum([]byte(l.password + l.Name))
		return "md5" + hex.EncodeToString(sum[:]), nil
	}

	// RFC 5803; the password is hexadecimal, so SASLprep leaves it as it is.
	const iterations = 4096
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // which never fails
	salted, err := pbkdf2.Key(sha256.New, l.password, salt, iterations, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("hash the password of role %s: %w", l.Name, err)
	}
	keyed := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(keyed("Client Key"))
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, text(salt), text(stored[:]),
		text(keyed("Server Key"))), nil
}

// WithRequestsURL makes OpenRequests log in by a URL of its own. An empty one changes nothing.
func WithRequestsURL(url string) Option {
	return func(c *pgxpool.Config) {
		if own, err := pgxpool.ParseConfig(url); url != "" && err == nil {
			defaults(own)
			c.ConnConfig = own.ConnConfig
		}
	}
}

// OpenRequests opens the pool for users' requests on the owner's database. Its connections log in as RequestLogin.
func OpenRequests(ctx context.Context, url string, opts ...Option) (*pgxpool.Pool, error) {
	as := ""
	asLogin := func(c *pgxpool.Config) {
		login := loginBeside(c)
		c.ConnConfig.User, c.ConnConfig.Password, as = login.Name, login.password, login.Name
		for _, name := range []string{"role", "session_authorization"} { // the owner's
			delete(c.ConnConfig.RuntimeParams, name)
		}
	}
	named := func(c *pgxpool.Config) { as = c.ConnConfig.User }

	pool, err := open(ctx, url, append(append([]Option{asLogin}, opts...), named)...)
	if err != nil && RefusesLogin(err) {
		return nil, fault.New(fault.Unavailable, "requests cannot log in as %s: %w", as, err).
			WithHint("run `dagctl migrate`, which makes the role, or set requests_database_url")
	}
	return pool, err
}

// RefusesLogin reports whether the server answered, and did not accept the user or the password.
func RefusesLogin(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && len(said.Code) == 5 && said.Code[:2] == "28"
}

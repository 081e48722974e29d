package authz

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/secret"
)

// Vault keeps the secrets that DAG files name as {secret: NAME}. It encrypts values with AES-256-GCM under a key that
// is not in the database, bound to their org and name, so that no row can stand in for another. No call shows a value
// again: lists have only names and bindings. Only a task that runs in the server's own process, of a job to which an
// admin bound the secret, gets the value.
type Vault struct {
	owner, requests *pgxpool.Pool
	keys            []vaultKey // the first encrypts, each decrypts
	users           SecretUsers
	programs        Programs
	lacking         atomic.Pointer[[]string] // see Lacking
}

// SecretUsers returns what uses a secret at present: DAG/JOB, or DAG for a DAG's notifications, sorted.
type SecretUsers func(ctx context.Context, tx pgx.Tx, org uuid.UUID, name string) ([]string, error)

// VaultConfig has the settings of a Vault.
type VaultConfig struct {
	Owner    *pgxpool.Pool // reads values, which the requests' role cannot
	Requests *pgxpool.Pool
	Keys     []string    // base64 of 32 bytes each, the newest first; if there are none, the server keeps no secrets
	Users    SecretUsers // nil: no secret is in use, so each can be deleted
	Programs Programs    // nil: there are no jobs, so only programs named by their hash can be granted a secret
}

type vaultKey struct {
	id   string // beginning of the key's SHA-256
	aead cipher.AEAD
}

// NewVault returns a Vault. It returns an error if a key is not valid.
func NewVault(c VaultConfig) (*Vault, error) {
	v := &Vault{owner: c.Owner, requests: c.Requests, users: c.Users,
		programs: c.Programs}
	if v.programs == nil {
		v.programs = func(context.Context, pgx.Tx, uuid.UUID, string) (map[string]string, error) { return nil, nil }
	}
	for i, text := range c.Keys {
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil || len(key) != 32 {
			return nil, fault.New(fault.Invalid, "secrets key %d is not base64 of 32 bytes", i+1).
				WithHint("create one with `openssl rand -base64 32`")
		}

		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(key)
		v.keys = append(v.keys, vaultKey{hex.EncodeToString(sum[:4]), aead})
	}
	return v, nil
}

// NewVaultKey returns a new random key.
func NewVaultKey() string {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the process instead
	return base64.StdEncoding.EncodeToString(key[:])
}

func (v *Vault) open() error {
	if v != nil && len(v.keys) > 0 {
		return nil
	}
	return fault.New(fault.Conflict, "this server keeps no secrets: it has no key to encrypt them with").
		WithHint("its administrator must set DAGCTL_SECRETS_KEY; `openssl rand -base64 32` creates a key")
}

// sealedFor returns the data that a ciphertext is bound to.
func sealedFor(org uuid.UUID, name string) []byte { return []byte(org.String() + "/" + name) }

func (v *Vault) seal(org uuid.UUID, name, value string) (ciphertext []byte, keyID string) {
	key := v.keys[0]
	nonce := make([]byte, key.aead.NonceSize())
	_, _ = rand.Read(nonce)
	return key.aead.Seal(nonce, nonce, []byte(value), sealedFor(org, name)), key.id
}

func (v *Vault) unseal(org uuid.UUID, name string, ciphertext []byte, keyID string) (string, error) {
	for _, key := range v.keys {
		if n := key.aead.NonceSize(); key.id == keyID && len(ciphertext) > n {
			value, err := key.aead.Open(nil, ciphertext[:n], ciphertext[n:], sealedFor(org, name))
			if err != nil {
				return "", fault.New(fault.Internal, "secret %s cannot be decrypted with its key", name).
					WithHint("an admin must set it again")
			}
			return string(value), nil
		}
	}
	return "", fault.New(fault.Unavailable, "secret %s was encrypted with the key %s, which this server does not have",
		name, keyID).
		WithHint("add that key to DAGCTL_SECRETS_KEY, or set the secret again")
}

// Secret is a secret as people see it: without its value.
type Secret struct {
	Name      string    `json:"name"`
	Jobs      []string  `json:"jobs" doc:"What may use it: DAG/JOB, or DAG for a DAG's notifications"`
	Hosts     []string  `json:"hosts" doc:"Where requests may send it"`
	Programs  []string  `json:"programs" doc:"The programs that may have it: DAG/JOB@PROGRAM"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Until when others may still sign with the value before
	PreviousUntil *time.Time `json:"previous_until,omitempty" doc:"Until when the previous value counts; absent: it does not"`
	OldKey        bool       `json:"old_key,omitempty" db:"-" doc:"Encrypted with a key that is not the server's newest"`
	KeyMissing    bool       `json:"key_missing,omitempty" db:"-" doc:"Encrypted with a key that the server does not have: nothing can use it"`

	KeyIDs []string `json:"-"` // the keys that its values are encrypted with
}

const (
	secretColumns = `name, jobs, hosts, programs, created_at, updated_at,
		CASE WHEN previous_until > now() THEN previous_until END, array_remove(ARRAY[key_id, previous_key_id], NULL)`
	maxSecretValue = 64 << 10
	maxBindings    = 200
)

var (
	goodSecretName = late.Pattern(`^[A-Za-z][A-Za-z0-9_.-]{0,126}$`) // as in DAG files
	goodProgram    = late.Pattern(`^[0-9a-f]{32}$`)
	goodSecretUser = late.Pattern(`^[a-z][a-z0-9_-]{0,62}(/[a-z][a-z0-9_-]{0,62})?$`)
)

func updateSecret(ctx context.Context, tx pgx.Tx, caller Caller, sql, name string, args ...any) (Secret, error) {
	rows, err := tx.Query(ctx, sql, append([]any{caller.OrgID, name}, args...)...)
	if err != nil {
		return Secret{}, fmt.Errorf("change secret %s: %w", name, err)
	}
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Secret])
	if errors.Is(err, pgx.ErrNoRows) {
		return Secret{}, fault.New(fault.NotFound, "there is no secret %q", name).
			WithHint("`dagctl secrets list` shows them")
	}
	if err != nil {
		return Secret{}, fmt.Errorf("change secret %s: %w", name, err)
	}
	return s, nil
}

// ListSecrets returns the org's secrets by name.
func (v *Vault) ListSecrets(ctx context.Context, caller Caller, page rest.PageInput) (
	list rest.List[Secret], err error) {
	var after string
	if _, err := page.After(&after); err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, v.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+secretColumns+` FROM secrets
			WHERE org_id = $1 AND name > $2 ORDER BY name LIMIT $3`, // secrets_org_id_name_key
			caller.OrgID, after, page.Limit+1)
		if err != nil {
			return err
		}
		secrets, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Secret])
		if err != nil {
			return err
		}
		for i := range secrets {
			secrets[i].KeyMissing = v.lacks(secrets[i].KeyIDs...)
			secrets[i].OldKey = !secrets[i].KeyMissing && v.old(secrets[i].KeyIDs...)
		}
		list, err = rest.NewList(secrets, page.Limit, func(s Secret) any { return s.Name })
		return err
	})
	if err != nil {
		return list, fmt.Errorf("list secrets: %w", err)
	}
	return list, nil
}

// GetSecret returns a secret without its value.
func (v *Vault) GetSecret(ctx context.Context, caller Caller, name string) (s Secret, err error) {
	err = pg.InOrgTx(ctx, v.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		s, err = updateSecret(ctx, tx, caller,
			`SELECT `+secretColumns+` FROM secrets WHERE org_id = $1 AND name = $2`, name)
		return err
	})
	s.KeyMissing = v.lacks(s.KeyIDs...)
	s.OldKey = !s.KeyMissing && v.old(s.KeyIDs...)
	return s, err
}

// DeleteSecret deletes a secret. It refuses while something that the secret is bound to uses it.
func (v *Vault) DeleteSecret(ctx context.Context, caller Caller, name string, dryRun bool) error {
	return pg.InOrgTx(ctx, v.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := v.checkUnused(ctx, tx, caller, name); err != nil || dryRun {
			return err
		}
		before, err := updateSecret(ctx, tx, caller,
			`DELETE FROM secrets WHERE org_id = $1 AND name = $2 RETURNING `+secretColumns, name)
		if err != nil {
			return err
		}
		return Audit(ctx, tx, caller, "secret.delete", "secret:"+name, Change{Before: bindings(before)})
	})
}

// checkUnused locks a secret against deploys that would use it, and returns an error if something uses it already.
func (v *Vault) checkUnused(ctx context.Context, tx pgx.Tx, caller Caller, name string) error {
	s, err := updateSecret(ctx, tx, caller,
		`SELECT `+secretColumns+` FROM secrets WHERE org_id = $1 AND name = $2 FOR UPDATE`, name)
	if err != nil || v.users == nil {
		return err
	}

	users, err := v.users(ctx, tx, caller.OrgID, name)
	if err != nil {
		return err
	}
	users = slices.DeleteFunc(users, func(by string) bool { return !slices.Contains(s.Jobs, by) })
	if len(users) == 0 {
		return nil
	}
	return fault.New(fault.Conflict, "secret %s is used by %s", name, strings.Join(users, ", ")).
		WithHint("deploy without it first; `dagctl secrets set %s` replaces its value, and "+
			"`dagctl secrets bind %s --job %s --remove` takes it away at once", name, name, users[0])
}

// Binding changes what may use a secret, and where it may be sent.
type Binding struct {
	AddJobs     []string `json:"add_jobs,omitempty" maxItems:"200" doc:"DAG/JOB, or DAG for a DAG's notifications"`
	RemoveJobs  []string `json:"remove_jobs,omitempty" maxItems:"200"`
	AddHosts    []string `json:"add_hosts,omitempty" maxItems:"200" doc:"HOST, HOST:PORT, http://HOST:PORT, * for any host with TLS, or http://* for any without"`
	RemoveHosts []string `json:"remove_hosts,omitempty" maxItems:"200"`

	AddPrograms    []string `json:"add_programs,omitempty" maxItems:"200" doc:"DAG/JOB@PROGRAM, or DAG/JOB as it is now"`
	RemovePrograms []string `json:"remove_programs,omitempty" maxItems:"200"`
}

func (b Binding) validate() *fault.Error {
	var problems []fault.Problem
	for i, job := range b.AddJobs {
		if !goodSecretUser.MatchString(job) {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.add_jobs[%d]", i),
				Message: fmt.Sprintf("%q is neither DAG/JOB nor DAG", job)})
		}
	}

	for i, job := range b.AddPrograms {
		if err := validProgram(job); err != nil {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.add_programs[%d]", i),
				Message: err.Error()})
		}
	}
	for i, host := range b.AddHosts {
		if err := secret.ValidHost(host); err != nil {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.add_hosts[%d]", i),
				Message: err.Error()})
		}
	}
	if len(problems) > 0 {
		return &fault.Error{Kind: fault.Invalid, Message: problems[0].Message, Problems: problems}
	}
	return nil
}

// BindSecret changes a secret's bindings.
func (v *Vault) BindSecret(ctx context.Context, caller Caller, name string, b Binding) (s Secret, err error) {
	if err := b.validate(); err != nil {
		return s, err.WithHint("name each as it is deployed: `dagctl secrets bind %s --job DAG/JOB --host HOST`, or "+
			"`--program DAG/JOB`", name)
	}
	err = pg.InOrgTx(ctx, v.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := updateSecret(ctx, tx, caller,
			`SELECT `+secretColumns+` FROM secrets WHERE org_id = $1 AND name = $2 FOR UPDATE`, name)
		if err != nil {
			return err
		}
		if err := b.checkRemoved(before); err != nil {
			return err
		}
		grants, err := v.grants(ctx, tx, caller.OrgID, b.AddPrograms)
		if err != nil {
			return err
		}

		hosts, programs := changed(before.Hosts, b.AddHosts, b.RemoveHosts), regranted(before.Programs, grants, b)
		jobs := rebound(before, programs, b)
		if max(len(jobs), len(hosts), len(programs)) > maxBindings {
			return fault.New(fault.TooLarge, "a secret is bound to %d jobs, hosts and programs at most", maxBindings).
				WithHint("take away what is not used any more: `dagctl secrets bind %s --job DAG/JOB --remove`", name)
		}

		s, err = updateSecret(ctx, tx, caller, `
			UPDATE secrets SET jobs = $3, hosts = $4, programs = $5, updated_at = now()
			WHERE org_id = $1 AND name = $2
			RETURNING `+secretColumns, name, jobs, hosts, programs)
		if err != nil {
			return err
		}
		return Audit(ctx, tx, caller, "secret.bind",
			"secret:"+name, Change{Before: bindings(before), After: bindings(s)})
	})
	return s, err
}

func bindings(s Secret) map[string]any {
	return map[string]any{"jobs": s.Jobs, "hosts": s.Hosts, "programs": s.Programs}
}

// changed returns a set with some elements added and others removed, sorted.
func changed(before, add, remove []string) []string {
	after := slices.DeleteFunc(append(slices.Clone(before), add...), func(s string) bool {
		return slices.Contains(remove, s)
	})
	slices.Sort(after)
	return slices.Compact(after)
}

// SecretUse is a place in a document that names a secret.
type SecretUse struct {
	Name string
	By   SecretUser
	At   string // "dag.yaml:3:7"
	// To is where the secret goes: the URL of a request, or "*" for the job's program. Empty: nowhere, or not known
	// yet.
	To string
}

// goes returns an error if no admin bound the secret to where it goes.
func (use SecretUse) goes(value secret.Value) (refused *fault.Error) {
	var err error
	if use.To == secret.Anywhere {
		_, err = value.ForProgram(use.By.Name)
	} else if u, malformed := url.Parse(use.To); malformed == nil && u.Host != "" {
		_, err = value.For(u)
	}
	errors.As(err, &refused)
	return refused
}

// CheckSecrets returns an error for secrets that do not exist, or that are not bound to their user and destination.
func (v *Vault) CheckSecrets(ctx context.Context, tx pgx.Tx, org uuid.UUID, uses []SecretUse) error {
	if len(uses) == 0 {
		return nil
	}
	if err := v.open(); err != nil {
		return err
	}
	names := make([]string, len(uses))
	for i, use := range uses {
		names[i] = use.Name
	}
	rows, err := tx.Query(ctx, `
		SELECT name, jobs, hosts, programs FROM secrets
		WHERE org_id = $1 AND name = ANY($2) ORDER BY name FOR SHARE`, org, names)
	if err != nil {
		return fmt.Errorf("check secrets: %w", err)
	}
	found := map[string]Secret{}
	var s Secret
	if _, err := pgx.ForEachRow(rows, []any{&s.Name, &s.Jobs, &s.Hosts, &s.Programs}, func() error {
		found[s.Name] = s
		return nil
	}); err != nil {
		return fmt.Errorf("check secrets: %w", err)
	}

	var problems []fault.Problem
	var hint string
	for _, use := range uses {
		if s := found[use.Name]; slices.Contains(s.Jobs, use.By.Name) {
			if err := use.goes(s.value("", use.By)); err != nil {
				problems = append(problems, fault.Problem{Location: use.At, Code: "secret",
					Message: fmt.Sprintf("%s: %v", use.By.Name, err)})
				hint = err.Hint
			}
			continue
		}

		// One message for both cases, so that nobody can find out names by guessing.
		problems = append(problems, fault.Problem{Location: use.At, Code: "secret",
			Message: fmt.Sprintf("secret %s is not there, or is not bound to %s", use.Name, use.By.Name)})
		hint = use.By.bind(use.Name)
	}
	if len(problems) == 0 {
		return nil
	}

	e := fault.New(fault.Invalid, "%s", problems[0].Message).WithHint("%s", hint)
	e.Problems = problems
	return e
}

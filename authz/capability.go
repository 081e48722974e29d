package authz

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Capability is what one attempt of one task may do, as its capability token says. It is all that a running task has to
// show: no worker token, no database, no role.
type Capability struct {
	OrgID, TaskID uuid.UUID
	Attempt       int
	Datasets      []uuid.UUID // that it reads and writes
	Prefixes      []string    // of storage, that it may upload to
	ExpiresAt     time.Time   // in whole seconds
}

// Covers returns a Forbidden fault where a call names another task or attempt than the token was made for.
func (c Capability) Covers(f protocol.Fence) error {
	if c.TaskID == f.TaskID && c.Attempt == f.Attempt {
		return nil
	}
	return fault.New(fault.Forbidden, "the capability token is for attempt %d of task %s, and the call names attempt %d of task %s",
		c.Attempt, c.TaskID, f.Attempt, f.TaskID).WithHint("send the token that came with the claim of this attempt")
}

// What every capability token says of itself, so that no other JWT can stand in for one.
const (
	capabilityType     = "dagctl-task+jwt"
	capabilityAudience = "dagctl.task"
)

// capabilityClaims are the claims of a capability token. exp, iss, aud and sub are the registered ones.
type capabilityClaims struct {
	jwt.Claims
	OrgID    uuid.UUID   `json:"org_id"`
	TaskID   uuid.UUID   `json:"task_id"`
	Attempt  int         `json:"attempt"`
	Datasets []uuid.UUID `json:"datasets,omitempty"`
	Prefixes []string    `json:"prefixes,omitempty"`
}

// Signer makes and checks capability tokens. Its first key signs and every key verifies, so that keys can be changed while
// tasks run.
type Signer struct {
	issuer string
	keys   []TaskKey
	sign   jose.Signer // nil without keys
	known  knownTokens
}

// SignerConfig is what a Signer needs.
type SignerConfig struct {
	Issuer string    // of the installation, such as its base URL; tokens of others are refused
	Keys   []TaskKey // the newest first. The first must be able to sign. None: no task gets a token
}

// NewSigner checks the keys.
func NewSigner(c SignerConfig) (*Signer, error) {
	if c.Issuer == "" {
		return nil, fault.New(fault.Invalid, "capability tokens need an issuer")
	}
	s := &Signer{issuer: c.Issuer, keys: c.Keys}
	if len(c.Keys) == 0 {
		return s, nil
	}
	first := c.Keys[0]
	if first.private == nil {
		return nil, fault.New(fault.Invalid, "%s holds a public key only, and the first key of tasks has to sign", first.Source).
			WithHint("put a private key, or a KMS key, before it")
	}
	var err error
	s.sign, err = jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: first.private, KeyID: first.ID}},
		(&jose.SignerOptions{}).WithType(capabilityType))
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s cannot sign: %w", first.Source, err)
	}
	return s, nil
}

// CanIssue reports whether there is a key to sign with.
func (s *Signer) CanIssue() bool { return s != nil && s.sign != nil }

// Issue makes the token of one attempt. With a KMS key it asks KMS, so it does not belong inside a transaction.
func (s *Signer) Issue(c Capability, now time.Time) (string, error) {
	if !s.CanIssue() {
		return "", fault.New(fault.Unavailable, "this server has no key for capability tokens, so no task can run outside of it").
			WithHint("set tasks.key_files or tasks.kms_key_id in the server's config")
	}
	if c.OrgID == uuid.Nil || c.TaskID == uuid.Nil || c.Attempt < 1 || !c.ExpiresAt.After(now) {
		return "", fault.New(fault.Internal, "capability token of task %s attempt %d: incomplete, or over at %s already", c.TaskID, c.Attempt, c.ExpiresAt)
	}
	expires := jwt.NewNumericDate(c.ExpiresAt)
	token, err := s.signed(capabilityClaims{
		Claims: jwt.Claims{Issuer: s.issuer, Audience: jwt.Audience{capabilityAudience}, Subject: capabilitySubject(c.TaskID), Expiry: expires},
		OrgID:  c.OrgID, TaskID: c.TaskID, Attempt: c.Attempt, Datasets: c.Datasets, Prefixes: c.Prefixes,
	})
	if err != nil {
		return "", fault.New(fault.Unavailable, "sign the capability token of task %s: %w", c.TaskID, err)
	}
	c.ExpiresAt = expires.Time()
	s.known.put(token, c)
	return token, nil
}

// signed is claims as a JWT. A jwt.Builder would encode them twice.
func (s *Signer) signed(claims capabilityClaims) (string, error) {
	text, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed, err := s.sign.Sign(text)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

func capabilitySubject(task uuid.UUID) string { return "task:" + task.String() }

// Verify reads a token that one of the keys signed. Every other one is an Unauthenticated fault that says no more than
// whether the token was good once.
func (s *Signer) Verify(token string, now time.Time) (Capability, error) {
	if s == nil {
		return Capability{}, badCapability()
	}
	c, ok := s.known.get(token)
	if !ok {
		var err error
		if c, err = s.read(token, now); err != nil {
			return Capability{}, err
		}
	}
	if !now.Before(c.ExpiresAt) {
		return Capability{}, expiredCapability()
	}
	if !ok {
		s.known.put(token, c)
	}
	return c, nil
}

// read checks all of a token but its end.
func (s *Signer) read(token string, now time.Time) (Capability, error) {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(parsed.Headers) != 1 || parsed.Headers[0].ExtraHeaders[jose.HeaderType] != capabilityType {
		return Capability{}, badCapability()
	}
	key, ok := s.key(parsed.Headers[0].KeyID)
	if !ok {
		return Capability{}, badCapability()
	}
	var claims capabilityClaims
	if err := parsed.Claims(key.public, &claims); err != nil {
		return Capability{}, badCapability()
	}
	if claims.Issuer != s.issuer || len(claims.Audience) != 1 || claims.Audience[0] != capabilityAudience ||
		claims.Subject != capabilitySubject(claims.TaskID) || claims.Expiry == nil ||
		claims.OrgID == uuid.Nil || claims.TaskID == uuid.Nil || claims.Attempt < 1 {
		return Capability{}, badCapability()
	}
	if claims.NotBefore != nil && now.Before(claims.NotBefore.Time()) {
		return Capability{}, expiredCapability()
	}
	return Capability{OrgID: claims.OrgID, TaskID: claims.TaskID, Attempt: claims.Attempt, Datasets: claims.Datasets, Prefixes: claims.Prefixes,
		ExpiresAt: claims.Expiry.Time()}, nil
}

func badCapability() error {
	return fault.New(fault.Unauthenticated, "the capability token is not valid").
		WithHint("send the token that came with the claim, or the one that a heartbeat renewed it with")
}

func expiredCapability() error {
	return fault.New(fault.Unauthenticated, "the capability token has expired").
		WithHint("a heartbeat in time renews it; after that the task is another attempt's")
}

func (s *Signer) key(id string) (TaskKey, bool) {
	for _, k := range s.keys {
		if k.ID == id {
			return k, true
		}
	}
	return TaskKey{}, false
}

// KeySet is a JWK set (RFC 7517) of keys on P-256.
type KeySet struct {
	Keys []PublicKey `json:"keys" nullable:"false"`
}

// PublicKey is one public key of a KeySet.
type PublicKey struct {
	KeyType   string `json:"kty" enum:"EC"`
	Curve     string `json:"crv" enum:"P-256"`
	X         string `json:"x"`
	Y         string `json:"y"`
	ID        string `json:"kid" doc:"In the header of the tokens that the key signed"`
	Algorithm string `json:"alg" enum:"ES256"`
	Use       string `json:"use" enum:"sig"`
}

// JWKS are the public halves of all keys, the one that signs first.
func (s *Signer) JWKS() KeySet {
	set := KeySet{Keys: []PublicKey{}}
	for _, k := range s.keys {
		set.Keys = append(set.Keys, k.jwk)
	}
	return set
}

// authenticateTask recognises the capability token of r.
func (s *Signer) authenticateTask(r *http.Request, now time.Time) (Capability, error) {
	token := r.Header.Get(protocol.CapabilityHeader)
	if token == "" {
		return Capability{}, fault.New(fault.Unauthenticated, "this needs a capability token").
			WithHint("send the header %s with the token that came with the claim", protocol.CapabilityHeader)
	}
	return s.Verify(token, now)
}

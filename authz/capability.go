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

// Capability is what one attempt of one task may do, according to its capability token. A running task has no other
// credential: no worker token, no database, no role.
type Capability struct {
	OrgID, TaskID uuid.UUID
	Attempt       int
	Datasets      []uuid.UUID // those it reads and writes
	Prefixes      []string    // of storage: those it may upload to
	ExpiresAt     time.Time   // in whole seconds
}

// Covers returns a Forbidden fault if a call names another task or attempt than the token was issued for.
func (c Capability) Covers(f protocol.Fence) error {
	if c.TaskID == f.TaskID && c.Attempt == f.Attempt {
		return nil
	}
	return fault.New(fault.Forbidden,
		"the capability token is for attempt %d of task %s, but the call names attempt %d of task %s",
		c.Attempt, c.TaskID, f.Attempt, f.TaskID).WithHint("send the token that came with the claim of this attempt")
}

// The type and audience of every capability token, so that no other JWT can stand in for one.
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

// Signer issues and verifies capability tokens. Its first key signs and every key verifies, so that keys can be changed
// while tasks run.
type Signer struct {
	issuer string
	keys   []TaskKey
	sign   jose.Signer // nil without keys
	known  knownTokens
}

// SignerConfig has the settings of a Signer.
type SignerConfig struct {
	Issuer string    // names the installation, such as its base URL; tokens of other issuers are refused
	Keys   []TaskKey // the newest first; the first must be able to sign. If there are none, no task gets a token
}

// NewSigner returns a Signer. It returns an error if the first key cannot sign.
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
		return nil, fault.New(fault.Invalid, "%s holds only a public key, but the first key of tasks must sign",
			first.Source).
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

// Issue returns the token of one attempt. With a KMS key it calls KMS, so callers must not hold a transaction open.
func (s *Signer) Issue(c Capability, now time.Time) (string, error) {
	if !s.CanIssue() {
		return "", fault.New(fault.Unavailable,
			"this server has no key for capability tokens, so no task can run outside of it").
			WithHint("set tasks.key_files or tasks.kms_key_id in the server's config")
	}
	if c.OrgID == uuid.Nil || c.TaskID == uuid.Nil || c.Attempt < 1 || !c.ExpiresAt.After(now) {
		return "", fault.New(fault.Internal, "capability token of task %s attempt %d: incomplete, or already expired "+
			"at %s",
			c.TaskID, c.Attempt, c.ExpiresAt)
	}

	expires := jwt.NewNumericDate(c.ExpiresAt)
	token, err := s.signed(capabilityClaims{
		Claims: jwt.Claims{
			Issuer:   s.issuer,
			Audience: jwt.Audience{capabilityAudience},
			Subject:  capabilitySubject(c.TaskID),
			Expiry:   expires,
		},
		OrgID:    c.OrgID,
		TaskID:   c.TaskID,
		Attempt:  c.Attempt,
		Datasets: c.Datasets,
		Prefixes: c.Prefixes,
	})
	if err != nil {
		return "", fault.New(fault.Unavailable, "sign the capability token of task %s: %w", c.TaskID, err)
	}

	c.ExpiresAt = expires.Time()
	s.known.put(token, c)
	return token, nil
}

// signed returns claims as a signed JWT. A jwt.Builder would encode them twice.
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

// Verify returns the capability of a token that one of the keys signed. For any other token it returns an
// Unauthenticated fault, which reveals no more than whether the token was valid once.
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

// read checks everything about a token except that it has not expired.
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
	if !claims.isCapability(s.issuer) {
		return Capability{}, badCapability()
	}
	if claims.NotBefore != nil && now.Before(claims.NotBefore.Time()) {
		return Capability{}, expiredCapability()
	}
	return Capability{
		OrgID:     claims.OrgID,
		TaskID:    claims.TaskID,
		Attempt:   claims.Attempt,
		Datasets:  claims.Datasets,
		Prefixes:  claims.Prefixes,
		ExpiresAt: claims.Expiry.Time(),
	}, nil
}

// isCapability reports whether the claims are those of a complete capability token of the issuer.
func (c *capabilityClaims) isCapability(issuer string) bool {
	registered := c.Issuer == issuer && len(c.Audience) == 1 && c.Audience[0] == capabilityAudience &&
		c.Subject == capabilitySubject(c.TaskID) && c.Expiry != nil
	return registered && c.OrgID != uuid.Nil && c.TaskID != uuid.Nil && c.Attempt >= 1
}

func badCapability() error {
	return fault.New(fault.Unauthenticated, "the capability token is not valid").
		WithHint("send the token that came with the claim, or the one that the last heartbeat returned")
}

func expiredCapability() error {
	return fault.New(fault.Unauthenticated, "the capability token has expired").
		WithHint("a heartbeat before it expires renews it; afterwards another attempt runs the task")
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

// JWKS returns the public halves of all keys. The one that signs comes first.
func (s *Signer) JWKS() KeySet {
	set := KeySet{Keys: []PublicKey{}}
	for _, k := range s.keys {
		set.Keys = append(set.Keys, k.jwk)
	}
	return set
}

// authenticateTask returns the capability of the token that r sends.
func (s *Signer) authenticateTask(r *http.Request, now time.Time) (Capability, error) {
	token := r.Header.Get(protocol.CapabilityHeader)
	if token == "" {
		return Capability{}, fault.New(fault.Unauthenticated, "this needs a capability token").
			WithHint("send the header %s with the token that came with the claim", protocol.CapabilityHeader)
	}
	return s.Verify(token, now)
}

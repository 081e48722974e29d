package authz_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

const issuer = "https://dagctl.example.com"

// taskKey writes a new key to a file and reads it.
func taskKey(t *testing.T, name string) (path string, key authz.TaskKey) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name+".pem")
	key, err := authz.EnsureTaskKey(path)
	require.NoError(t, err)
	return path, key
}

func signer(t *testing.T, keys ...authz.TaskKey) *authz.Signer {
	t.Helper()
	s, err := authz.NewSigner(authz.SignerConfig{Issuer: issuer, Keys: keys})
	require.NoError(t, err)
	return s
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func someCapability() authz.Capability {
	return authz.Capability{
		OrgID: uuid.New(), TaskID: uuid.New(), Attempt: 3, Datasets: []uuid.UUID{uuid.New(), uuid.New()},
		Prefixes: []string{"uploads/a/b/3/"}, ExpiresAt: noon.Add(time.Hour).Local().Truncate(time.Second),
	}
}

func TestACapabilityIsVerifiedAsIssued(t *testing.T) {
	t.Parallel()
	_, key := taskKey(t, "key")
	s, want := signer(t, key), someCapability()
	token, err := s.Issue(want, noon)
	require.NoError(t, err)
	stranger := signer(t, key) // another server, which did not issue the token and therefore checks its signature
	for _, s := range []*authz.Signer{s, stranger, stranger} {
		got, err := s.Verify(token, noon.Add(59*time.Minute))
		require.NoError(t, err)
		require.True(t, want.ExpiresAt.Equal(got.ExpiresAt))
		got.ExpiresAt = want.ExpiresAt
		require.Equal(t, want, got)
		got.Datasets[0], got.Prefixes[0] = uuid.Nil, "/" // the next call must not see this change
	}

	header, claims := part(t, token, 0), part(t, token, 1)
	require.Equal(t, map[string]any{"alg": "ES256", "kid": key.ID, "typ": "dagctl-task+jwt"}, header)
	require.Equal(t, issuer, claims["iss"])
	require.Equal(t, "dagctl.task", claims["aud"])
	require.Equal(t, "task:"+want.TaskID.String(), claims["sub"])
	require.Equal(t, float64(want.ExpiresAt.Unix()), claims["exp"])
	require.Equal(t, want.OrgID.String(), claims["org_id"])
	require.Equal(t, want.TaskID.String(), claims["task_id"])
	require.Equal(t, float64(3), claims["attempt"])
	require.Len(t, claims["datasets"], 2)
	require.Equal(t, []any{"uploads/a/b/3/"}, claims["prefixes"])
}

// part decodes the header or the claims of a token.
func part(t *testing.T, token string, i int) (v map[string]any) {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[i])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

func encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return base64.RawURLEncoding.EncodeToString(text)
}

// forge signs a header and claims without checking them.
func forge(t *testing.T, key any, alg jose.SignatureAlgorithm, header map[jose.HeaderKey]any,
	claims map[string]any) string {
	t.Helper()
	options := &jose.SignerOptions{}
	for name, value := range header {
		options = options.WithHeader(name, value)
	}
	forger, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, options)
	require.NoError(t, err)
	payload, err := json.Marshal(claims)
	require.NoError(t, err)
	signed, err := forger.Sign(payload)
	require.NoError(t, err)
	token, err := signed.CompactSerialize()
	require.NoError(t, err)
	return token
}

func TestInvalidCapabilities(t *testing.T) {
	t.Parallel()
	path, key := taskKey(t, "key")
	_, stranger := taskKey(t, "stranger")
	s := signer(t, key)
	private := privateKey(t, path)
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)

	good := someCapability()
	token, err := s.Issue(good, noon)
	require.NoError(t, err)
	parts := strings.Split(token, ".")
	claims := part(t, token, 1)
	with := func(name string, value any) map[string]any {
		changed := maps.Clone(claims)
		if changed[name] = value; value == nil {
			delete(changed, name)
		}
		return changed
	}
	header := map[jose.HeaderKey]any{"typ": "dagctl-task+jwt", "kid": key.ID}
	typed := func(typ any) map[jose.HeaderKey]any { return map[jose.HeaderKey]any{"typ": typ, "kid": key.ID} }
	es256 := func(header map[jose.HeaderKey]any, claims map[string]any) string {
		return forge(t, private, jose.ES256, header, claims)
	}
	_, err = s.Verify(es256(header, claims), noon)
	require.NoError(t, err, "a forgery with the right key and nothing changed is good, so the others fail for what "+
		"they change")

	foreign, err := signer(t, stranger).Issue(good, noon)
	require.NoError(t, err)
	elsewhere, err := authz.NewSigner(authz.SignerConfig{Issuer: "https://other.example.com",
		Keys: []authz.TaskKey{key}})
	require.NoError(t, err)
	otherInstallation, err := elsewhere.Issue(good, noon)
	require.NoError(t, err)
	flipped := []byte(parts[2])
	flipped[10] ^= 1
	for name, bad := range map[string]string{
		"nothing":         "",
		"junk":            "junk",
		"a service token": "dagctl_worker_" + strings.Repeat("0", 43),
		"alg none": encode(t,
			map[string]any{"alg": "none", "kid": key.ID, "typ": "dagctl-task+jwt"}) + "." + parts[1] + ".",
		"alg none, our signature": encode(t,
			map[string]any{"alg": "none", "kid": key.ID, "typ": "dagctl-task+jwt"}) + "." + parts[1] + "." + parts[2],
		"HS256 with the public key": forge(t, publicPEM, jose.HS256, header, claims),
		"HS256 with the key's DER":  forge(t, public, jose.HS256, header, claims),
		"RS256":                     forge(t, rsaKey, jose.RS256, header, claims),
		"no typ":                    es256(map[jose.HeaderKey]any{"kid": key.ID}, claims),
		"typ JWT":                   es256(typed("JWT"), claims),
		"typ is a number":           es256(typed(7), claims),
		"no kid":                    es256(map[jose.HeaderKey]any{"typ": "dagctl-task+jwt"}, claims),
		"another key's kid": es256(map[jose.HeaderKey]any{"typ": "dagctl-task+jwt", "kid": stranger.ID},
			claims),
		"no aud":                  es256(header, with("aud", nil)),
		"wrong aud":               es256(header, with("aud", "dagctl")),
		"our aud and another":     es256(header, with("aud", []string{"dagctl.task", "else"})),
		"no iss":                  es256(header, with("iss", nil)),
		"wrong iss":               es256(header, with("iss", "https://other.example.com")),
		"another installation":    otherInstallation,
		"another task's sub":      es256(header, with("sub", "task:"+uuid.NewString())),
		"a user's sub":            es256(header, with("sub", "user:"+good.TaskID.String())),
		"no exp":                  es256(header, with("exp", nil)),
		"no org":                  es256(header, with("org_id", nil)),
		"attempt 0":               es256(header, with("attempt", 0)),
		"attempt is text":         es256(header, with("attempt", "3")),
		"not yet":                 es256(header, with("nbf", noon.Add(time.Minute).Unix())),
		"signed by another key":   foreign,
		"its kid said to be ours": forge(t, ecdsaKey(t), jose.ES256, header, claims),
		"a key of its own": forge(t, jose.JSONWebKey{Key: ecdsaKey(t)}, jose.ES256,
			map[jose.HeaderKey]any{"typ": "dagctl-task+jwt"}, claims),
		"claims changed":    parts[0] + "." + encode(t, with("attempt", 4)) + "." + parts[2],
		"signature changed": parts[0] + "." + parts[1] + "." + string(flipped),
		"signature of another's claims": parts[0] + "." + strings.Split(foreign, ".")[1][:20] + parts[1][20:] + "." +
			strings.Split(foreign, ".")[2],
		"signature cut off": parts[0] + "." + parts[1] + "." + parts[2][:40],
		"no signature":      parts[0] + "." + parts[1] + ".",
	} {
		_, err := s.Verify(bad, noon)
		require.True(t, fault.Is(err, fault.Unauthenticated), "%s: %v", name, err)
	}
	fresh := signer(t, key)
	for name, at := range map[string]time.Time{"at its end": good.ExpiresAt, "long after": noon.AddDate(1, 0, 0)} {
		for _, s := range []*authz.Signer{s, fresh} { // the first one issued the token and remembers it
			_, err := s.Verify(token, at)
			require.True(t, fault.Is(err, fault.Unauthenticated), "%s: %v", name, err)
		}
	}
}

func privateKey(t *testing.T, path string) *ecdsa.PrivateKey {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	return key.(*ecdsa.PrivateKey)
}

func ecdsaKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func TestACapabilityCoversOnlyItsAttempt(t *testing.T) {
	t.Parallel()
	c := someCapability()
	require.NoError(t, c.Covers(protocol.Fence{TaskID: c.TaskID, Attempt: 3}))
	for _, f := range []protocol.Fence{{TaskID: c.TaskID, Attempt: 2}, {TaskID: c.TaskID, Attempt: 4},
		{TaskID: uuid.New(), Attempt: 3}, {}} {
		require.True(t, fault.Is(c.Covers(f), fault.Forbidden), "%v", f)
	}
}

func TestKeysRotateWithOverlap(t *testing.T) {
	t.Parallel()
	oldPath, old := taskKey(t, "old")
	_, fresh := taskKey(t, "fresh")
	c := someCapability()
	before, err := signer(t, old).Issue(c, noon)
	require.NoError(t, err)

	// First every server gets the new key, then the new key signs, then the old key is removed.
	announced, both := signer(t, old, fresh), signer(t, fresh, old)
	after, err := both.Issue(c, noon)
	require.NoError(t, err)
	require.NotEqual(t, part(t, before, 0)["kid"], part(t, after, 0)["kid"])
	for _, s := range []*authz.Signer{announced, both} {
		for _, token := range []string{before, after} {
			_, err := s.Verify(token, noon)
			require.NoError(t, err)
		}
		require.Len(t, s.JWKS().Keys, 2)
	}
	// The public half is enough to verify old tokens.
	private := privateKey(t, oldPath)
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(oldPath, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	public, err := authz.ReadTaskKey(oldPath)
	require.NoError(t, err)
	require.Equal(t, old.ID, public.ID)
	_, err = signer(t, fresh, public).Verify(before, noon)
	require.NoError(t, err)
	_, err = authz.NewSigner(authz.SignerConfig{Issuer: issuer, Keys: []authz.TaskKey{public, fresh}})
	require.True(t, fault.Is(err, fault.Invalid), "a public key signs nothing: %v", err)

	_, err = signer(t, fresh).Verify(before, noon)
	require.True(t, fault.Is(err, fault.Unauthenticated), "the old key is removed: %v", err)
	_, err = signer(t).Verify(before, noon)
	require.True(t, fault.Is(err, fault.Unauthenticated), "no key at all: %v", err)
	_, err = signer(t).Issue(c, noon)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
}

// TestStrangersVerifyWithTheJWKS reads the published keys as another program would.
func TestStrangersVerifyWithTheJWKS(t *testing.T) {
	t.Parallel()
	_, old := taskKey(t, "old")
	_, fresh := taskKey(t, "fresh")
	s := signer(t, fresh, old)
	text, err := json.Marshal(s.JWKS())
	require.NoError(t, err)
	require.NotContains(t, string(text), `"d"`)
	var set jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal(text, &set))
	require.Len(t, set.Keys, 2)

	for i, key := range set.Keys {
		require.True(t, key.Valid() && key.IsPublic())
		require.Equal(t, []authz.TaskKey{fresh, old}[i].ID, key.KeyID)
		thumbprint, err := key.Thumbprint(crypto.SHA256)
		require.NoError(t, err)
		require.Equal(t, key.KeyID, base64.RawURLEncoding.EncodeToString(thumbprint))
	}
	token, err := s.Issue(someCapability(), noon)
	require.NoError(t, err)
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.ES256})
	require.NoError(t, err)
	_, err = signed.Verify(set)
	require.NoError(t, err)
}

func TestInvalidTaskKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(blocks ...*pem.Block) string {
		path := filepath.Join(dir, uuid.NewString())
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	pkcs8 := func(key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		return der
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	for name, path := range map[string]string{
		"missing":     filepath.Join(dir, "nothing"),
		"a folder":    dir,
		"empty":       file(),
		"RSA":         file(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8(rsaKey)}),
		"P-384":       file(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8(p384)}),
		"garbage":     file(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("garbage")}),
		"certificate": file(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("garbage")}),
	} {
		_, err := authz.ReadTaskKey(path)
		require.True(t, fault.Is(err, fault.Invalid) || fault.Is(err, fault.NotFound), "%s: %v", name, err)
		require.ErrorContains(t, err, filepath.Base(path), name)
	}
	sec1, err := x509.MarshalECPrivateKey(ecdsaKey(t))
	require.NoError(t, err)
	key, err := authz.ReadTaskKey(file(&pem.Block{Type: "EC PARAMETERS",
		Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}}, &pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1}))
	require.NoError(t, err)
	require.True(t, key.CanSign())

	path, made := taskKey(t, "made")
	again, err := authz.EnsureTaskKey(path)
	require.NoError(t, err)
	require.Equal(t, made.ID, again.ID, "made once, kept")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

package authz_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// kmsServer imitates AWS KMS: a local HTTP server that speaks the two calls of its JSON protocol that matter here, as
// AWS documents them, and signs with a real ECDSA key. Neither Go's nor Node's registry has a KMS server with
// asymmetric keys, so this one follows our reading of the documentation; of the requests' signatures it checks only
// the header.
type kmsServer struct {
	*httptest.Server
	arn      string
	public   []byte
	sign     func(digest []byte) []byte // DER
	spec     string
	usage    string
	signings atomic.Int32
}

const kmsARN = "arn:aws:kms:eu-west-1:123456789012:key/0f3c7f6e-1f5e-4d6c-9f66-8f6f0a8f9b11"

func newKMSServer(t *testing.T, private *ecdsa.PrivateKey) *kmsServer {
	t.Helper()
	s := &kmsServer{arn: kmsARN, spec: "ECC_NIST_P256", usage: "SIGN_VERIFY"}
	var err error
	s.public, err = x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	s.sign = func(digest []byte) []byte {
		der, err := ecdsa.SignASN1(rand.Reader, private, digest)
		require.NoError(t, err)
		return der
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.answer(t, w, r) }))
	t.Cleanup(s.Close)
	return s
}

func (s *kmsServer) answer(t *testing.T, w http.ResponseWriter, r *http.Request) {
	fail := func(kind, message string) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": kind, "message": message})
	}
	text, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Content-Type") != "application/x-amz-json-1.1" ||
		!strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/kms/aws4_request") {
		fail("IncompleteSignature", "not a signed call of KMS")
		return
	}

	var in struct {
		KeyID            string `json:"KeyId"`
		Message          []byte
		MessageType      string
		SigningAlgorithm string
	}
	if err := json.Unmarshal(text, &in); err != nil {
		fail("SerializationException", err.Error())
		return
	}

	if in.KeyID != s.arn && in.KeyID != "alias/dagctl" {
		fail("NotFoundException", "Alias or key does not exist")
		return
	}
	out := map[string]any{"KeyId": s.arn}
	switch r.Header.Get("X-Amz-Target") {
	case "TrentService.GetPublicKey":
		out["PublicKey"], out["KeySpec"], out["KeyUsage"], out["SigningAlgorithms"] = s.public, s.spec, s.usage,
			[]string{"ECDSA_SHA_256"}
	case "TrentService.Sign":
		if in.MessageType != "DIGEST" || in.SigningAlgorithm != "ECDSA_SHA_256" || len(in.Message) != sha256.Size {
			fail("ValidationException", "Digest is invalid length for algorithm ECDSA_SHA_256")
			return
		}

		if in.KeyID != s.arn {
			fail("AccessDeniedException", "the key may be used by its ARN alone")
			return
		}
		s.signings.Add(1)
		out["Signature"], out["SigningAlgorithm"] = s.sign(in.Message), in.SigningAlgorithm
	default:
		fail("UnknownOperationException", r.Header.Get("X-Amz-Target"))
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	require.NoError(t, json.NewEncoder(w).Encode(out))
}

// setAWS gives the process credentials in the environment, like a server on AWS. Tests that call it cannot be
// parallel.
func setAWS(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", "AWS_SESSION_TOKEN": "",
		"AWS_PROFILE":     "",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_MAX_ATTEMPTS": "1",
		"AWS_REGION": "", "AWS_DEFAULT_REGION": "",
	} {
		t.Setenv(name, value)
	}
}

func TestAKeyInKMS(t *testing.T) {
	setAWS(t)
	private := ecdsaKey(t)
	server := newKMSServer(t, private)
	config := authz.KMSConfig{KeyID: "alias/dagctl", Endpoint: server.URL, Region: "eu-west-1"}
	key, err := authz.KMSTaskKey(t.Context(), config)
	require.NoError(t, err)
	require.True(t, key.CanSign())
	_, former := taskKey(t, "former")
	s, want := signer(t, key, former), someCapability()
	// Numbers with leading zeros are shorter in DER and must not be in JOSE; one signature in 128 has one.
	for range 300 {
		token, err := s.Issue(want, noon)
		require.NoError(t, err)
		got, err := s.Verify(token, noon)
		require.NoError(t, err)
		require.Equal(t, want.TaskID, got.TaskID)
		require.Equal(t, key.ID, part(t, token, 0)["kid"])
	}
	require.EqualValues(t, 300, server.signings.Load())

	// The public half in a file takes the key's place once another one signs.
	token, err := s.Issue(want, noon)
	require.NoError(t, err)
	before, err := signer(t, former).Issue(want, noon)
	require.NoError(t, err)
	_, err = s.Verify(before, noon)
	require.NoError(t, err, "keys in files go on verifying beside KMS")
	_, err = signer(t, former).Verify(token, noon)
	require.True(t, fault.Is(err, fault.Unauthenticated))

	server.sign = func([]byte) []byte { return []byte("no signature") }
	_, err = s.Issue(want, noon)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	server.Close()
	_, err = s.Issue(want, noon)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, kmsARN)
}

func TestInvalidKeysInKMS(t *testing.T) {
	setAWS(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	rsaPublic, err := x509.MarshalPKIXPublicKey(&rsaKey.PublicKey)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	p384Public, err := x509.MarshalPKIXPublicKey(&p384.PublicKey)
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		change func(*kmsServer, *authz.KMSConfig)
		kind   fault.Kind
	}{
		"missing":        {func(_ *kmsServer, c *authz.KMSConfig) { c.KeyID = "alias/nothing" }, fault.Unavailable},
		"away":           {func(s *kmsServer, _ *authz.KMSConfig) { s.Close() }, fault.Unavailable},
		"another region": {func(_ *kmsServer, c *authz.KMSConfig) { c.Region = "us-east-1" }, fault.Unavailable},
		"no region":      {func(_ *kmsServer, c *authz.KMSConfig) { c.Region = "" }, fault.Unavailable},
		"for encryption": {func(s *kmsServer, _ *authz.KMSConfig) { s.usage = "ENCRYPT_DECRYPT" }, fault.Invalid},
		"RSA":            {func(s *kmsServer, _ *authz.KMSConfig) { s.public = rsaPublic }, fault.Invalid},
		"P-384":          {func(s *kmsServer, _ *authz.KMSConfig) { s.public = p384Public }, fault.Invalid},
		"no key":         {func(s *kmsServer, _ *authz.KMSConfig) { s.public = []byte("x") }, fault.Invalid},
	} {
		server := newKMSServer(t, ecdsaKey(t))
		config := authz.KMSConfig{KeyID: kmsARN, Endpoint: server.URL, Region: "eu-west-1"}
		tc.change(server, &config)
		_, err := authz.KMSTaskKey(t.Context(), config)
		require.True(t, fault.Is(err, tc.kind), "%s: %v", name, err)
		require.ErrorContains(t, err, config.KeyID, name)
	}
}

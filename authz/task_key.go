package authz

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/go-jose/go-jose/v4"

	"github.com/dagctl/dagctl/internal/fault"
)

// TaskKey is one key of capability tokens: ECDSA on P-256. It verifies, and signs if it has its private half.
type TaskKey struct {
	ID     string // kid: the JWK thumbprint of the public half (RFC 7638)
	Source string // where it came from, for messages: a file, or a KMS key's ARN

	public  *ecdsa.PublicKey
	jwk     PublicKey
	private any // *ecdsa.PrivateKey or jose.OpaqueSigner; nil: it only verifies
}

// CanSign reports whether the key has its private half.
func (k TaskKey) CanSign() bool { return k.private != nil }

func newTaskKey(source string, public *ecdsa.PublicKey, private any) (TaskKey, error) {
	if public.Curve != elliptic.P256() {
		return TaskKey{}, fault.New(fault.Invalid,
			"%s holds a key on the curve %s, but capability tokens need P-256 (ES256)", source, public.Curve.Params().
				Name).
			WithHint(makeTaskKey)
	}
	sum, err := (&jose.JSONWebKey{Key: public}).Thumbprint(crypto.SHA256)
	if err != nil {
		return TaskKey{}, fault.New(fault.Invalid, "%s: %w", source, err)
	}

	point, err := public.Bytes() // one byte for the form, then both coordinates
	if err != nil {
		return TaskKey{}, fault.New(fault.Invalid, "%s: %w", source, err)
	}
	id, half := base64.RawURLEncoding.EncodeToString(sum), 1+len(point)/2
	return TaskKey{ID: id, Source: source, public: public, private: private, jwk: PublicKey{
		KeyType: "EC", Curve: "P-256", ID: id, Algorithm: string(jose.ES256), Use: "sig",
		X: base64.RawURLEncoding.EncodeToString(point[1:half]), Y: base64.RawURLEncoding.EncodeToString(point[half:]),
	}}, nil
}

const makeTaskKey = "create one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE`"

// ReadTaskKey reads a PEM file that holds one key: a private one (PKCS #8 or SEC 1), or a public one (PKIX), which only
// verifies tokens that its private half signed earlier.
func ReadTaskKey(path string) (TaskKey, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return TaskKey{}, fault.New(fault.NotFound, "key of tasks: %w", err).WithHint(makeTaskKey)
	}
	if err != nil {
		return TaskKey{}, fault.New(fault.Invalid, "key of tasks: %w", err)
	}

	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return TaskKey{}, fault.New(fault.Invalid, "%s holds no key in PEM form", path).WithHint(makeTaskKey)
		}
		if block.Type == "EC PARAMETERS" {
			continue // openssl ecparam puts the curve's name before the key
		}
		key, err := parseTaskKey(block)
		if err != nil {
			return TaskKey{}, fault.New(fault.Invalid, "%s: %w", path, err).WithHint(makeTaskKey)
		}
		switch key := key.(type) {
		case *ecdsa.PrivateKey:
			return newTaskKey(path, &key.PublicKey, key)
		case *ecdsa.PublicKey:
			return newTaskKey(path, key, nil)
		}
		return TaskKey{}, fault.New(fault.Invalid, "%s holds a key that is not ECDSA on P-256 (ES256)", path).
			WithHint(makeTaskKey)
	}
}

func parseTaskKey(block *pem.Block) (any, error) {
	switch block.Type {
	case "PRIVATE KEY":
		return x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(block.Bytes)
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	}
	return nil, fmt.Errorf("the PEM block %q is not PRIVATE KEY, EC PRIVATE KEY or PUBLIC KEY", block.Type)
}

// EnsureTaskKey reads the key in a file, and creates the file if it does not exist, for a server on one machine that
// needs no set-up.
func EnsureTaskKey(path string) (TaskKey, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return TaskKey{}, fmt.Errorf("create a key of tasks: %w", err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			return TaskKey{}, fmt.Errorf("create a key of tasks: %w", err)
		}
		if err := writePrivate(path, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
			Bytes: der}))); err != nil {
			return TaskKey{}, err
		}
	}
	return ReadTaskKey(path)
}

package testoidc

import (
	"cmp"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// NewKey returns a private RSA key with an ID, which no provider knows.
func NewKey(t testing.TB) jose.JSONWebKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: rand.Text(), Use: "sig"}
}

// Key returns the key that the provider signs with.
func (p *Provider) Key() jose.JSONWebKey { return p.server.now().keys[0] }

// RotateKeys gives the provider a new key and no other: the old ones leave the JWKS, and what they signed is void.
func (p *Provider) RotateKeys() {
	p.t.Helper()
	key := NewKey(p.t)
	p.change(func(c *config) { c.keys = []jose.JSONWebKey{key} })
}

// OverlapKeys gives the provider a new key to sign with, and leaves the old ones in the JWKS.
func (p *Provider) OverlapKeys() {
	p.t.Helper()
	key := NewKey(p.t)
	p.change(func(c *config) { c.keys = append([]jose.JSONWebKey{key}, c.keys...) })
}

// Claims returns what a valid ID token for a user and a client says: iss, sub, aud, iat, exp, and all that the provider
// knows of the user. A test changes what it wants to be wrong, and adds a nonce.
func (p *Provider) Claims(subject, clientID string) map[string]any {
	claims := map[string]any{}
	for _, u := range p.server.now().users {
		if u.Subject == subject {
			claims = u.claims()
		}
	}
	now := time.Now()
	claims["iss"], claims["sub"], claims["aud"] = p.Issuer, subject, clientID
	claims["iat"], claims["exp"] = now.Unix(), now.Add(time.Hour).Unix()
	return claims
}

// Signing says how claims are signed. The zero value is how the provider signs.
type Signing struct {
	Key       *jose.JSONWebKey // private; nil: the provider's; another's KeyID may be the provider's
	Algorithm Algorithm        // "": RS256
	Type      string           // the typ in the header; "": JWT
}

// Algorithm is a value of the alg in the header of a JWT.
type Algorithm string

// Algorithms other than those of RSA that forgers try.
const (
	None           Algorithm = "none"  // no signature
	PublicKeyHS256 Algorithm = "HS256" // an HMAC whose secret is the PEM text of the public key
)

// Sign returns a JWT with these claims, whatever they are. It asks the provider nothing, so it works in an outage too.
func (p *Provider) Sign(claims map[string]any, how Signing) string {
	p.t.Helper()
	key := p.Key()
	if how.Key != nil {
		key = *how.Key
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		p.t.Fatal(err)
	}

	algorithm := cmp.Or(how.Algorithm, Algorithm(jose.RS256))
	header := map[jose.HeaderKey]any{"kid": key.KeyID, jose.HeaderType: cmp.Or(how.Type, "JWT")}
	if algorithm == None { // jose refuses it
		header["alg"] = None
		text, err := json.Marshal(header)
		if err != nil {
			p.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(payload) + "."
	}

	with := jose.SigningKey{Algorithm: jose.SignatureAlgorithm(algorithm), Key: key.Key}
	if algorithm == PublicKeyHS256 {
		with.Key = publicPEM(p.t, key)
	}
	signer, err := jose.NewSigner(with, &jose.SignerOptions{ExtraHeaders: header})
	if err != nil {
		p.t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func publicPEM(t testing.TB, key jose.JSONWebKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(key.Public().Key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

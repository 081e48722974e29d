package authz

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/go-jose/go-jose/v4"

	"github.com/dagctl/dagctl/internal/fault"
)

// KMSConfig names a key in AWS KMS: of spec ECC_NIST_P256, for SIGN_VERIFY. Credentials are those of the process.
type KMSConfig struct {
	KeyID    string // id, ARN or alias
	Endpoint string // if it is not AWS's own
	Region   string // empty: the region of the process's AWS settings
}

// kmsTimeout bounds one signature, the client's retries included.
const kmsTimeout = 10 * time.Second

// KMSTaskKey returns a key of capability tokens that never leaves KMS. It fetches the public half once; signing a token
// takes a call to KMS.
func KMSTaskKey(ctx context.Context, c KMSConfig) (TaskKey, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*kmsTimeout)
	defer cancel()
	settings, err := config.LoadDefaultConfig(ctx, func(o *config.LoadOptions) error {
		o.Region = c.Region
		return nil
	})
	if err != nil {
		return TaskKey{}, fault.New(fault.Invalid, "AWS settings for KMS: %w", err)
	}
	client := kms.NewFromConfig(settings, func(o *kms.Options) {
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
		}
	})

	source := "KMS key " + c.KeyID
	answer, err := client.GetPublicKey(ctx, &kms.GetPublicKeyInput{KeyId: aws.String(c.KeyID)})
	if err != nil {
		return TaskKey{}, fault.New(fault.Unavailable, "%s: its public key cannot be read: %w", source, err).
			WithHint("tasks.kms_key_id needs kms:GetPublicKey and kms:Sign for the server's role; docs/config.md")
	}
	if answer.KeyUsage != types.KeyUsageTypeSignVerify ||
		!slices.Contains(answer.SigningAlgorithms, types.SigningAlgorithmSpecEcdsaSha256) {
		return TaskKey{}, fault.New(fault.Invalid,
			"%s is a %s key for %s, but capability tokens need ECC_NIST_P256 for "+
				"SIGN_VERIFY", source, answer.KeySpec, answer.KeyUsage)
	}

	public, err := x509.ParsePKIXPublicKey(answer.PublicKey)
	if err != nil {
		return TaskKey{}, fault.New(fault.Invalid, "%s: its public key: %w", source, err)
	}
	ecdsaKey, ok := public.(*ecdsa.PublicKey)
	if !ok {
		return TaskKey{}, fault.New(fault.Invalid, "%s is not an ECDSA key", source)
	}
	// An alias may name another key later, whose signatures would not match: use the ARN.
	signer := &kmsSigner{client: client, keyID: aws.ToString(answer.KeyId)}
	key, err := newTaskKey(source, ecdsaKey, signer)
	signer.public = jose.JSONWebKey{Key: key.public, KeyID: key.ID, Algorithm: string(jose.ES256)}
	return key, err
}

// kmsSigner is a jose.OpaqueSigner.
type kmsSigner struct {
	client *kms.Client
	keyID  string // ARN
	public jose.JSONWebKey
}

func (s *kmsSigner) Public() *jose.JSONWebKey        { return &s.public }
func (s *kmsSigner) Algs() []jose.SignatureAlgorithm { return []jose.SignatureAlgorithm{jose.ES256} }

// SignPayload returns KMS's signature of the payload's hash.
func (s *kmsSigner) SignPayload(payload []byte, alg jose.SignatureAlgorithm) ([]byte, error) {
	if alg != jose.ES256 {
		return nil, jose.ErrUnsupportedAlgorithm
	}
	ctx, cancel := context.WithTimeout(context.Background(), kmsTimeout) // go-jose passes no context
	defer cancel()
	digest := sha256.Sum256(payload)
	answer, err := s.client.Sign(ctx, &kms.SignInput{
		KeyId: aws.String(s.keyID), Message: digest[:], MessageType: types.MessageTypeDigest,
		SigningAlgorithm: types.SigningAlgorithmSpecEcdsaSha256,
	})
	if err != nil {
		return nil, fmt.Errorf("KMS key %s: %w", s.keyID, err)
	}
	return joseSignature(answer.Signature)
}

// joseSignature converts an ECDSA signature on P-256 from DER, which KMS returns, to the two numbers of 32 bytes that
// JOSE requires (RFC 7518, 3.4).
func joseSignature(der []byte) ([]byte, error) {
	var signature struct{ R, S *big.Int }
	rest, err := asn1.Unmarshal(der, &signature)
	if err != nil || len(rest) > 0 || signature.R.Sign() <= 0 || signature.S.Sign() <= 0 ||
		signature.R.BitLen() > 256 || signature.S.BitLen() > 256 {
		return nil, errors.New("the signature is not one of ECDSA on P-256")
	}
	out := make([]byte, 64)
	signature.R.FillBytes(out[:32])
	signature.S.FillBytes(out[32:])
	return out, nil
}

package authz

import (
	"crypto/rand"
	"crypto/sha256"
	"math/big"
	"strings"

	"github.com/dagctl/dagctl/internal/late"
)

// A secret is dagctl_KIND_ followed by 32 random bytes in base 62, which take 43 digits. The prefix lets scanners of
// source code find leaked secrets.
const secretDigits = 43

var secretForm = late.Pattern(`^dagctl_([a-z]+)_[0-9A-Za-z]{43}$`)

// NewSecret returns a new secret of a kind.
func NewSecret(kind string) string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails: it ends the process instead
	digits := new(big.Int).SetBytes(random[:]).Text(62)
	return "dagctl_" + kind + "_" + strings.Repeat("0", secretDigits-len(digits)) + digits
}

// SecretKind returns the kind in the prefix of a well-formed secret.
func SecretKind(secret string) (kind string, ok bool) {
	m := secretForm.FindStringSubmatch(secret)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// HashSecret returns the hash that is stored. A plain hash is enough: 256 random bits cannot be guessed from it.
func HashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

package authz

import (
	"crypto/sha256"
	"slices"
	"sync"
)

// knownTokens caches the capabilities of tokens that one signer has signed or verified, because checking a signature
// costs more than the rest of a small call. It belongs to one signer and its keys: a signer with other keys starts with
// an empty cache. It does not check the expiry; its caller must. The zero value is ready to use.
type knownTokens struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]Capability
}

// Bounds of knownTokens: young and old have up to knownAtMost entries each, for tokens of at most knownLength bytes,
// which can name about fifty datasets.
const (
	knownAtMost = 8192
	knownLength = 4096 // bytes
)

// get finds a token by its hash, so that the time does not depend on how much of a guess is right.
func (k *knownTokens) get(token string) (Capability, bool) {
	if len(token) > knownLength {
		return Capability{}, false
	}
	hash := sha256.Sum256([]byte(token))
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.young[hash]
	if !ok {
		if c, ok = k.old[hash]; ok {
			k.keep(hash, c)
		}
	}
	return c.clone(), ok
}

// put caches a token that one of the signer's keys signed.
func (k *knownTokens) put(token string, c Capability) {
	if len(token) > knownLength {
		return
	}
	hash := sha256.Sum256([]byte(token))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keep(hash, c.clone())
}

// keep adds an entry. When the young half is full, it drops the older half.
func (k *knownTokens) keep(hash [sha256.Size]byte, c Capability) {
	if k.young == nil || len(k.young) >= knownAtMost {
		k.young, k.old = map[[sha256.Size]byte]Capability{}, k.young
	}
	k.young[hash] = c
}

func (c Capability) clone() Capability {
	c.Datasets, c.Prefixes = slices.Clone(c.Datasets), slices.Clone(c.Prefixes)
	return c
}

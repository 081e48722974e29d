package authz

import (
	"crypto/sha256"
	"slices"
	"sync"
)

// knownTokens remembers what capability tokens say that one signer has signed itself or has verified, since a signature
// costs more to check than all the rest of a small call. It belongs to the signer, and so to its keys: a signer with other
// keys begins with none. It says nothing of time; whoever asks compares the expiry. The zero value is ready.
type knownTokens struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]Capability
}

// Bounds of knownTokens: young and old have up to knownAtMost each, and of tokens no longer than knownLength, which name
// about fifty datasets.
const (
	knownAtMost = 8192
	knownLength = 4096 // bytes
)

// get finds a token by its hash, which takes the same time however nearly a guess matches.
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

// put remembers a token that is good, as far as its keys go.
func (k *knownTokens) put(token string, c Capability) {
	if len(token) > knownLength {
		return
	}
	hash := sha256.Sum256([]byte(token))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keep(hash, c.clone())
}

// keep makes room by forgetting the older half.
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

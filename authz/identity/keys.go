package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/dagctl/dagctl/internal/fault"
)

// keySet is the keys of an issuer, which may change them at any time. Nobody waits for the issuer whose token a known
// key has signed.
type keySet struct {
	client *http.Client
	url    string
	lost   func() // told when the keys could not be had; nil: nobody is

	mu     sync.Mutex
	keys   []jose.JSONWebKey
	as     time.Time     // when the issuer had these keys
	asked  time.Time     // when the last answer was asked for
	asking chan struct{} // closed when the answer is there; nil: nobody asks
	failed error         // of the last answer
}

// How long keys are used without asking again, and how long while the issuer does not answer.
const (
	keysFor     = 10 * time.Minute
	keysAtWorst = 24 * time.Hour
)

// VerifySignature returns the payload of a token that one of the keys has signed.
func (k *keySet) VerifySignature(ctx context.Context, raw string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(raw, algorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, badToken()
	}

	var answer <-chan struct{}
	keys, as := k.current()
	if time.Since(as) > keysFor {
		answer = k.ask()
	}
	if payload, ok := verifyBy(keys, as, signed); ok {
		return payload, nil
	}
	if answer == nil {
		if hasKey(keys, signed) {
			return nil, badToken() // somebody else signed it
		}
		answer = k.ask()
	}
	select {
	case <-answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	keys, as = k.current()
	if payload, ok := verifyBy(keys, as, signed); ok {
		return payload, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failed != nil {
		return nil, fault.New(fault.Unavailable, "the keys of the token's issuer cannot be had: %w", k.failed).
			WithHint("try again later")
	}
	return nil, badToken()
}

func (k *keySet) current() ([]jose.JSONWebKey, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys, k.as
}

// hasKey reports whether one of the keys is the one that a token names.
func hasKey(keys []jose.JSONWebKey, signed *jose.JSONWebSignature) bool {
	id := signed.Signatures[0].Header.KeyID
	return id != "" && slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return key.KeyID == id })
}

func verifyBy(keys []jose.JSONWebKey, as time.Time, signed *jose.JSONWebSignature) ([]byte, bool) {
	if time.Since(as) > keysAtWorst {
		return nil, false
	}
	id := signed.Signatures[0].Header.KeyID
	for _, key := range keys {
		if id != "" && key.KeyID != id || key.Use != "" && key.Use != "sig" {
			continue
		}
		if payload, err := signed.Verify(&key); err == nil {
			return payload, true
		}
	}
	return nil, false
}

// ask asks the issuer for its keys, for all who wait for them at once. If that was done a moment ago, it waits for a
// while first. The channel is closed when the answer is there.
func (k *keySet) ask() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asking != nil {
		return k.asking
	}

	done, pause := make(chan struct{}), askAgain-time.Since(k.asked)
	k.asking = done
	time.AfterFunc(max(0, pause), func() {
		asked := time.Now()
		keys, err := k.download() // nobody's context ends it, but the client's own limit
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.failed = err; err == nil {
			k.keys, k.as = keys, asked
		} else if k.lost != nil {
			k.lost()
		}
		k.asked, k.asking = asked, nil
		close(done)
	})
	return done
}

func (k *keySet) download() ([]jose.JSONWebKey, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, k.url, nil)
	if err != nil {
		return nil, err
	}
	response, err := k.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", response.Status)
	}

	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(response.Body).Decode(&set); err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, text := range set.Keys { // those of other sorts are somebody else's business: RFC 7517, section 5
		var key jose.JSONWebKey
		if json.Unmarshal(text, &key) == nil && key.Valid() && key.IsPublic() {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

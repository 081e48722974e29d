package operators

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/dagctl/dagctl/internal/duck"
)

// formCache remembers the hashes of parsed queries. A plan and the deploy after it need those of all jobs, for
// validation and for fingerprints, and most were in the last deploy, too; parsing takes most of the time.
type formCache struct {
	mu    sync.Mutex
	forms map[string]string // SHA-256 in hex, by query
	bytes int
}

// maxForms bounds the memory, in bytes; a full cache is emptied.
const maxForms = 32 << 20

func (c *formCache) of(ctx context.Context, parser *duck.Shared, query string) (string, error) {
	c.mu.Lock()
	form, ok := c.forms[query]
	c.mu.Unlock()
	if ok {
		return form, nil
	}

	session, err := parser.Get(ctx)
	if err != nil {
		return "", err
	}
	parsed, err := session.Parse(ctx, query)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(parsed.Canonical)
	form = hex.EncodeToString(sum[:])

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += len(query) + len(form); c.forms == nil || c.bytes > maxForms {
		c.forms, c.bytes = map[string]string{}, len(query)+len(form)
	}
	c.forms[query] = form
	return form, nil
}

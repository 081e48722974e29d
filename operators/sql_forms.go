package operators

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/dagctl/dagctl/internal/duck"
)

// formCache remembers the parsed forms of queries. A deploy asks for those of all jobs several times, for validation and
// for each sort of hash, and parsing is most of what it does.
type formCache struct {
	mu    sync.Mutex
	forms map[string]json.RawMessage // by query
	bytes int
}

// maxForms bounds the memory, in bytes; past it the cache starts anew.
const maxForms = 32 << 20

func (c *formCache) of(ctx context.Context, parser *duck.Shared, query string) (json.RawMessage, error) {
	c.mu.Lock()
	form, ok := c.forms[query]
	c.mu.Unlock()
	if ok {
		return form, nil
	}
	session, err := parser.Get(ctx)
	if err != nil {
		return nil, err
	}
	parsed, err := session.Parse(ctx, query)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += len(query) + len(parsed.Canonical); c.forms == nil || c.bytes > maxForms {
		c.forms, c.bytes = map[string]json.RawMessage{}, len(query)+len(parsed.Canonical)
	}
	c.forms[query] = parsed.Canonical
	return parsed.Canonical, nil
}

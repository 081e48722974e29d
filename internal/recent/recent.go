// Package recent keeps what was asked for lately. It owns no tables.
package recent

import (
	"sync"
	"sync/atomic"
	"time"
)

// keepFor is how long a value stays at least that nobody asks for; it is gone after twice that, if others come.
const keepFor = 2 * time.Minute

// Cache keeps values that never change, by keys. What nobody has asked for lately is dropped when something new comes:
// a process that runs for months must not remember everything. The zero value is ready; reads take no lock.
type Cache[K comparable, V any] struct {
	newer, older atomic.Pointer[sync.Map]
	turn         sync.Mutex
	turned       time.Time // when newer began
}

// Get returns the value of a key, if it is kept.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	if m := c.newer.Load(); m != nil {
		if v, ok := m.Load(key); ok {
			return v.(V), true
		}
	}
	if m := c.older.Load(); m != nil {
		if v, ok := m.Load(key); ok {
			c.Put(key, v.(V))
			return v.(V), true
		}
	}
	return value, false
}

// Put keeps a value.
func (c *Cache[K, V]) Put(key K, value V) { c.put(key, value, time.Now()) }

func (c *Cache[K, V]) put(key K, value V, now time.Time) {
	c.turn.Lock()
	defer c.turn.Unlock()
	if c.newer.Load() == nil || now.Sub(c.turned) > keepFor {
		c.older.Store(c.newer.Load())
		c.newer.Store(new(sync.Map))
		c.turned = now
	}
	c.newer.Load().Store(key, value)
}

package layered

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// mostKept bounds what a cache holds: nodes and edges of all its layouts. Points of their routes make that some tens of
// megabytes.
const mostKept = 200_000

// Cache keeps the layouts of the graphs that were asked for last. A layout is found by the whole shape of its graph,
// the sizes of the nodes and the edges between them, and by nothing else. So who asks for a graph in which something is
// hidden has the layout of that graph, whoever asked before. The zero value is ready, and safe for concurrent use.
type Cache struct {
	mu     sync.Mutex
	byName map[[sha256.Size]byte]*list.Element
	recent list.List // of *kept, the last one asked for first
	weight int
	placed int // how many layouts were made
}

type kept struct {
	shape  [sha256.Size]byte
	layout Layout
	weight int
}

// Place is like the function of that name. Its callers share the layout and must not change it.
func (c *Cache) Place(sizes []Size, edges [][2]int) Layout {
	shape := shapeOf(sizes, edges)
	if l, known := c.get(shape); known {
		return l
	}

	l := Place(sizes, edges) // outside of the lock: another graph must not wait for a large one
	c.put(&kept{shape, l, 1 + len(sizes) + len(edges)})
	return l
}

func (c *Cache) get(shape [sha256.Size]byte) (l Layout, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.byName[shape]
	if !known {
		return l, false
	}
	c.recent.MoveToFront(at)
	return at.Value.(*kept).layout, true
}

// put keeps a layout, and drops those that were not asked for the longest while there are too many.
func (c *Cache) put(k *kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.placed++
	if _, known := c.byName[k.shape]; known || k.weight > mostKept {
		return
	}
	if c.byName == nil {
		c.byName = map[[sha256.Size]byte]*list.Element{}
	}
	c.byName[k.shape] = c.recent.PushFront(k)
	c.weight += k.weight

	for c.weight > mostKept {
		oldest := c.recent.Remove(c.recent.Back()).(*kept)
		delete(c.byName, oldest.shape)
		c.weight -= oldest.weight
	}
}

// Placed returns how many layouts were made because they were not kept.
func (c *Cache) Placed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.placed
}

// shapeOf returns the name of a shape: equal for equal graphs, and different for others.
func shapeOf(sizes []Size, edges [][2]int) [sha256.Size]byte {
	b := make([]byte, 0, 8*(1+len(sizes)+len(edges)))
	add := func(x, y int) {
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, uint32(x)), uint32(y))
	}
	add(len(sizes), len(edges))
	for _, s := range sizes {
		add(s.Width, s.Height)
	}
	for _, e := range edges {
		add(e[0], e[1])
	}
	return sha256.Sum256(b)
}

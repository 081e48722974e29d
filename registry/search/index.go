package search

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// Index keeps the words of documents, which it was given once and which others may be asked about: a search names the
// documents that it is about, and looks at no other one. It is safe for concurrent use; the zero value is ready.
type Index struct {
	mu    sync.RWMutex
	known map[string]uint32 // word → its place in words
	words []word
	docs  map[uuid.UUID]*document
	size  int // postings of docs
}

// document is what the index keeps of a document.
type document struct {
	stamp    int64
	name     string // in small letters
	joined   string
	postings []posting
}

// posting is a word in a field.
type posting struct {
	word  uint32
	field Field
}

// Entry names one state of a document: its stamp changes with its texts.
type Entry struct {
	ID    uuid.UUID
	Stamp int64
}

// Hit is a document that matches.
type Hit struct {
	ID    uuid.UUID
	Score int
	Name  string // in small letters
}

// mostPostings bounds an index to about 100 MB: one that has more starts anew. mostOf bounds those of one document.
const mostPostings, mostOf = 8_000_000, 1000

// Missing returns the entries whose documents the index does not have as they are now.
func (x *Index) Missing(entries []Entry) (missing []uuid.UUID) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, e := range entries {
		if d, ok := x.docs[e.ID]; !ok || d.stamp != e.Stamp {
			missing = append(missing, e.ID)
		}
	}
	return missing
}

// Put takes the texts of a document in place of those that it had.
func (x *Index) Put(e Entry, doc Document) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.docs == nil || x.size > mostPostings {
		x.known, x.words, x.docs, x.size = map[string]uint32{}, nil, map[uuid.UUID]*document{}, 0
	}

	d := &document{stamp: e.Stamp}
	seen := map[posting]bool{}
	for i, t := range doc {
		if i == 0 {
			d.name, d.joined = strings.ToLower(t.Text), strings.Join(Words(t.Text), "")
		}

		for _, w := range t.words() {
			p := posting{x.place(w), t.Field}
			if !seen[p] && len(d.postings) < mostOf {
				seen[p], d.postings = true, append(d.postings, p)
			}
		}
	}

	if old, ok := x.docs[e.ID]; ok {
		x.size -= len(old.postings)
	}
	x.docs[e.ID] = d
	x.size += len(d.postings)
}

// place returns the place of a word among those of the index, to which it adds it.
func (x *Index) place(text string) uint32 {
	at, ok := x.known[text]
	if !ok {
		at = uint32(len(x.words)) //nolint:gosec // far below 2^32: mostPostings
		x.known[text] = at
		x.words = append(x.words, newWord(text))
	}
	return at
}

// Rank returns those of the entries' documents that match, the best first and those of one score by name. Documents
// that the index does not have as the entries name them match nothing. It looks at the words of these documents only.
func (x *Index) Rank(q Query, entries []Entry) (hits []Hit) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	memo := newMemo(q, x.words)
	for _, e := range entries {
		d, ok := x.docs[e.ID]
		if !ok || d.stamp != e.Stamp {
			continue
		}
		if score := memo.score(d); score > 0 {
			hits = append(hits, Hit{e.ID, score, d.name})
		}
	}

	slices.SortFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Name, b.Name),
			slices.Compare(a.ID[:], b.ID[:]))
	})
	return hits
}

// memo keeps how like the words of an index are to those of one query: many documents have the same words.
type memo struct {
	q     Query
	words []word
	like  []int16 // by place and word of the query; below 0: not computed yet
	best  [mostWords]int
}

func newMemo(q Query, words []word) *memo {
	m := &memo{q: q, words: words, like: make([]int16, len(words)*len(q.words))}
	for i := range m.like {
		m.like[i] = -1
	}
	return m
}

// score returns the score of a document, 0 if it does not match.
func (m *memo) score(d *document) (score int) {
	m.best = [mostWords]int{}
	for _, p := range d.postings {
		at := int(p.word) * len(m.q.words)
		for i, asked := range m.q.words {
			if m.like[at+i] < 0 {
				m.like[at+i] = int16(asked.likeness(m.words[p.word])) //nolint:gosec // at most 100
			}
			m.best[i] = max(m.best[i], int(m.like[at+i])*weights[p.field])
		}
	}

	whole := m.q.wholeName(d.name, d.joined)
	for i := range m.q.words {
		if m.best[i] == 0 {
			return whole // a part of a name that goes across its words
		}
		score += m.best[i]
	}
	return score + whole
}

package blockfollower

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sort"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/evm"
)

// span is a range of blocks as it was made last.
type span struct {
	evm.Version
	from  int64 // number of the first block
	stale bool
}

// listing is one look at the node.
type listing struct {
	config
	client *evm.Client
	by     dag.Partitioning
	known  map[string]string // versions by partition
	spans  []*span           // of the known versions, in their order
	tip    int64
	safe   int64
}

// errLags says that the node that answered does not have a block below its tip: another one behind the same address
// answered before. It has nothing to say now.
var errLags = errors.New("the node lags behind itself")

// Enumerate implements operators.Enumerator. The units are all ranges that are known, with what is new of them, and
// those that are not known and have blocks. What the node does not have, because it lags behind, stays as it is.
func (o *operator) Enumerate(ctx context.Context, e operators.Enumeration) ([]operators.Unit, error) {
	c, configFault := parse(e.Config)
	if configFault != nil {
		return nil, operators.ConfigError(configFault)
	}
	client, err := evm.NewListing(e, c.Node, o.client)
	if err != nil {
		return nil, err
	}
	l := &listing{config: c, client: client, by: e.PartitionBy, known: e.Known}
	if l.tip, err = client.Tip(ctx); err != nil {
		return nil, err
	}
	if err := c.CheckRanges(l.tip, l.by.Size); err != nil {
		return nil, err
	}
	l.safe = l.tip - c.Confirmations
	if err := l.readKnown(); err != nil {
		return nil, err
	}

	if err := l.compare(ctx); err != nil {
		return nil, err
	}
	return l.units(ctx)
}

// compare finds what is stale. If the node lags behind itself, nothing is, and nothing is new.
func (l *listing) compare(ctx context.Context) error {
	err := l.findStale(ctx)
	if err == nil {
		err = l.refuseDeep(ctx)
	}
	if !errors.Is(err, errLags) {
		return err
	}
	l.safe = -1
	for _, s := range l.spans {
		s.stale = false
	}
	return nil
}

// readKnown reads the spans of the known versions. A range with a version of something else counts as not known.
func (l *listing) readKnown() error {
	for key, text := range l.known {
		v, ok := evm.ParseVersion(text)
		if !ok {
			continue
		}
		from, _, err := l.by.Range(key)
		if err != nil {
			return err
		}
		l.spans = append(l.spans, &span{Version: v, from: max(from, l.StartFrom)})
	}
	slices.SortFunc(l.spans, func(a, b *span) int { return cmp.Compare(a.from, b.from) })
	return nil
}

// findStale marks the spans that are stale. It asks for the last block of each chain of spans, and halves the chain
// where that is another one.
func (l *listing) findStale(ctx context.Context) error {
	for begin := 0; begin < len(l.spans); {
		end := begin + 1
		for end < len(l.spans) && follows(l.spans[end-1], l.spans[end]) {
			end++
		}
		if err := l.markChain(ctx, l.spans[begin:end]); err != nil {
			return err
		}
		begin = end
	}
	return nil
}

// follows reports whether b begins where a ends, on the same chain.
func follows(a, b *span) bool { return a.To+1 == b.from && a.Hash == b.Parent }

// markChain marks the stale spans of a chain. Of those beyond the node's tip it only learns something if an earlier one
// is stale: their blocks were built on that.
func (l *listing) markChain(ctx context.Context, chain []*span) error {
	reached := sort.Search(len(chain), func(i int) bool { return chain[i].To > l.tip })
	if reached == 0 {
		return nil
	}
	same, err := l.has(ctx, chain[reached-1].To, chain[reached-1].Hash)
	if err != nil || same {
		return err
	}

	first := sort.Search(reached-1, func(i int) bool {
		if err != nil {
			return true
		}
		same, err = l.has(ctx, chain[i].To, chain[i].Hash)
		return !same
	})
	for _, s := range chain[first:] {
		s.stale = true
	}
	return err
}

// has reports whether the node's chain has a block with this hash, or what versions keep of it.
func (l *listing) has(ctx context.Context, number int64, hash string) (bool, error) {
	found, err := l.client.Headers(ctx, []int64{number})
	if err != nil {
		return false, err
	}
	h, ok := found[number]
	if !ok {
		return false, errLags
	}
	return evm.Short(h.Hash) == hash, nil
}

// highest returns the stale span with the highest last block; nil if nothing is stale.
func (l *listing) highest() (top *span) {
	for _, s := range l.spans {
		if s.stale && (top == nil || s.To > top.To) {
			top = s
		}
	}
	return top
}

// refuseDeep returns an error if a re-organisation replaced more blocks than it may. The anchor of the highest stale
// span is the block that has to be the same; where max_reorg was another then, the ends of ranges have to do.
func (l *listing) refuseDeep(ctx context.Context) error {
	top := l.highest()
	if top == nil {
		return nil
	}
	least := top.To - l.MaxReorg // of the blocks that are to stay, the highest
	for _, s := range l.spans {
		if s.stale && s.To <= least {
			return tooDeep(s.To, l.MaxReorg)
		}
	}

	if top.Anchor > max(0, least) || top.Anchor > l.tip {
		return nil
	}
	same, err := l.has(ctx, top.Anchor, top.AnchorHash)
	if err != nil || same {
		return err
	}
	return tooDeep(top.Anchor, l.MaxReorg)
}

// units returns the units. After a re-organisation nothing is made anew before the node's chain has come to where the
// old one ended: until then the dataset stays a chain that was.
func (l *listing) units(ctx context.Context) ([]operators.Unit, error) {
	last, waitsFrom := l.safe, int64(-1)
	for _, s := range l.spans {
		last = max(last, s.To)
	}
	if top := l.highest(); top != nil && l.safe < top.To {
		first := slices.IndexFunc(l.spans, func(s *span) bool { return s.stale })
		waitsFrom = l.spans[first].from
	}
	of := make(map[int64]*span, len(l.spans))
	for _, s := range l.spans {
		of[s.from] = s
	}

	var all []operators.Unit
	var fresh []wanted
	for at := l.StartFrom - l.StartFrom%l.by.Size; at <= last; at += l.by.Size {
		key := l.by.RangeAt(at)
		w := wanted{at: len(all), from: max(at, l.StartFrom), to: min(at+l.by.Size-1, l.safe)}
		s := of[w.from]
		waits := waitsFrom >= 0 && w.from >= waitsFrom
		if l.wants(s, w, at+l.by.Size-1) && !waits {
			fresh = append(fresh, w)
		} else if s == nil {
			continue
		}
		all = append(all, operators.Unit{Partition: key, Version: l.known[key]})
	}
	return l.withVersions(ctx, all, fresh)
}

// wanted is a range whose blocks are to be read.
type wanted struct {
	at       int // index of its unit
	from, to int64
}

// wants reports whether the blocks of w are to be read. s is what is known of its range, nil: nothing; end is the last
// block that the range can have.
func (l *listing) wants(s *span, w wanted, end int64) bool {
	switch {
	case s != nil && s.stale:
		return true
	case s != nil && s.To >= w.to, w.to < w.from:
		return false
	}
	return w.to == end || l.Partial == nil || *l.Partial
}

// withVersions gives the units of what is wanted their versions and payloads, and returns all. A range whose headers
// the node does not have, because it lags behind, stays what it is.
func (l *listing) withVersions(
	ctx context.Context, all []operators.Unit, fresh []wanted,
) ([]operators.Unit, error) {
	var numbers []int64
	for _, w := range fresh {
		numbers = append(numbers, w.to, l.anchor(w.to))
		if w.from > 0 {
			numbers = append(numbers, w.from-1)
		}
	}
	slices.Sort(numbers)
	headers, err := l.client.Headers(ctx, slices.Compact(numbers))
	if err != nil {
		return nil, err
	}
	headers[-1] = evm.Header{Hash: evm.NoParent}

	for _, w := range fresh {
		last, ok1 := headers[w.to]
		parent, ok2 := headers[w.from-1]
		anchor, ok3 := headers[l.anchor(w.to)]
		if !ok1 || !ok2 || !ok3 {
			continue
		}
		v := evm.Version{To: w.to, Hash: evm.Short(last.Hash), Parent: evm.Short(parent.Hash), Anchor: anchor.Number,
			AnchorHash: evm.Short(anchor.Hash)}
		all[w.at].Version = v.String()
		all[w.at].Payload, err = json.Marshal(unit{v.To, v.Anchor, v.AnchorHash})
		if err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(all, func(u operators.Unit) bool { return u.Version == "" }), nil
}

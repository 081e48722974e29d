package ranges

import (
	"cmp"
	"slices"
)

// Range is the positions from its first number up to, but without, its second one. In JSON it is a list of both.
type Range [2]int64

// Start is the first position.
func (r Range) Start() int64 { return r[0] }

// End is the position behind the last one.
func (r Range) End() int64 { return r[1] }

func (r Range) empty() bool { return r[0] >= r[1] }

// Set is a set of positions: ranges that ascend and do not touch each other.
type Set []Range

// With returns the positions of the set and those of more ranges, which may be in any order and overlap.
func (s Set) With(more ...Range) Set {
	all := slices.DeleteFunc(slices.Concat(s, more), Range.empty)
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.Start(), b.Start()) })

	joined := Set{}
	for _, r := range all {
		if last := len(joined) - 1; last >= 0 && r.Start() <= joined[last].End() {
			joined[last][1] = max(joined[last].End(), r.End())
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// Within returns the positions of the set that lie in a range.
func (s Set) Within(bounds Range) Set {
	cut := Set{}
	for _, r := range s {
		if r = (Range{max(r.Start(), bounds.Start()), min(r.End(), bounds.End())}); !r.empty() {
			cut = append(cut, r)
		}
	}
	return cut
}

// around returns the range of the set that a position lies in.
func (s Set) around(position int64) (Range, bool) {
	at, found := slices.BinarySearchFunc(s, position, func(r Range, position int64) int {
		switch {
		case r.End() <= position:
			return -1
		case r.Start() > position:
			return 1
		}
		return 0
	})
	if !found {
		return Range{}, false
	}
	return s[at], true
}

// Aligned returns those ranges of a size, beginning at multiples of it, that the set has all positions of, and fresh,
// which is part of it, at least one. Those that follow each other are one range of the answer.
func (s Set) Aligned(fresh Set, size int64) Set {
	var whole []Range
	for _, f := range fresh {
		around, ok := s.around(f.Start())
		if !ok {
			continue
		}
		whole = append(whole, Range{max(down(f.Start(), size), up(around.Start(), size)),
			min(up(f.End(), size), down(around.End(), size))})
	}
	return Set{}.With(whole...)
}

// Length returns how many positions the set has.
func (s Set) Length() (n int64) {
	for _, r := range s {
		n += r.End() - r.Start()
	}
	return n
}

// down returns the last multiple of size up to a position, up the first one from it on.
func down(position, size int64) int64 { return position - position%size }

func up(position, size int64) int64 { return down(position+size-1, size) }

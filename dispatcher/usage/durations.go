package usage

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Durations are kept as counts by buckets, four for each power of two: a quantile is right to within a tenth. The
// first bucket ends at shortest, the last is open.
const (
	shortest = 10 * time.Millisecond
	buckets  = 96 // the last begins at 1.6 days
	perTwo   = 4
)

// bucketOf returns the bucket that a duration is counted in.
func bucketOf(d time.Duration) int {
	if d <= shortest {
		return 0
	}
	return min(int(math.Ceil(perTwo*math.Log2(float64(d)/float64(shortest)))), buckets-1)
}

// histogram counts durations by bucket; it ends with the last that has any.
type histogram []int64

// add counts a duration.
func (h *histogram) add(d time.Duration) {
	b := bucketOf(d)
	for len(*h) <= b {
		*h = append(*h, 0)
	}
	(*h)[b]++
}

// text is the array as PostgreSQL reads it.
func (h histogram) text() string {
	return "{" + strings.Trim(strings.ReplaceAll(fmt.Sprint([]int64(h)), " ", ","), "[]") + "}"
}

// quantile returns the duration in seconds that a share of all is not longer than; 0 where there is none.
func (h histogram) quantile(share float64) float64 {
	var total int64
	for _, n := range h {
		total += n
	}
	if total == 0 {
		return 0
	}

	rank, below := share*float64(total), int64(0)
	for b, n := range h {
		if n > 0 && float64(below+n) >= rank {
			high := shortest.Seconds() * math.Exp2(float64(b)/perTwo)
			low := high / math.Exp2(1.0/perTwo)
			return low + (high-low)*(rank-float64(below))/float64(n)
		}
		below += n
	}
	return shortest.Seconds() * math.Exp2(float64(len(h)-1)/perTwo)
}

package dag

import "fmt"

// Segment returns the key of the segment of a cursor that holds the positions (after, upTo]. As all keys of positions
// are half-open, the key of (9, 19] is 10-20.
func Segment(after, upTo int64) string { return fmt.Sprintf("%d-%d", after+1, upTo+1) }

// SegmentEnd returns the last position in a segment, upTo, and the position before its first, after.
func SegmentEnd(key string) (after, upTo int64, err error) {
	from, to, err := Partitioning{Kind: ByCursor}.Range(key)
	return from - 1, to - 1, err
}

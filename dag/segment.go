package dag

import "fmt"

// Segment is the key of the segment of a cursor that holds the positions after one, up to and with another: (after, upTo].
// As all keys of positions are half-open, the one of (9, 19] is 10-20.
func Segment(after, upTo int64) string { return fmt.Sprintf("%d-%d", after+1, upTo+1) }

// SegmentEnd is the last position in a segment, and the one that lies before its first.
func SegmentEnd(key string) (after, upTo int64, err error) {
	from, to, err := Partitioning{Kind: ByCursor}.Range(key)
	return from - 1, to - 1, err
}

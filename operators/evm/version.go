package evm

import (
	"fmt"
	"strings"
)

// Version is the version of a range of blocks: it changes exactly when a block of the range does, because the hash of
// the last one vouches for all before it. Hashes are cut to 128 bits.
type Version struct {
	To     int64  // number of the last block
	Hash   string // of the last block
	Parent string // hash of the block before the first one: by it, ranges are known to be of one chain
	// Anchor is the number of a block before To, of whichever range, and the hash that it had when the range was read.
	Anchor     int64
	AnchorHash string
}

// Short returns the part of a hash that versions have.
func Short(hash string) string { return hash[2:34] } // it was parsed

// String returns the text of a version, for ParseVersion.
func (v Version) String() string {
	return fmt.Sprintf("%d:%s:%s:%d:%s", v.To, v.Hash, v.Parent, v.Anchor, v.AnchorHash)
}

// ParseVersion returns the version of a text. It returns false for texts that are none.
func ParseVersion(text string) (v Version, ok bool) {
	n, err := fmt.Sscanf(strings.ReplaceAll(text, ":", " "), "%d %32s %32s %d %32s", &v.To, &v.Hash, &v.Parent,
		&v.Anchor, &v.AnchorHash)
	return v, err == nil && n == 5 && v.String() == text
}

package tasks

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/uuid"
)

// SortedIDs sorts ids in place and returns them without duplicates.
func SortedIDs(ids []uuid.UUID) []uuid.UUID {
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}

// LowestIDAt returns the lowest id that a row made at a given time can have. Ids begin with their time, so old rows are
// at one end of the primary key.
func LowestIDAt(at time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16)
	return id
}

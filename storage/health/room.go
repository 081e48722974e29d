package health

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// A task that fills the disk leaves no trace there: what it had written is removed, and a look finds room again. So
// what was not enough for it is kept as a shortage, and the storage counts as full until there is more. That has two
// bounds, so that a task that can never fit stops nobody for ever: a shortage ends with its time, and a task that meets
// one too often fails by it.
const (
	// mostMet is how often a task may be handed back because of writes that failed while a look finds nothing wrong.
	mostMet = 5
	// forgotten is after how long a task's former meetings count no more.
	forgotten = 2 * time.Hour
	// A disk that has less than a tenth left is full for the others, too, before long.
	shortFor, shortForOne = 10 * time.Minute, time.Minute
	scarce                = 10 // one part in so many
)

// shortage is what a task had too little of, and how often tasks have met that.
type shortage struct {
	need  uint64 // bytes that must be free; 0: nothing is short
	until time.Time
	met   map[uuid.UUID]meeting
}

// meeting is how often a task's writes failed, and when the last did.
type meeting struct {
	times int
	last  time.Time
}

// again takes note that a write of a task failed although the storage can be used. room: there was too little of it.
func (h *Health) again(
	ctx context.Context, task uuid.UUID, why string, room bool, err error,
) (reason string, tooOften error) {
	free, total, unknown := h.Storage.Room()
	known := unknown == nil && total > 0
	if times := h.meets(task, time.Now()); times > mostMet {
		return "", failedBy(times, why, known && room, free, err)
	}

	if room && known {
		h.lack(free, total, time.Now())
		h.Look(ctx) // says so
	}
	return why, nil
}

// meets counts one more failed write of a task, and returns how many that makes of late.
func (h *Health) meets(task uuid.UUID, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, m := range h.short.met {
		if now.Sub(m.last) > forgotten {
			delete(h.short.met, id)
		}
	}
	m := meeting{h.short.met[task].times + 1, now}
	h.short.met[task] = m
	return m.times
}

// lack notes that what is free was not enough. The file system of others may give back a little meanwhile, which is not
// enough either.
func (h *Health) lack(free, total uint64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.short
	if now.After(s.until) {
		s.need = 0
	}
	s.need = max(s.need, free+free/8+1<<20)
	lasts := shortForOne
	if free < total/scarce {
		lasts = shortFor
	}
	s.until = now.Add(cmp.Or(h.Shortage, lasts))
}

// fits returns an error while there is a shortage.
func (h *Health) fits(now time.Time) error {
	h.mu.Lock()
	need := h.short.need
	if now.After(h.short.until) {
		need = 0
	}
	h.mu.Unlock()
	if need == 0 {
		return nil
	}

	err := h.Storage.Fits(need)
	if err == nil {
		h.mu.Lock()
		if h.short.need == need { // nobody has needed more meanwhile
			h.short.need = 0
		}
		h.mu.Unlock()
	}
	return err
}

// failedBy is the error of a task for which the storage is to blame no more.
func failedBy(times int, why string, room bool, free uint64, err error) error {
	if !room {
		return fault.New(fault.Unavailable, "writes of this task have failed %d times although the storage can be "+
			"used (%s): %w", times, why, err)
	}
	return fault.New(fault.Unavailable, "the storage has no room for what this task writes: that was so %d times, "+
		"and %d MiB were free when it had ended: %w", times, free>>20, err).
		WithHint("make room where the storage is, or let the task write less at once")
}

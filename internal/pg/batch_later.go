package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Later is the answer of statements that were added to a batch and may not have been sent yet. It belongs to the
// transaction of its batch, and is not safe for concurrent use.
type Later[T any] struct {
	batch *Batch
	trip  *trip // nil: the value is known
	value *T    // filled in when the trip is over

	// Of the answer that Then makes of another.
	then func(ctx context.Context, tx pgx.Tx) (T, error) // nil: made already, or nothing to make
	err  error
}

// Answer promises the value that the statements added to b so far fill in. Where none wait to be sent, the value is
// known.
func Answer[T any](b *Batch, value *T) *Later[T] {
	if b.queued.Len() == 0 {
		return Known(*value)
	}
	if b.trip == nil {
		b.trip = &trip{}
	}
	b.asked = true
	return &Later[T]{batch: b, trip: b.trip, value: value}
}

// Known is an answer for which nothing has to be sent.
func Known[T any](value T) *Later[T] { return &Later[T]{value: &value} }

// Then returns the answer that fn makes of another one. Get calls fn, once, after the other answer is there; fn may
// send statements of its own.
func Then[A, T any](of *Later[A], fn func(ctx context.Context, tx pgx.Tx, answer A) (T, error)) *Later[T] {
	l := &Later[T]{value: new(T)}
	l.then = func(ctx context.Context, tx pgx.Tx) (made T, err error) {
		answer, err := of.Get(ctx, tx)
		if err != nil {
			return made, err
		}
		return fn(ctx, tx, answer)
	}
	return l
}

// Get returns the answer. If its statements wait in the batch, Get sends the batch first, with all that was added to
// it. If the batch failed, at whichever statement, Get returns that error.
func (l *Later[T]) Get(ctx context.Context, tx pgx.Tx) (T, error) {
	if l.trip != nil {
		if !l.trip.over {
			_ = l.batch.Send(ctx, tx) // which the trip remembers
		}
		l.err = l.trip.err
	}
	if l.then != nil {
		*l.value, l.err = l.then(ctx, tx)
		l.then = nil
	}
	if l.err != nil {
		var none T
		return none, l.err
	}
	return *l.value, nil
}

package atonce_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/atonce"
)

func TestDo(t *testing.T) {
	t.Parallel()
	met := make(chan struct{})
	var done atomic.Int32
	meet := func(context.Context) error { // neither would end alone
		select {
		case met <- struct{}{}:
		case <-met:
		}
		done.Add(1)
		return nil
	}
	require.NoError(t, atonce.Do(t.Context(), 2, meet, meet))
	require.Equal(t, int32(2), done.Load())

	wrong := errors.New("wrong")
	err := atonce.Do(t.Context(), 2, func(context.Context) error { return wrong },
		func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	require.ErrorIs(t, err, wrong)
}

// A panic of a part is one of the caller, who may recover it.
func TestAPanicIsTheCallers(t *testing.T) {
	t.Parallel()
	var said any
	func() {
		defer func() { said = recover() }()
		_ = atonce.Do(t.Context(), 1, func(context.Context) error { panic("out of paper") })
	}()
	require.Contains(t, said, "out of paper\n")
	require.Contains(t, said, "atonce_test.go")
}

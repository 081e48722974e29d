package batch_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/batch"
)

func TestTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		items    []string
		poisoned string
		calls    []string
		failed   []string
	}{
		{"nothing", nil, "", nil, nil},
		{"all at once", []string{"a", "b"}, "", []string{"[a b]"}, nil},
		{"one", []string{"a"}, "", []string{"[a]"}, nil},
		{"one that fails is not tried again", []string{"a"}, "a", []string{"[a]"}, []string{"a: [a]"}},
		{"one of three fails", []string{"a", "b", "c"}, "b", []string{"[a b c]", "[a]", "[b]", "[c]"},
			[]string{"b: [b]"}},
		{"all fail", []string{"a", "a"}, "a", []string{"[a a]", "[a]", "[a]"}, []string{"a: [a]", "a: [a]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls, failed []string
			batch.Together(c.items, func(items []string) error {
				call := fmt.Sprint(items)
				calls = append(calls, call)
				if slices.Contains(items, c.poisoned) {
					return errors.New(call)
				}
				return nil
			}, func(item string, err error) { failed = append(failed, item+": "+err.Error()) })
			require.Equal(t, c.calls, calls)
			require.Equal(t, c.failed, failed)
		})
	}
}

func TestOneByOne(t *testing.T) {
	t.Parallel()
	cause, away := errors.New("together"), errors.New("away")
	for _, c := range []struct {
		name   string
		items  []string
		fail   string // what fails by itself
		answer error  // of failed
		calls  []string
		failed []string
		err    error
	}{
		{"nothing", nil, "", nil, nil, nil, nil},
		{"one has been alone", []string{"a"}, "", nil, nil, []string{"a: together"}, nil},
		{"one of two", []string{"a", "b"}, "a", nil, []string{"a", "b"}, []string{"a: alone"}, nil},
		{"ends with the error of failed", []string{"a", "b"}, "a", away, []string{"a"}, []string{"a: alone"}, away},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls, failed []string
			err := batch.OneByOne(c.items, cause, func(item string) error {
				calls = append(calls, item)
				if item == c.fail {
					return errors.New("alone")
				}
				return nil
			}, func(item string, err error) error {
				failed = append(failed, item+": "+err.Error())
				return c.answer
			})
			require.Equal(t, c.err, err)
			require.Equal(t, c.calls, calls)
			require.Equal(t, c.failed, failed)
		})
	}
}

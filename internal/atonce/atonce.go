// Package atonce does the parts of one piece of work at once. It owns no tables.
package atonce

import (
	"context"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// Part is one part of the work. It ends early when ctx ends, as it does when another part fails.
type Part func(ctx context.Context) error

// Do does all parts, at most so many at once, and returns the first error. It panics if a part did, so that whoever
// recovers the caller's panics recovers those of its parts.
func Do(ctx context.Context, most int, parts ...Part) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(most)
	for _, part := range parts {
		group.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = panicked{fmt.Sprintf("%v\n%s", p, debug.Stack())}
				}
			}()
			return part(ctx)
		})
	}

	err := group.Wait()
	if p, ok := err.(panicked); ok {
		panic(p.text)
	}
	return err
}

// panicked is the error of a part that panicked.
type panicked struct{ text string }

func (p panicked) Error() string { return p.text }

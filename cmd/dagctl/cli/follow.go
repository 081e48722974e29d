package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// patience is how long commands that follow something go on asking a server that does not answer.
const patience = 2 * time.Minute

// Follower asks again and again how something is that goes on without the command. While the server does not answer,
// as in a restart, it goes on asking, and gives up after a while.
type Follower struct {
	CLI    *CLI
	API    *Client
	GoesOn string // what goes on, such as "the build of sales v2"; empty: nothing was started
	Hint   string // how to follow it, once the command has given up
	Before func() // called before a line is printed, to erase what is drawn; nil: nothing is
}

// Get asks once, and again while the server does not answer.
func (f Follower) Get(ctx context.Context, path string, query url.Values, answer any) error {
	return f.Do(ctx, func() error { return f.API.Get(ctx, path, query, answer) })
}

// Do calls ask, and calls it again while the server does not answer.
func (f Follower) Do(ctx context.Context, ask func() error) error {
	limit := cmp.Or(f.CLI.Patience, patience)
	var since time.Time
	for {
		err := ask()
		if !unavailable(err) {
			return err
		}

		if since.IsZero() {
			since = time.Now()
			f.sayAway(err, limit)
		} else if time.Since(since) >= limit {
			return f.gaveUp(err, limit)
		}
		if err := Sleep(ctx, min(time.Second, limit)); err != nil {
			return err
		}
	}
}

// How long a command pauses between two looks at what it follows.
const shortestPause, longestPause = 300 * time.Millisecond, 5 * time.Second

// Pause waits before the next look; asked is when the last one began.
func (f Follower) Pause(ctx context.Context, asked time.Time) error {
	return Sleep(ctx, pauseAfter(time.Since(asked)))
}

// pauseAfter returns how long to pause after a look that took some time. The longer the answer took, the more it cost
// the server, and the later the next look. An answer that took very long was held up by something else.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(shortestPause, 4*took), longestPause)
}

// unavailable reports whether a server cannot be reached, or cannot answer for now.
func unavailable(err error) bool {
	var classified *fault.Error
	return errors.As(err, &classified) && classified.Kind == fault.Unavailable
}

// sayAway says that the server is asked again. Programs see nothing of it.
func (f Follower) sayAway(err error, limit time.Duration) {
	if f.CLI.Output == "json" {
		return
	}
	if f.Before != nil {
		f.Before()
	}
	fmt.Fprintln(f.CLI.Err, f.CLI.Style(f.CLI.Err).Busy(
		fmt.Sprintf("No answer, asked again for %s: %s", Duration(limit), err)))
}

func (f Follower) gaveUp(err error, limit time.Duration) error {
	if f.GoesOn == "" {
		return err
	}
	return fault.New(fault.Unavailable, "no answer for %s: %s; %s goes on without this command",
		Duration(limit), strings.TrimSuffix(err.Error(), "."), f.GoesOn).WithHint("%s", f.Hint)
}

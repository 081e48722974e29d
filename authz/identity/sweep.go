package identity

import (
	"context"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// sweepEvery is how often what is over is removed, and keepEnded how long sessions stay after their end.
const (
	sweepEvery = 10 * time.Minute
	keepEnded  = "interval '30 days'"
)

// Run removes what is over until ctx ends.
func (id *Identity) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := id.sweep(ctx); err != nil && ctx.Err() == nil {
			id.Log.Warn("ended sessions stay for now", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// sweep removes sign-ins of the command line that nobody completed, and sessions and links that ended long ago.
func (id *Identity) sweep(ctx context.Context) error {
	const batch = 10_000
	for _, statement := range []string{
		`DELETE FROM cli_logins WHERE id IN (SELECT id FROM cli_logins WHERE expires_at < now() LIMIT $1)`,
		`DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE ends_at < now() - ` + keepEnded + ` LIMIT $1)`,
		`DELETE FROM sign_in_links
		WHERE id IN (SELECT id FROM sign_in_links WHERE expires_at < now() - ` + keepEnded + ` LIMIT $1)`,
	} {
		for {
			tag, err := id.Owner.Exec(ctx, statement, batch)
			if err != nil {
				return fault.Wrap(err, "sweep sessions")
			}
			if tag.RowsAffected() < batch {
				break
			}
		}
	}
	return nil
}

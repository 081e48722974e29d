package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// A copy of a storage carries the marker of the installation as well as the original does. So each server leaves an
// object of its own name, and looks for those of the others, once for each. Of two that do not see each other's, the
// younger one uses the wrong storage: it takes no tasks. What was copied while a server ran has its name, so it is not
// enough that the younger one finds the older: the older one must find the younger, too, and notes it in the database
// if it does not.

// reasonApart is the reason of a storage that another server does not use.
const reasonApart = "the storage is not the one that another server of this database uses; it may be a copy"

const (
	// awayAfter is how long a server may be silent before its name does not count any more.
	awayAfter = 90 * time.Second
	// patience is how long a new object may stay unseen elsewhere: clients of a network's file system remember for a
	// minute what was not there.
	patience = 90 * time.Second
	// forgottenAfter is after how long of silence a server's name is removed.
	forgottenAfter = time.Hour
)

// neighbour is another server that uses the storage, or says so.
type neighbour struct {
	id       string
	older    bool
	apart    bool // it knows that its storage is not that of the others
	seasoned bool // its object is so old that everybody must see it
	missedBy string
	counts   time.Time // until when it counts unless it looks again
}

// meet looks for the names of the other servers, and returns an error if this one uses another storage than they do.
func (h *Health) meet(ctx context.Context) error {
	if h.Server == "" {
		return nil
	}
	// Somebody may have removed it; servers that start would miss it.
	switch there, err := h.Storage.HasName(ctx, h.Server); {
	case err != nil:
		return err
	case !there:
		if err := h.Storage.LeaveName(ctx, h.Server); err != nil {
			return err
		}
	}

	all, missedBy, err := h.neighbours(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	apart, err := h.compareNames(ctx, all, missedBy)
	if err != nil {
		return err
	}
	if (apart != nil) != h.apart { // others do not go by this one's storage then
		_, err := h.Pool.Exec(ctx, `UPDATE storage_servers SET apart = $2 WHERE id = $1`, h.Server, apart != nil)
		if err != nil {
			return fmt.Errorf("%w: %w", errUnknown, err)
		}
		h.apart = apart != nil
	}
	return apart
}

// compareNames looks for the names of other servers. It returns as apart why this one's storage is another than theirs.
func (h *Health) compareNames(ctx context.Context, all []neighbour, missedBy string) (apart, err error) {
	var later []neighbour // that this one misses
	for _, n := range all {
		if n.id == missedBy {
			apart = h.apartFrom(n)
		}
		if h.met[n.id] {
			continue
		}
		there, err := h.Storage.HasName(ctx, n.id)
		switch {
		case err != nil:
			return nil, err
		case there:
			h.met[n.id] = true
			err = h.noteMissed(ctx, n, "")
		case !n.seasoned || n.apart:
		case n.older:
			apart = h.apartFrom(n)
		default:
			later = append(later, n)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnknown, err)
		}
	}

	if apart != nil {
		return apart, nil // what it misses says nothing of the others
	}
	for _, n := range later {
		if err := h.noteMissed(ctx, n, h.Server); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnknown, err)
		}
	}
	return nil, nil
}

// neighbours notes that this server looks, and returns the others that have looked of late, and which of them misses
// this one.
func (h *Health) neighbours(ctx context.Context) (all []neighbour, missedBy string, err error) {
	var began time.Time
	err = h.Pool.QueryRow(ctx, `
		INSERT INTO storage_servers (id) VALUES ($1)
		ON CONFLICT (id) DO UPDATE SET looked_at = clock_timestamp()
		RETURNING began_at, coalesce(missed_by, '')`, h.Server).Scan(&began, &missedBy)
	if err != nil {
		return nil, "", fmt.Errorf("note the look of %s: %w", h.Server, err)
	}

	rows, err := h.Pool.Query(ctx, `
		SELECT id, (began_at, id) < ($2, $1), apart, began_at <= clock_timestamp() - make_interval(secs => $3),
			coalesce(missed_by, ''), looked_at + make_interval(secs => $4)
		FROM storage_servers WHERE id <> $1 AND looked_at > clock_timestamp() - make_interval(secs => $4)
		ORDER BY looked_at, id`, h.Server, began, h.Patience.Seconds(), awayAfter.Seconds())
	if err != nil {
		return nil, "", fmt.Errorf("servers that use the storage: %w", err)
	}
	all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (n neighbour, err error) {
		return n, row.Scan(&n.id, &n.older, &n.apart, &n.seasoned, &n.missedBy, &n.counts)
	})
	if err != nil {
		return nil, "", fmt.Errorf("servers that use the storage: %w", err)
	}
	return all, missedBy, h.forget(ctx)
}

// noteMissed notes that this server misses a younger one, or, with an empty text, that it has found it.
func (h *Health) noteMissed(ctx context.Context, n neighbour, by string) error {
	if n.missedBy == by || by == "" && n.missedBy != h.Server {
		return nil
	}
	if by != "" {
		h.Log.Warn("a server that came later uses another storage, and is to take no tasks", "server", n.id)
	}
	_, err := h.Pool.Exec(ctx, `UPDATE storage_servers SET missed_by = NULLIF($2, '') WHERE id = $1`, n.id, by)
	return err
}

// apartFrom returns the error of a server that uses another storage than one that was there before. That one may be no
// more: a restored database names those of the time of the backup. Nothing but its silence tells, since it may be
// frozen, or cut off from the database for a while.
func (h *Health) apartFrom(n neighbour) error {
	other := n.id
	until := fmt.Sprintf("if %s runs no more, this server goes on at %s", other, n.counts.UTC().Format(time.RFC3339))
	return &storage.Unusable{Reason: reasonApart, Until: until, Err: fault.New(fault.Unavailable,
		"this server and %s, which was there before, have a storage each: one of them does not see the other's name, "+
			"as %s is this one's", other, h.Storage.NamePlace(h.Server)).
		WithHint("give every server the same storage.root or storage.s3; files that this server has written since it "+
			"started are missing for the others: `dagctl doctor --verify-files` lists them. After the restore of a "+
			"backup, wait: %s", until)}
}

// forget removes the names of servers that have been silent for long.
func (h *Health) forget(ctx context.Context) error {
	rows, err := h.Pool.Query(ctx, `DELETE FROM storage_servers
		WHERE looked_at < clock_timestamp() - make_interval(secs => $1) RETURNING id`, forgottenAfter.Seconds())
	if err != nil {
		return fmt.Errorf("forget servers: %w", err)
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("forget servers: %w", err)
	}
	for _, id := range gone {
		_ = h.Storage.RemoveName(ctx, id) // it means nothing any more
	}
	return nil
}

// leave removes the name of this server, which ends. Where that fails, the others do so later.
func (h *Health) leave() {
	if h.Server == "" || h.Reason() != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := h.Pool.Exec(ctx, `DELETE FROM storage_servers WHERE id = $1`, h.Server); err == nil {
		_ = h.Storage.RemoveName(ctx, h.Server)
	}
}

package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// The reasons of a storage that is not that of this installation.
const (
	reasonOthers   = "the storage is that of another installation"
	reasonUnmarked = "the storage is not the one that this installation wrote to before"
)

// compare checks that the storage carries the marker of this installation. The first server to come writes it, while
// it holds the row of the installation.
func (h *Health) compare(ctx context.Context) error {
	if h.id != "" {
		return compareMarker(ctx, h.Storage, h.id, true)
	}

	var id string
	var differs error
	err := pg.InTx(ctx, h.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO installation DEFAULT VALUES ON CONFLICT DO NOTHING`); err != nil {
			return err
		}
		var key uuid.UUID
		var marked *time.Time
		if err := tx.QueryRow(ctx, `SELECT id, marked_at FROM installation FOR UPDATE`).Scan(&key, &marked); err != nil {
			return err
		}
		id = key.String()

		if differs = compareMarker(ctx, h.Storage, id, marked != nil); differs != nil || marked != nil {
			return nil // a new id is kept: its marker may be written next time
		}
		if differs = h.Storage.Mark(ctx, id); differs == nil {
			differs = compareMarker(ctx, h.Storage, id, true)
		}
		if differs != nil {
			return nil
		}
		_, err := tx.Exec(ctx, `UPDATE installation SET marked_at = clock_timestamp()`)
		return err
	})
	switch {
	case differs != nil:
		return differs
	case err != nil:
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	h.id = id
	return nil
}

// Check reports whether a storage carries the marker of a database's installation. It writes nothing.
func Check(ctx context.Context, pool *pgxpool.Pool, s *storage.Storage) error {
	var id uuid.UUID
	var marked *time.Time
	err := pool.QueryRow(ctx, `SELECT id, marked_at FROM installation`).Scan(&id, &marked)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // no server has started yet
	}
	if err != nil {
		return fmt.Errorf("installation: %w", err)
	}
	return compareMarker(ctx, s, id.String(), marked != nil)
}

// compareMarker compares the marker of a storage with an installation's id. One that was not marked may have none.
func compareMarker(ctx context.Context, s *storage.Storage, id string, marked bool) error {
	have, err := s.Marker(ctx)
	switch {
	case err != nil:
		return err
	case have == id, have == "" && !marked:
		return nil
	case have == "":
		return &storage.Unusable{Reason: reasonUnmarked, Err: fault.New(fault.Unavailable,
			"%s does not exist, although a server of this database has written it", s.MarkerPlace()).
			WithHint("give every server the same storage.root or storage.s3, and mount what is missing; if the "+
				"files have moved here, bring the marker too: a file with the one line %s", id)}
	}
	return &storage.Unusable{Reason: reasonOthers, Err: fault.New(fault.Unavailable,
		"%s says that this is the storage of installation %.40q, and the database is that of %s",
		s.MarkerPlace(), have, id).
		WithHint("give this server a storage of its own, or the database that belongs to this one; if the files "+
			"here are those of this database, replace the marker's line by %s", id)}
}

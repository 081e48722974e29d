package auditlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Writers of entries do not wait for each other, so an entry has no number when it is written. A loop of each server
// seals what has been committed since; the row of an org in audit_heads keeps it to one server at a time.

// sealEvery is how often a server looks for entries to seal.
const sealEvery = time.Second

// Sealer gives entries their places in the chains of all orgs.
type Sealer struct {
	owner *pgxpool.Pool
	log   *slog.Logger
	batch int // entries in one transaction
}

// NewSealer returns a sealer. The pool is the owner's: no request seals.
func NewSealer(owner *pgxpool.Pool, log *slog.Logger) *Sealer {
	return &Sealer{owner: owner, log: log, batch: 1000}
}

// Run seals new entries until ctx ends.
func (s *Sealer) Run(ctx context.Context) error {
	tick := time.NewTicker(sealEvery)
	defer tick.Stop()
	for failing := false; ; {
		err := s.Seal(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			s.log.Error("audit entries could not be sealed, will try again", "error", fault.Hinted(err))
		}
		failing = err != nil

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Seal seals all committed entries. Orgs take turns, a batch at a time. It leaves out those that another server seals.
func (s *Sealer) Seal(ctx context.Context) (failed error) {
	for again := true; again; {
		orgs, err := s.orgsToSeal(ctx)
		if err != nil {
			return fmt.Errorf("find orgs with unsealed audit entries: %w", err)
		}

		again = false
		for _, org := range orgs {
			n, err := s.sealBatch(ctx, org)
			if err != nil { // the other orgs do not wait for it
				failed = fmt.Errorf("seal audit entries of org %s: %w", org, err)
			}
			again = again || err == nil && n == s.batch
		}
	}
	return failed
}

// orgsToSeal returns the orgs that have unsealed entries. It steps from org to org in idx_audit_log_unsealed, however
// many entries each has.
func (s *Sealer) orgsToSeal(ctx context.Context) ([]uuid.UUID, error) {
	rows, err := s.owner.Query(ctx, `
		WITH RECURSIVE unsealed (org) AS (
			(SELECT org_id FROM audit_log WHERE seq IS NULL ORDER BY org_id LIMIT 1)
			UNION ALL
			SELECT (SELECT a.org_id FROM audit_log a WHERE a.seq IS NULL AND a.org_id > u.org ORDER BY a.org_id LIMIT 1)
			FROM unsealed u WHERE u.org IS NOT NULL)
		SELECT org FROM unsealed WHERE org IS NOT NULL`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// sealBatch seals the oldest unsealed entries of an org, and returns how many; none if another server does so.
func (s *Sealer) sealBatch(ctx context.Context, org uuid.UUID) (sealed int, err error) {
	err = pg.InTx(ctx, s.owner, func(ctx context.Context, tx pgx.Tx) error {
		head, ours, err := lockHead(ctx, tx, org)
		if err != nil || !ours {
			return err
		}
		entries, err := collect(ctx, tx, `SELECT `+columns+` FROM audit_log WHERE org_id = $1 AND seq IS NULL
			ORDER BY at, id LIMIT $2`, org, s.batch) // idx_audit_log_unsealed
		if err != nil {
			return err
		}
		sealed = len(entries)
		return seal(ctx, tx, org, head, entries)
	})
	return sealed, err
}

// lockHead locks the end of an org's chain and returns it; ours is false while another server has the lock.
func lockHead(ctx context.Context, tx pgx.Tx, org uuid.UUID) (h Head, ours bool, err error) {
	if _, err := tx.Exec(ctx, `INSERT INTO audit_heads (org_id, seq, hash) VALUES ($1, 0, $2)
		ON CONFLICT DO NOTHING`, org, h.Hash[:]); err != nil {
		return h, false, err
	}
	return headOf(ctx, tx, org, `FOR UPDATE SKIP LOCKED`)
}

// seal puts entries at the end of an org's chain.
func seal(ctx context.Context, tx pgx.Tx, org uuid.UUID, head Head, entries []authz.AuditEntry) (err error) {
	ids, seqs, hashes := make([]uuid.UUID, len(entries)), make([]int64, len(entries)), make([][]byte, len(entries))
	for i, e := range entries {
		if head, err = head.after(org, e); err != nil {
			return err
		}
		ids[i], seqs[i], hashes[i] = e.ID, head.Seq, append([]byte(nil), head.Hash[:]...)
	}

	tag, err := tx.Exec(ctx, `
		UPDATE audit_log a SET seq = s.seq, hash = s.hash FROM unnest($2::uuid[], $3::bigint[], $4::bytea[]) AS s(id, seq, hash)
		WHERE a.org_id = $1 AND a.id = s.id AND a.seq IS NULL`, org, ids, seqs, hashes)
	if taken := new(pgconn.PgError); errors.As(err, &taken) && taken.Code == "23505" {
		return fault.New(fault.Conflict, "entry %d or a later one is there already, and no server sealed it", seqs[0]).
			WithHint("`dagctl audit verify` says what was changed; nothing of the org is sealed while it is there")
	}
	if err != nil {
		return err
	}
	if tag.RowsAffected() != int64(len(entries)) {
		return fmt.Errorf("%d of %d entries are gone or sealed", int64(len(entries))-tag.RowsAffected(), len(entries))
	}
	_, err = tx.Exec(ctx, `UPDATE audit_heads SET seq = $2, hash = $3 WHERE org_id = $1`, org, head.Seq, head.Hash[:])
	return err
}

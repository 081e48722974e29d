package auditlog_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/internal/pg"
)

// Writers of two orgs do not wait for sealers, of which there are three, and each org gets a chain without gaps.
func TestConcurrentWritersGetOneChainForEachOrg(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const writers, each = 4, 40
	writing, ctx := errgroup.WithContext(t.Context())
	for i := range 2 * writers {
		caller := w.acme
		if i%2 == 1 {
			caller = w.umbrella
		}
		writing.Go(func() error {
			for range each {
				err := pg.InOrgTx(ctx, w.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
					return authz.Audit(ctx, tx, caller, "thing.change", fmt.Sprint("thing ", i), nil)
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}

	written := make(chan struct{})
	sealing, until := errgroup.WithContext(t.Context())
	for range 3 {
		s := w.newSealer()
		s.Batches(7)
		sealing.Go(func() error {
			for {
				if err := s.Seal(until); err != nil {
					return err
				}
				select {
				case <-written:
					return nil
				default:
				}
			}
		})
	}
	require.NoError(t, writing.Wait())
	close(written)
	require.NoError(t, sealing.Wait())
	require.NoError(t, w.sealer.Seal(t.Context()))

	heads := map[string]bool{}
	for _, caller := range []authz.Caller{w.acme, w.umbrella} {
		found := w.verify(t, caller, auditlog.Head{})
		require.True(t, found.Whole, "%+v", found.Break)
		require.Equal(t, []int64{writers*each + 1, 1, writers*each + 1, 0},
			[]int64{found.Entries, found.First, found.Last, found.Unsealed})
		heads[found.Head] = true
	}
	require.Len(t, heads, 2)
}

// Entries of before the chain are unsealed, like those of the last second.
func TestVerifyCountsWhatIsNotSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, auditlog.ChainCheck{Whole: true, Unsealed: 1}, w.verify(t, w.acme, auditlog.Head{}))
	w.sealed(t, 3)
	w.write(t, w.acme, "thing.change", "thing.change")
	found := w.verify(t, w.acme, auditlog.Head{})
	require.Equal(t, []int64{3, 1, 3, 2}, []int64{found.Entries, found.First, found.Last, found.Unsealed})
	require.Regexp(t, `^3:[0-9a-f]{64}$`, found.Head)
	require.True(t, found.Whole)
}

// tamperings are what somebody with the rights of the owner does to a log of ten sealed entries, and how it shows.
var tamperings = map[string]struct {
	do   string
	what string
	seq  int64
}{
	"actor":            {`UPDATE audit_log SET actor = 'token:other' WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"detail":           {`UPDATE audit_log SET detail = detail || '{"after": 2}' WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"outcome":          {`UPDATE audit_log SET outcome = 'refused' WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"time":             {`UPDATE audit_log SET at = at + interval '1 microsecond' WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"request":          {`UPDATE audit_log SET request_id = '' WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"object to action": {`UPDATE audit_log SET action = action || 't', object = substr(object, 2) WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"hash":             {`UPDATE audit_log SET hash = sha256('x') WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"no hash":          {`UPDATE audit_log SET hash = NULL WHERE org_id = $1 AND seq = 4`, "changed", 4},
	"first removed":    {`DELETE FROM audit_log WHERE org_id = $1 AND seq = 1`, "removed", 1},
	"one removed":      {`DELETE FROM audit_log WHERE org_id = $1 AND seq = 4`, "removed", 4},
	"some removed":     {`DELETE FROM audit_log WHERE org_id = $1 AND seq BETWEEN 4 AND 6`, "removed", 4},
	"last removed":     {`DELETE FROM audit_log WHERE org_id = $1 AND seq = 10`, "removed", 10},
	"all removed":      {`DELETE FROM audit_log WHERE org_id = $1`, "removed", 1},
	"removed and closed up": {`WITH gone AS (DELETE FROM audit_log WHERE org_id = $1 AND seq = 10 RETURNING *)
		UPDATE audit_log a SET actor = g.actor, object = g.object, hash = g.hash FROM gone g WHERE a.org_id = $1 AND a.seq = 9`, "changed", 9},
	"unsealed again": {`UPDATE audit_log SET seq = NULL, hash = NULL WHERE org_id = $1 AND seq = 4`, "removed", 4},
	"swapped": {`UPDATE audit_log a SET id = b.id, object = b.object, at = b.at, hash = b.hash, detail = b.detail FROM audit_log b
		WHERE a.org_id = $1 AND b.org_id = $1 AND a.seq IN (4, 5) AND b.seq = 9 - a.seq`, "changed", 4},
	"put in at the end": {`INSERT INTO audit_log (id, org_id, actor, action, object, seq, hash)
		VALUES (gen_random_uuid(), $1, 'token:other', 'a.b', 'c', 11, sha256('x'))`, "inserted", 11},
	"put in between": {`WITH moved AS (UPDATE audit_log SET seq = seq + 1 WHERE org_id = $1 AND seq >= 4 RETURNING hash)
		INSERT INTO audit_log (id, org_id, actor, action, object, seq, hash)
		SELECT gen_random_uuid(), $1, 'token:other', 'a.b', 'c', 4, min(encode(hash, 'hex'))::bytea FROM moved`, "changed", 4},
	"head": {`UPDATE audit_heads SET hash = sha256('x') WHERE org_id = $1`, "changed", 10},
}

func TestTamperingIsFound(t *testing.T) {
	t.Parallel()
	for name, tampering := range tamperings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.sealed(t, 10)
			require.True(t, w.verify(t, w.acme, auditlog.Head{}).Whole)
			if name == "swapped" || name == "put in between" { // keys would refuse it for a moment
				_, err := w.owner.Exec(t.Context(), `ALTER TABLE audit_log DROP CONSTRAINT audit_log_pkey;
					DROP INDEX audit_log_org_id_seq_key`)
				require.NoError(t, err)
			}
			w.exec(t, tampering.do, w.acme.OrgID)

			found := w.verify(t, w.acme, auditlog.Head{})
			require.False(t, found.Whole)
			require.Equal(t, tampering.what, found.Break.What, "%+v", found.Break)
			require.Equal(t, tampering.seq, found.Break.Seq, found.Break.Text)
			if name != "head" {
				require.Equal(t, tampering.seq-1, found.Entries, "all before it holds")
			}

			// What is sealed afterwards does not mend it.
			w.write(t, w.acme, "thing.change")
			if err := w.sealer.Seal(t.Context()); name == "put in at the end" {
				require.ErrorContains(t, err, "entry 11 or a later one is there already, and no server sealed it")
			} else {
				require.NoError(t, err)
			}
			later := w.verify(t, w.acme, auditlog.Head{})
			require.False(t, later.Whole)
			require.True(t, w.verify(t, w.umbrella, auditlog.Head{}).Whole, "the other org's chain is whole")
			require.Equal(t, found.Entries, later.Entries)
		})
	}
}

// Whoever writes the whole chain anew, with the head, is found out by a head that was kept elsewhere.
func TestARememberedHeadShowsThatAChainWasWrittenAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sealed(t, 5)
	old, err := auditlog.ParseHead(w.verify(t, w.acme, auditlog.Head{}).Head)
	require.NoError(t, err)
	w.sealed(t, 3)
	require.True(t, w.verify(t, w.acme, old).Whole)
	anew := func() {
		w.exec(t, `UPDATE audit_log SET seq = NULL, hash = NULL WHERE org_id = $1`, w.acme.OrgID)
		w.exec(t, `DELETE FROM audit_heads WHERE org_id = $1`, w.acme.OrgID)
		require.NoError(t, w.sealer.Seal(t.Context()))
		require.True(t, w.verify(t, w.acme, auditlog.Head{}).Whole, "nothing else shows it")
	}

	w.exec(t, `UPDATE audit_log SET actor = 'token:other' WHERE org_id = $1 AND seq = 2`, w.acme.OrgID)
	anew()
	found := w.verify(t, w.acme, old)
	require.Equal(t, []any{"rewritten", int64(5)}, []any{found.Break.What, found.Break.Seq})

	w.exec(t, `DELETE FROM audit_log WHERE org_id = $1 AND seq > 3`, w.acme.OrgID)
	anew()
	found = w.verify(t, w.acme, old)
	require.Equal(t, []any{"removed", int64(4)}, []any{found.Break.What, found.Break.Seq})
	require.False(t, w.verify(t, w.umbrella, old).Whole, "it is no head of another org")
}

func TestParseHead(t *testing.T) {
	t.Parallel()
	good := fmt.Sprintf("12:%064x", 7)
	h, err := auditlog.ParseHead(good)
	require.NoError(t, err)
	require.Equal(t, good, h.String())
	for _, text := range []string{"", "12", "12:", ":" + good[3:], "0:" + good[3:], "-1:" + good[3:], good + "00",
		good[:len(good)-2], "x" + good, "12:" + good} {
		_, err := auditlog.ParseHead(text)
		require.Error(t, err, text)
	}
}

// No request seals, or says when something was.
func TestRequestsSealNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sealed(t, 3)
	for what, sql := range map[string]string{
		"a number": `INSERT INTO audit_log (id, org_id, actor, action, object, seq) VALUES (gen_random_uuid(), $1, 'a', 'b', 'c', 4)`,
		"a hash":   `INSERT INTO audit_log (id, org_id, actor, action, object, hash) VALUES (gen_random_uuid(), $1, 'a', 'b', 'c', 'x')`,
		"a time":   `INSERT INTO audit_log (id, org_id, actor, action, object, at) VALUES (gen_random_uuid(), $1, 'a', 'b', 'c', '2020-01-01')`,
		"update":   `UPDATE audit_log SET seq = NULL WHERE org_id = $1`,
		"delete":   `DELETE FROM audit_log WHERE org_id = $1`,
		"head":     `UPDATE audit_heads SET seq = 0 WHERE org_id = $1`,
		"no head":  `DELETE FROM audit_heads WHERE org_id = $1`,
		"a head":   `INSERT INTO audit_heads (org_id, seq, hash) VALUES ($1, 9, 'x') ON CONFLICT (org_id) DO UPDATE SET seq = 9`,
		"truncate": `TRUNCATE audit_heads`,
		"trigger":  `ALTER TABLE audit_log DISABLE TRIGGER ALL`,
		"replica":  `SET session_replication_role = replica`,
	} {
		err := pg.InOrgTx(t.Context(), w.requests, w.acme.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			args := []any{w.acme.OrgID}
			if what == "truncate" || what == "trigger" || what == "replica" {
				args = nil
			}
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
		require.ErrorContains(t, err, "42501", what)
	}
	require.True(t, w.verify(t, w.acme, auditlog.Head{}).Whole)
	w.write(t, w.acme, "thing.change")
	require.Equal(t, int64(1), w.verify(t, w.acme, auditlog.Head{}).Unsealed)
}

// Many entries of before the chain are sealed in batches and verified in pages. It logs how long that takes.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const entries = 5000
	w.exec(t, `INSERT INTO audit_log (id, org_id, actor, action, object, detail, request_id, at)
		SELECT gen_random_uuid(), $1, 'token:ci', 'query.run', 'orders,people', jsonb_build_object('rows', n, 'datasets',
			jsonb_build_array(jsonb_build_object('dataset', 'orders', 'columns', ARRAY['id', 'customer', 'total']))),
			gen_random_uuid(), now() - n * interval '1 second'
		FROM generate_series(1, $2::int) AS n`, w.acme.OrgID, entries-1)
	began := time.Now()
	require.NoError(t, w.sealer.Seal(t.Context()))
	sealed := time.Now()
	found := w.verify(t, w.acme, auditlog.Head{})
	t.Logf("%d entries: sealed in %s, verified in %s", entries, sealed.Sub(began), time.Since(sealed))
	require.True(t, found.Whole)
	require.Equal(t, []int64{entries, entries, 0}, []int64{found.Entries, found.Last, found.Unsealed})
}

// What fails to be sealed is logged with its error, by which an outage of the database is told from other trouble.
func TestASealerLogsErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	logged := make(chan slog.Record, 1)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w.owner.Close()
	go auditlog.NewSealer(w.owner, slog.New(records(logged))).Run(ctx)

	(<-logged).Attrs(func(a slog.Attr) bool {
		require.Equal(t, "error", a.Key)
		require.Implements(t, (*error)(nil), a.Value.Any())
		return true
	})
}

// records takes what is logged.
type records chan<- slog.Record

func (records) Enabled(context.Context, slog.Level) bool             { return true }
func (r records) Handle(_ context.Context, record slog.Record) error { r <- record; return nil }
func (r records) WithAttrs([]slog.Attr) slog.Handler                 { return r }
func (r records) WithGroup(string) slog.Handler                      { return r }

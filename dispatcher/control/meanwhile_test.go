package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A dataset that is closed to somebody, or deleted, while they wait for its DAG's lock is not acted on: the owner acts,
// whom no wall holds back, and so looks again once nothing can change any more.
func TestNobodyActsOnWhatIsHiddenMeanwhile(t *testing.T) {
	t.Parallel()
	acts := map[string]func(w *dispatchertest.World, as authz.Caller) error{
		"publish an event": func(w *dispatchertest.World, as authz.Caller) error {
			_, err := w.D.Control.PublishEvent(w.T.Context(), as, "loaded", control.PublishRequest{Partition: "a"},
				time.Now())
			return err
		},
		"invalidate": func(w *dispatchertest.World, as authz.Caller) error {
			_, err := w.D.Invalidate(w.T.Context(), as, "loaded", dispatcher.InvalidateRequest{}, time.Now())
			return err
		},
	}
	changes := map[string]string{
		"closed":  `UPDATE datasets SET read_roles = '{role:finance}' WHERE org_id = $1 AND name = 'loaded'`,
		"deleted": `UPDATE datasets SET deleted_at = now() WHERE org_id = $1 AND name = 'loaded'`,
	}
	for what, act := range acts {
		for how, change := range changes {
			t.Run(what+" of what is "+how, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				w.Serve(loadedByHand)
				w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a", Payload: dispatchertest.Payload(1)})
				w.Settle()
				before := w.Published("load")
				writer := authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: w.Caller.OrgSlug, Actor: "token:writer",
					Role: authz.RoleWriter}

				ended := make(chan error, 1)
				require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
					if err := registry.LockDAG(ctx, tx, w.Caller.OrgID, "mail"); err != nil {
						return err
					}
					go func() { ended <- act(w, writer) }()
					w.Eventually("they wait for the lock", func() bool {
						return w.Count(`SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
							WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database()`) > 0
					})
					_, err := tx.Exec(ctx, change, w.Caller.OrgID)
					return err
				}))
				err := <-ended
				require.True(t, fault.Is(err, fault.NotFound), err)
				require.ErrorContains(t, err, `there is no dataset "loaded"`)
				require.Equal(t, before, w.Published("load"), "nothing has changed")
				require.Zero(t, w.Count(`SELECT FROM data_invalidations`))
				require.Zero(t, w.Count(`SELECT FROM audit_log WHERE actor = 'token:writer'`))
			})
		}
	}
}

// What was done is answered with, also if its dataset is closed to whoever did it in the moment of the commit.
func TestAnswersAboutWhatIsClosedAtTheCommit(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	writer := authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: w.Caller.OrgSlug, Actor: "token:writer",
		Role: authz.RoleWriter}
	w.Exec(`CREATE FUNCTION close_all() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN UPDATE datasets SET read_roles = '{role:finance}'; RETURN NULL; END $$`)
	for _, table := range []string{"backfills", "bulk_actions"} {
		w.Exec(`CREATE CONSTRAINT TRIGGER closes AFTER INSERT OR UPDATE ON ` + table + ` DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION close_all()`)
	}
	open := func() { w.Exec(`UPDATE datasets SET read_roles = '{}'`) }

	begun, err := w.D.Control.StartBackfill(t.Context(), writer, "letters",
		control.BackfillRequest{Job: "upper", From: "2024-01-01", To: "2024-01-02", Existing: "all"}, time.Now())
	require.NoError(t, err)
	_, err = w.D.Control.Backfill(t.Context(), writer, "letters", begun.ID)
	require.True(t, fault.Is(err, fault.NotFound), "%v: it is hidden by now", err)
	open()
	canceled, err := w.D.Control.CancelBackfill(t.Context(), writer, "letters", begun.ID, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Canceled", canceled.Status)

	open()
	many, err := w.D.Control.StartBulk(t.Context(), writer, control.VerbCancel,
		control.BulkRequest{Filter: views.TaskSelection{DAG: "letters"}, Rate: 0.1}, time.Now())
	require.NoError(t, err)
	require.NotEmpty(t, many.Status)
}

package dispatchertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// TaskOf returns the newest task of a partition of a job.
func (w *World) TaskOf(job, partition string) (id uuid.UUID) {
	w.T.Helper()
	w.Row(`SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.partitions[1] = $2
		AND t.kind <> 'check' ORDER BY t.id DESC LIMIT 1`, job, partition)(&id)
	return id
}

// Refused requires that a conflict refused the call.
func Refused(t *testing.T, err error) {
	t.Helper()
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

// Files lists the files of the storage on disk; folders, such as those of attempts that never became a revision, are
// left out.
func (w *World) Files() (names []string) {
	w.T.Helper()
	require.NoError(w.T, filepath.WalkDir(w.Data, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, strings.TrimPrefix(path, w.Data+"/"))
		}
		return err
	}))
	return names
}

// Named lists the files that rows name.
func (w *World) Named() []string {
	w.T.Helper()
	return Texts(w.T, w.Pool, `SELECT DISTINCT f ->> 'path'
		FROM partition_versions p, jsonb_array_elements(p.files) AS f
		WHERE jsonb_typeof(p.files) = 'array' ORDER BY 1`)
}

// Row runs a query of one row; the function that it returns scans the row.
func (w *World) Row(sql string, args ...any) func(dest ...any) {
	w.T.Helper()
	return func(dest ...any) {
		w.T.Helper()
		require.NoError(w.T, w.Pool.QueryRow(w.T.Context(), sql, args...).Scan(dest...))
	}
}

// Count returns the number of rows of a query.
func (w *World) Count(sql string, args ...any) (n int) {
	w.T.Helper()
	w.Row(`SELECT count(*) FROM (`+sql+`) AS q`, args...)(&n)
	return n
}

// Exec runs a statement as the owner of the tables.
func (w *World) Exec(sql string, args ...any) {
	w.T.Helper()
	_, err := w.Pool.Exec(w.T.Context(), sql, args...)
	require.NoError(w.T, err)
}

// Texts returns the rows of a query of one text column.
func Texts(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return found
}

// Watched is the name of connections whose reads ReadInSequence counts.
const Watched = "watched"

// ReadInSequence returns the tables of which so many rows, or more, were read in sequence, as "table: rows". It waits
// until the connections named Watched, which the caller has closed, have ended: then their counts are complete.
func (w *World) ReadInSequence(least int) []string {
	w.T.Helper()
	for w.Count(`SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`,
		Watched) > 0 {
	}
	return Texts(w.T, w.Pool, `SELECT relname || ': ' || seq_tup_read FROM pg_stat_user_tables
		WHERE seq_tup_read >= $1`, least)
}

// Tasks lists the tasks of a job, oldest first, as "partition status reason".
func (w *World) Tasks(job string) []string {
	w.T.Helper()
	return Texts(w.T, w.Pool, `
		SELECT concat_ws(' ', coalesce(t.partitions[1], '-'), t.status, t.reason) FROM tasks t
		JOIN jobs j ON j.id = t.job_id
		WHERE j.name = $1 AND t.kind <> 'check' ORDER BY t.id`, job)
}

// Attempts counts how often tasks of a job were run.
func (w *World) Attempts(job string) int {
	w.T.Helper()
	return w.AttemptsOf(`SELECT t.* FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.kind <> 'check'`, job)
}

// Runs counts how often any task was run.
func (w *World) Runs() int {
	w.T.Helper()
	return w.AttemptsOf(`SELECT * FROM tasks`)
}

// AttemptsOf counts how often the tasks of a query were run: the number of an attempt grows only once the task has
// started before.
func (w *World) AttemptsOf(tasks string, args ...any) (n int) {
	w.T.Helper()
	w.Row(`SELECT coalesce(sum(attempt), 0) FROM (`+tasks+`) AS t WHERE started_at IS NOT NULL`, args...)(&n)
	return n
}

// Task returns the status and reason of a task, and the set that it is in.
func (w *World) Task(id uuid.UUID) string {
	w.T.Helper()
	var text string
	w.Row(`SELECT concat_ws(' ', t.status, t.reason, (SELECT 'ready' FROM ready r WHERE r.task_id = t.id),
		(SELECT 'waiting:' || q.reason FROM waiting q WHERE q.task_id = t.id), (SELECT 'leased' FROM leases l
		WHERE l.task_id = t.id))
		FROM tasks t WHERE id = $1`, id)(&text)
	return text
}

// Read returns the rows of a dataset as its readers see them, by partition, each as text.
func (tn *Tenant) Read(name string) map[string][]string {
	tn.W.T.Helper()
	out, err := tn.TryRead(name)
	require.NoError(tn.W.T, err)
	return out
}

// TryRead reads a dataset like Read, which may be refused.
func (tn *Tenant) TryRead(name string) (map[string][]string, error) {
	w := tn.W
	var generation storage.Generation
	var partitions []storage.Partition
	err := pg.InOrgTx(w.T.Context(), w.Requests, tn.Caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		generation, partitions, _, err = w.D.Registry.ResolveForRead(ctx, tx, tn.Caller, name)
		return err
	})
	if err != nil {
		return nil, err
	}

	out := map[string][]string{}
	for _, p := range partitions {
		columns, rows, err := w.Storage.Preview(w.T.Context(), generation, []storage.Partition{p}, 10_000, 0)
		if err != nil {
			return nil, err
		}
		out[p.Key] = []string{}
		for _, row := range rows {
			values := make([]string, len(columns))
			for i := range columns {
				values[i] = fmt.Sprint(row[i])
			}
			out[p.Key] = append(out[p.Key], strings.Join(values, ","))
		}
		slices.Sort(out[p.Key])
	}
	return out, nil
}

// Published returns the published revision of each partition of a job's outputs in the active version.
func (tn *Tenant) Published(job string) map[string]int64 {
	tn.W.T.Helper()
	rows, err := tn.W.Pool.Query(tn.W.T.Context(), `
		SELECT p.partition_key, p.revision FROM dag_version_datasets s
		JOIN dag_current_versions c ON c.dag_version_id = s.dag_version_id
		JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.state = 'Published'
		WHERE s.org_id = $1 AND s.job_name = $2`, tn.Caller.OrgID, job)
	require.NoError(tn.W.T, err)
	found := map[string]int64{}
	var key string
	var revision int64
	_, err = pgx.ForEachRow(rows, []any{&key, &revision}, func() error { found[key] = revision; return nil })
	require.NoError(tn.W.T, err)
	return found
}

// Generation returns the dataset version that a DAG version pins for a job's first output.
func (tn *Tenant) Generation(version uuid.UUID, job string) (id uuid.UUID) {
	tn.W.T.Helper()
	tn.W.Row(`SELECT dataset_version FROM dag_version_datasets WHERE dag_version_id = $1 AND job_name = $2
		AND output_index = 0`, version, job)(&id)
	return id
}

// ProblemsOf lists the problems that a refusal names.
func ProblemsOf(err error) (messages []string) {
	var f *fault.Error
	if errors.As(err, &f) {
		for _, p := range f.Problems {
			messages = append(messages, p.Location+": "+p.Message)
		}
	}
	return messages
}

// FiguresOf returns the metrics of a dispatcher: values by name and labels, and for histograms the number of
// observations. The org of the world is called acme.
func (w *World) FiguresOf(d *service.Service) map[string]float64 {
	w.T.Helper()
	r := prometheus.NewRegistry()
	require.NoError(w.T, r.Register(d.Views.Metrics()))
	families, err := r.Gather()
	require.NoError(w.T, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+strings.ReplaceAll(l.GetValue(), w.Caller.OrgID.String(),
					"acme"))
			}
			name := strings.TrimPrefix(f.GetName(), "dagctl_") + "{" + strings.Join(labels, ",") + "}"
			found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

// Lost lists the revisions that lack a file as "dataset partition", with a star before revisions that are served.
func (w *World) Lost() (names []string) {
	w.T.Helper()
	var after registry.RevisionPosition
	for {
		lost, _, next, err := w.D.Registry.VerifyFiles(w.T.Context(), w.Caller, after, 2)
		require.NoError(w.T, err)
		for _, l := range lost {
			mark := ""
			if l.Served {
				mark = "*"
			}
			names = append(names, mark+l.Dataset+" "+l.Key)
		}
		if next == nil {
			return names
		}
		after = *next
	}
}

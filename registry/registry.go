// Package registry knows what is defined and what exists: DAG versions, their jobs, datasets, their generations,
// the pointer sets and the partitions. It deploys documents, finds the consumers of each dataset, records
// revisions inside the completions that made them, and moves the pointers at cutover.
//
// Vocabulary: a DAG version is immutable and keyed by its hash. Each of its jobs has a row, and an origin: the row
// that introduced the same definition. A generation (dataset version) is one config hash of one dataset; a version's
// pointer set pins one generation per dataset. A revision is one materialisation of one partition of a generation:
// Held until its checks pass, Published, Replaced by the next, or Rejected.
//
// It owns dag_versions, dag_current_versions, dag_activations, jobs, job_inputs, datasets, dataset_versions,
// dag_version_datasets, generation_inputs, read_role_patterns, build_epochs, partition_versions, partition_inputs,
// check_results, pins, reader_leases, dataset_readings, udf_bundles, reading_changes, reading_epochs, kept_hidden.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/recent"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/storage"
)

// Config is what a Registry needs.
type Config struct {
	Pool     *pgxpool.Pool // the owner's: for what the platform does by itself
	Requests *pgxpool.Pool // under row-level security: for what users' requests do
	Storage  *storage.Storage
	Catalog  dag.Catalog // the operators and runtimes that this server has
	Vault    *authz.Vault
	Log      *slog.Logger

	// Folders returns an error if the file sources of a DAG may not read a path on this server; nil: not checked.
	Folders func(org, dag, path string) error
	// Misfit looks, for a bounded time, for a value that does not fit the column of its name, in partitions by their
	// Parquet files. Looked is how many of them have none. Nil: nobody can look.
	Misfit func(ctx context.Context, org string, partitions [][]string, columns []relations.Column,
	) (found *relations.Misfit, looked int, err error)
}

// Registry answers for definitions and for what exists. It is safe for concurrent use and holds no state but rows that
// never change, what it found a moment ago, and indexes that every search checks against the rows.
type Registry struct {
	Config
	jobs        recent.Cache[uuid.UUID, *Job]
	authorities authorities
	indexes     indexes
	keeping     singleflight.Group // of what is hidden, by org and roles
}

// New validates the config.
func New(c Config) (*Registry, error) {
	if c.Pool == nil || c.Requests == nil {
		return nil, errors.New("registry: both pools are needed")
	}
	if len(c.Catalog.Operators) == 0 {
		return nil, errors.New("registry: a catalog without operators accepts no DAG")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Registry{Config: c}, nil
}

// HeldIdle is how long a transaction that holds the lock of a DAG may say nothing before PostgreSQL ends it: a process
// that is frozen or cut off must not hold up the deploys of a DAG. It is shorter than a request may take, so that who
// waits gets the lock. What takes longer within such a transaction goes through pg.WhileAlive.
const HeldIdle = 15 * time.Second

// holdBriefly is the expression that bounds a transaction by HeldIdle until it ends.
var holdBriefly = fmt.Sprintf(`set_config('idle_in_transaction_session_timeout', '%d', true)`, HeldIdle.Milliseconds())

// LockDAG takes the DAG's lock for this transaction: a deploy or a cutover alone, routers and completions together.
// Callers that take several take them through LockDAGs, in key order, so that two of them cannot deadlock.
func LockDAG(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) error {
	_, err := tx.Exec(ctx, `SELECT `+holdBriefly+`, pg_advisory_xact_lock(hashtextextended($1, 0))`,
		DagKey(org, dagName))
	return heldByOthers(err, dagName)
}

// heldByOthers says what a transaction waited for in vain if it waited for the lock of a DAG.
func heldByOthers(err error, dagName string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		err = &fault.Error{Kind: fault.Unavailable, Err: err, Message: "DAG " + dagName + " is being changed: " +
			"another deploy, plan or cutover of it has held it for as long as this request may wait",
			Hint: fmt.Sprintf("try again in %d s: a server that is frozen or cut off has lost the DAG by then; "+
				"`dagctl history %s` shows what changed it", int(HeldIdle.Seconds()), dagName)}
	default:
		err = pg.Busy(err, "DAG "+dagName+" is being changed")
	}
	return fmt.Errorf("lock DAG %s: %w", dagName, err)
}

// LockDAGsShared takes the locks of several DAGs shared, in the order of their hashes.
func LockDAGsShared(b *pg.Batch, keys []string) {
	b.Exec("lock DAGs", `
		SELECT `+holdBriefly+`, pg_advisory_xact_lock_shared(h)
		FROM (SELECT DISTINCT hashtextextended(k, 0) AS h FROM unnest($1::text[]) AS k ORDER BY h) AS keys`, keys)
}

// LockDAGShared takes the lock of one DAG shared.
func LockDAGShared(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) error {
	var b pg.Batch
	LockDAGsShared(&b, []string{DagKey(org, dagName)})
	return heldByOthers(b.Send(ctx, tx), dagName)
}

// DagKey names the DAG's lock.
func DagKey(org uuid.UUID, dagName string) string { return org.String() + "/" + dagName }

// LockKey names the lock of the job's DAG.
func (j *Job) LockKey() string { return DagKey(j.OrgID, j.DAG) }

// Address is DAG/JOB, as people write it.
func (j *Job) Address() string { return j.DAG + "/" + j.Name }

// ForwardOnly reports whether a changed definition of the job applies from cutover on and rebuilds nothing.
func (r *Registry) ForwardOnly(j *Job) bool {
	return j.Def.ForwardOnly(r.Catalog.Operators[j.Def.Operator])
}

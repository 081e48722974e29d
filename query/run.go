package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Statement is a user's SQL and the moment to read the datasets at.
type Statement struct {
	SQL   string
	At    registry.Moment
	Limit int // rows; 0: 1000, or fewer if the server allows fewer
	// Explain asks for the plan of the statement in place of its rows. It is not run.
	Explain bool

	as     engine.Streamed // of what goes to the writer
	to     io.Writer       // takes what the statement returns; nil: it is in the Answer
	export bool            // it may take as long as exports may
	whole  string          // a part of it, as a statement that must be one by itself; empty: none
}

// Answer holds the rows of a statement. All datasets were read as of one moment.
type Answer struct {
	Columns   []storage.Column `json:"columns" nullable:"false"`
	Rows      [][]any          `json:"rows" nullable:"false"`
	Truncated bool             `json:"truncated" doc:"There are more rows, or more bytes than allowed"`
	Datasets  []Source         `json:"datasets" nullable:"false" doc:"The datasets that were read"`
	Plan      string           `json:"plan,omitempty" doc:"Of explain: how the statement would be run, as text for people"`
	Bytes     int64            `json:"bytes" doc:"Size of the rows, as JSON"`
	Duration  int64            `json:"duration_ms" doc:"Milliseconds that it took, until the last row was there"`

	count int // of rows, also where they are not here but in a file
}

// Source is a dataset that was read.
type Source struct {
	Dataset    string    `json:"dataset"`
	Version    uuid.UUID `json:"dataset_version"`
	DAG        string    `json:"dag"`
	DAGVersion int       `json:"dag_version" doc:"The DAG version whose pointer was followed"`
}

// FirstStatement returns a statement to start with for a dataset.
func FirstStatement(d registry.Dataset) string { return "SELECT * FROM " + NameOf(d) + " LIMIT 100" }

// NameOf returns the name of a dataset as a statement has it.
func NameOf(d registry.Dataset) string {
	if !d.Published {
		return sqltext.Quote(d.Name)
	}
	return d.Name
}

// QuoteName returns the name of a column as a statement has it: in quotation marks if it is no plain word.
func QuoteName(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return sqltext.Quote(name)
}

var plainName = late.Pattern(`^[a-z_][a-z0-9_]*$`)

// Run runs one SELECT over the datasets that the caller may see, by their names, in an engine of its own that
// has their files and nothing else. Storage that keeps only one revision may have replaced a pinned one; Run then
// pins all datasets again.
func (q *Query) Run(ctx context.Context, caller authz.Caller, s Statement) (Answer, error) {
	return bounded(ctx, q, caller.OrgID.String(), s, func(ctx context.Context, s Statement) (Answer, error) {
		begun := time.Now()
		answer, err := q.run(ctx, caller, s)
		if err != nil {
			return Answer{}, fmt.Errorf("query: %w", err)
		}
		answer.Duration = time.Since(begun).Milliseconds()
		return answer, nil
	})
}

// bounded checks a statement of an org and runs it, within the limits on concurrent statements and on time.
func bounded[A any](ctx context.Context, q *Query, org string, s Statement,
	answer func(ctx context.Context, s Statement) (A, error)) (none A, err error) {
	if err := q.check(&s); err != nil {
		return none, err
	}

	release, err := q.slots.take(org)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, q.Limits.Timeout, q.tooSlow())
	defer cancel()

	a, err := answer(ctx, s)
	if errors.Is(err, context.DeadlineExceeded) { // the caller's own deadline, or ours as a connection reports it
		err = q.tooSlow()
	}
	if err != nil {
		return none, err
	}
	return a, nil
}

func (q *Query) tooSlow() error {
	return fault.New(fault.TooLarge, "the query took longer than the %s that a query may take", q.Limits.Timeout).
		WithHint("ask for fewer partitions or columns, or make it a job")
}

// check refuses statements that cannot succeed.
func (q *Query) check(s *Statement) error {
	switch {
	case len(s.SQL) > MaxSQL:
		return fault.New(fault.TooLarge, "the statement has %d bytes; at most %d are allowed", len(s.SQL), MaxSQL)
	case !utf8.ValidString(s.SQL) || strings.ContainsRune(s.SQL, 0):
		return fault.New(fault.Invalid, "the statement is not valid UTF-8 text")
	case strings.TrimSpace(s.SQL) == "":
		return fault.New(fault.Invalid, "there is no statement").WithHint("write one SELECT")
	case s.Limit < 0 || s.Limit > q.Limits.Rows && !s.export:
		return fault.New(fault.Invalid, "limit %d is not between 1 and %d", s.Limit, q.Limits.Rows)
	case s.Limit == 0 && !s.export:
		s.Limit = min(defaultRows, q.Limits.Rows)
	}
	if s.Explain {
		s.as = engine.AsPlan
	}
	return nil
}

func (q *Query) run(ctx context.Context, caller authz.Caller, s Statement) (Answer, error) {
	a, names, err := q.begin(ctx, caller.OrgID, as(caller), relations.UTC, s)
	if err != nil {
		return Answer{}, err
	}
	defer a.Discard()

	const tries = 3
	for try := 1; ; try++ {
		read, err := q.pin(ctx, caller, s.At, names, q.Limits.Timeout)
		if err != nil {
			return Answer{}, err
		}
		given, err := q.open(ctx, pruned(read.datasets, names), relations.NamesPartition(s.SQL), a.Engine)
		if fault.Is(err, fault.Conflict) && try < tries {
			if err := q.release(ctx, caller, read); err != nil {
				return Answer{}, err
			}
			continue
		}

		var out outcome
		if err == nil {
			there, end := q.whileThere(ctx, caller, read)
			out, err = a.rows(there, given)
			end()
			err = q.blame(ctx, caller, pruned(read.datasets, names), err)
		}

		// Rows leave only after the audit log records it.
		if written := q.finish(ctx, caller, s.At, read, out, err); err == nil {
			err = written
		}
		if err != nil {
			return Answer{}, err
		}
		return read.answer(out)
	}
}

// reading holds the datasets that one query reads.
type reading struct {
	datasets []registry.Readable
	hold     uuid.UUID
}

// pin resolves all datasets in one snapshot and protects their generations from gc for as long as the query may take.
func (q *Query) pin(ctx context.Context, caller authz.Caller, at registry.Moment, names []engine.Reading,
	within time.Duration) (reading, error) {
	wanted := make([]string, len(names))
	for i, n := range names {
		wanted[i] = n.Name
	}

	var r reading
	err := pg.InOrgSnapshot(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		r = reading{}
		found, err := registry.Resolve(ctx, tx, caller, wanted, at)
		if err != nil {
			return err
		}

		for _, n := range names {
			dataset, ok := found[n.Name]
			if !ok {
				return missing(n, at)
			}
			if err := withColumns(dataset, at); err != nil {
				return err
			}
			r.datasets = append(r.datasets, dataset)
		}

		if len(r.datasets) == 0 {
			return nil
		}
		r.hold, err = registry.HoldForRead(ctx, tx, caller.OrgID, r.versions(), "query:"+caller.RequestID, clock.Now(),
			within+time.Minute)
		return err
	})
	if err != nil || at.Live() || len(r.datasets) == 0 {
		return r, err
	}

	err = pg.InOrgTx(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return registry.StillThere(ctx, tx, caller.OrgID, r.datasets)
	})
	if err != nil {
		return r, errors.Join(err, q.release(ctx, caller, r))
	}
	return r, nil
}

// missing says that there is no dataset at a moment, or none that the caller may read.
func missing(n engine.Reading, at registry.Moment) error {
	if at.Live() {
		return fault.New(fault.NotFound, "there is no dataset %q%s", n.Name, n.Place).
			WithHint("`dagctl datasets list` shows those you may read")
	}
	return fault.New(fault.NotFound, "there is no dataset %q at that moment%s", n.Name, n.Place).
		WithHint("`dagctl datasets list` shows those you may read now, and `dagctl history DAG` its versions")
}

// withColumns refuses a dataset of which no row has shown the columns.
func withColumns(d registry.Readable, at registry.Moment) error {
	switch {
	case len(d.Columns) > 0 || len(d.Partitions) > 0:
		return nil
	case at.Live():
		return fault.New(fault.Conflict, "dataset %s has no rows yet, and its columns are not known", d.Name).
			WithHint("`dagctl why %s` says what it waits for", d.Name)
	}
	return fault.New(fault.Conflict, "dataset %s had no rows then, and its columns are not known", d.Name).
		WithHint("leave --at out to query what is served")
}

func (r reading) versions() []uuid.UUID {
	versions := make([]uuid.UUID, len(r.datasets))
	for i, d := range r.datasets {
		versions[i] = d.Generation.Version
	}
	return versions
}

// open gives the datasets' files to an engine. With keyed, the statement may ask for the partitions of rows.
func (q *Query) open(
	ctx context.Context, datasets []registry.Readable, keyed bool, g *engine.Engine,
) ([]relations.Relation, error) {
	list := []relations.Relation{}
	copied := int64(0)
	for _, d := range datasets {
		if q.Storage.Copies(d.Generation.Kind) {
			copied += d.Bytes
		}
		if copied > q.Limits.CopyBytes {
			return nil, fault.New(fault.TooLarge,
				"the query reads more than %d MB of datasets in Postgres storage or in a "+
					"bucket", q.Limits.CopyBytes>>20).
				WithHint("query those in PostgreSQL through their views, or raise queries.max_copy_mb in the " +
					"server's config")
		}

		own, err := g.Own()
		if err != nil {
			return nil, err
		}
		opened, err := q.Storage.Open(ctx, d.Generation, d.Partitions, own)
		if err != nil {
			err = fmt.Errorf("open dataset %s: %w", d.Name, err)
			return nil, q.lost(ctx, d.Generation, d.Name, q.missingIn(ctx, d.Generation, d.Partitions), err)
		}
		files, err := g.In(slices.Concat(opened...)...)
		if err != nil {
			return nil, err
		}
		list = append(list, relations.Relation{Name: d.Name, Schema: d.Columns, Fill: d.Mixed, Files: files,
			Alike: alike(d), Keyed: keyed, Keys: storage.KeysOf(d.Partitions, opened)})
	}
	return list, nil
}

func (q *Query) release(ctx context.Context, caller authz.Caller, r reading) error {
	return q.whateverHappened(ctx, caller, func(ctx context.Context, tx pgx.Tx) error {
		return registry.ReleaseRead(ctx, tx, caller.OrgID, r.hold)
	})
}

// finish releases the generations and records who read what.
func (q *Query) finish(ctx context.Context, caller authz.Caller, at registry.Moment, r reading, out outcome,
	failed error) error {
	u := r.use(at, out)
	u.Rows = &out.Count
	if failed != nil {
		u.Rows, u.Failed = new(int), failure(failed)
	}
	return q.whateverHappened(ctx, caller, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.ReleaseRead(ctx, tx, caller.OrgID, r.hold); err != nil {
			return err
		}
		return u.write(ctx, tx, caller, "query.run")
	})
}

// use returns what the audit log keeps of a reading at a moment.
func (r reading) use(at registry.Moment, out outcome) use {
	u := use{Datasets: []read{}}
	for _, d := range r.datasets {
		u.Datasets = append(u.Datasets, read{d.Name, d.Generation.Version, append([]string{}, out.Read[d.Name]...)})
	}
	if !at.Live() {
		u.At = at.Which
	}
	return u
}

// failure returns the kind of an error, as the audit log has it.
func failure(err error) string {
	if errors.Is(err, context.Canceled) {
		return "canceled"
	}
	return fault.KindOf(err).String()
}

// whateverHappened runs a transaction even if nobody waits for the query any more.
func (q *Query) whateverHappened(ctx context.Context, caller authz.Caller,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return pg.InOrgTx(ctx, q.Requests, caller.OrgID, fn)
}

func (r reading) answer(out outcome) (Answer, error) {
	a, err := answerOf(out.Columns, out.List)
	if err != nil {
		return Answer{}, err
	}
	a.count, a.Truncated, a.Datasets, a.Plan, a.Bytes = out.Count, out.Truncated, []Source{}, out.Plan, out.Size
	if a.Columns == nil {
		a.Columns = []storage.Column{}
	}
	for _, d := range r.datasets {
		a.Datasets = append(a.Datasets, Source{d.Name, d.Generation.Version, d.DAG, d.DAGVersion})
	}
	return a, nil
}

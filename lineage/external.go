package lineage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Outside is the name of a dataset or job of another system.
type Outside struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

const datasetOutside, jobOutside = "external:", "external-job:"

// node returns the id of its node.
func (o Outside) node(prefix string) string {
	return prefix + url.PathEscape(o.Namespace) + "/" + o.Name
}

// outsideOf returns what a node is the id of.
func outsideOf(node string) (o Outside, job bool) {
	job = strings.HasPrefix(node, jobOutside)
	namespace, name, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(node, jobOutside), datasetOutside), "/")
	o.Name = name
	o.Namespace, _ = url.PathUnescape(namespace) // node has escaped it
	return o, job
}

// End is a dataset that a job outside read or made: one of dagctl, or another.
type End struct {
	Dataset uuid.UUID `json:"dataset,omitzero"`
	Outside `json:",omitzero"`
	// Columns are those of a dataset that was made, with what they were computed from.
	Columns []ColumnOutside `json:"columns,omitempty"`
}

// Node returns the id of the dataset's node.
func (e End) Node() string {
	if e.Dataset != uuid.Nil {
		return e.Dataset.String()
	}
	return e.Outside.node(datasetOutside)
}

// id returns the id of one of dagctl's datasets; nil if it is another.
func (e End) id() *uuid.UUID {
	if e.Dataset == uuid.Nil {
		return nil
	}
	return &e.Dataset
}

// ColumnOutside says that Column was computed from column Field of a dataset, whose node is From.
type ColumnOutside struct {
	Column    string    `json:"column"`
	From      string    `json:"from"`
	Field     string    `json:"field"`
	Transform Transform `json:"transform"`
}

// Told is what a producer outside says about a run of one of its jobs, or about the job itself if there is no run. Its
// datasets are resolved.
type Told struct {
	Job     Outside
	Run     uuid.UUID // the zero id: no run
	At      time.Time
	Done    bool // it has made what it makes, so that the edges count
	Inputs  []End
	Outputs []End
}

// MaxOutside is how many edges of jobs outside an org has at most. MaxEnds is how many inputs, and how many outputs, a
// run has at most.
const MaxOutside, MaxEnds = 20_000, 200

// runsKept is how long it is remembered what the events of a run that has not completed have said.
const runsKept = 7 * 24 * time.Hour

// Tell stores what a producer outside says. Events of one run add up, and may come several times and in any order.
func Tell(ctx context.Context, tx pgx.Tx, org uuid.UUID, t Told, now time.Time) error {
	if t.At.After(now) {
		t.At = now // a clock that is ahead must not outlive what comes later
	}
	if t.Run != uuid.Nil {
		if err := gather(ctx, tx, org, &t, now); err != nil {
			return err
		}
	}
	if !t.Done {
		return nil
	}

	edges := t.edges()
	var count int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM (SELECT FROM external_edges WHERE org_id = $1 LIMIT $2) AS e`,
		org, MaxOutside).Scan(&count)
	if err != nil {
		return fmt.Errorf("count edges outside: %w", err)
	}
	if count+len(edges) > MaxOutside {
		return fault.New(fault.Conflict, "the org has %d edges of jobs outside, and with the %d of this event "+
			"there would be more than %d", count, len(edges), MaxOutside).
			WithHint("`DELETE /v1/lineage?namespace=…` removes those of a namespace that is no longer needed")
	}

	var b pg.Batch
	for _, e := range edges {
		b.Exec("record an edge outside", `
			INSERT INTO external_edges (org_id, job_namespace, job_name, from_node, to_node, from_dataset, to_dataset,
				columns, first_seen, last_seen)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
			ON CONFLICT (org_id, job_namespace, job_name, from_node, to_node) DO UPDATE
			SET columns = CASE WHEN external_edges.last_seen <= EXCLUDED.last_seen AND EXCLUDED.columns <> '[]'
					THEN EXCLUDED.columns ELSE external_edges.columns END,
				first_seen = least(external_edges.first_seen, EXCLUDED.first_seen),
				last_seen = greatest(external_edges.last_seen, EXCLUDED.last_seen)`,
			org, t.Job.Namespace, t.Job.Name, e.from, e.to, e.fromDataset, e.toDataset, e.columns, t.At)
	}
	return b.Send(ctx, tx)
}

// gather adds what earlier events of the run have said to what this one says, and remembers both.
func gather(ctx context.Context, tx pgx.Tx, org uuid.UUID, t *Told, now time.Time) error {
	_, err := tx.Exec(ctx, `DELETE FROM external_runs WHERE org_id = $1 AND run_id IN (
		SELECT run_id FROM external_runs WHERE org_id = $1 AND at < $2 ORDER BY at LIMIT 100 FOR UPDATE SKIP LOCKED)`,
		org, now.Add(-runsKept))
	if err != nil {
		return fmt.Errorf("forget old runs outside: %w", err)
	}

	// The row is locked before it is read: two events of a run may come at once.
	var job Outside
	var inputs, outputs []byte
	err = tx.QueryRow(ctx, `
		INSERT INTO external_runs (org_id, run_id, job_namespace, job_name, at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (org_id, run_id) DO UPDATE SET at = EXCLUDED.at
		RETURNING job_namespace, job_name, inputs, outputs`, org, t.Run, t.Job.Namespace, t.Job.Name, now).
		Scan(&job.Namespace, &job.Name, &inputs, &outputs)
	if err != nil {
		return fmt.Errorf("gather what run %s outside has said: %w", t.Run, err)
	}
	if job != t.Job {
		return fault.New(fault.Conflict, "run %s is one of job %s in %s, by an earlier event", t.Run, job.Name,
			job.Namespace).WithHint("give each run an id of its own")
	}

	for _, part := range []struct {
		stored []byte
		ends   *[]End
	}{{inputs, &t.Inputs}, {outputs, &t.Outputs}} {
		var before []End
		if err := json.Unmarshal(part.stored, &before); err != nil {
			return fmt.Errorf("what run %s outside has said: %w", t.Run, err)
		}
		*part.ends = merged(before, *part.ends)
		if len(*part.ends) > MaxEnds {
			return fault.New(fault.Invalid, "run %s has more than %d inputs, or outputs", t.Run, MaxEnds)
		}
	}
	_, err = tx.Exec(ctx, `UPDATE external_runs SET inputs = $3, outputs = $4 WHERE org_id = $1 AND run_id = $2`,
		org, t.Run, t.Inputs, t.Outputs)
	if err != nil {
		return fmt.Errorf("remember what run %s outside says: %w", t.Run, err)
	}
	return nil
}

// merged adds ends to others. One that both have keeps its columns, unless the new one has some.
func merged(before, now []End) []End {
	for _, e := range now {
		at := slices.IndexFunc(before, func(b End) bool { return b.Node() == e.Node() })
		switch {
		case at < 0:
			before = append(before, e)
		case len(e.Columns) > 0:
			before[at].Columns = e.Columns
		}
	}
	return before
}

// outsideEdge is an edge of a job outside, as it is stored.
type outsideEdge struct {
	job                    Outside
	from, to               string
	fromDataset, toDataset *uuid.UUID
	columns                []Columns
}

// edges returns an edge from each input to each output. A job that only reads, or only makes, is an end itself.
func (t Told) edges() (edges []outsideEdge) {
	self := t.Job.node(jobOutside)

	for _, out := range t.Outputs {
		for _, in := range t.Inputs {
			e := outsideEdge{t.Job, in.Node(), out.Node(), in.id(), out.id(), []Columns{}}
			for _, c := range out.Columns {
				if c.From == e.from {
					e.columns = append(e.columns, Columns{From: c.Field, To: c.Column, Transform: c.Transform})
				}
			}
			if e.columns = distinct(e.columns); e.from != e.to {
				edges = append(edges, e)
			}
		}

		if len(t.Inputs) == 0 {
			edges = append(edges, outsideEdge{t.Job, self, out.Node(), nil, out.id(), []Columns{}})
		}
	}

	if len(t.Outputs) == 0 {
		for _, in := range t.Inputs {
			edges = append(edges, outsideEdge{t.Job, in.Node(), self, in.id(), nil, []Columns{}})
		}
	}
	return edges
}

// Forget removes what was told of the jobs and datasets of a namespace, and returns how many edges that were.
func (l *Lineage) Forget(ctx context.Context, caller authz.Caller, namespace string) (n int64, err error) {
	o := Outside{Namespace: namespace}
	err = pg.InOrgTx(ctx, l.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM external_edges
			WHERE org_id = $1 AND (job_namespace = $2 OR starts_with(from_node, $3) OR starts_with(to_node, $3))`,
			caller.OrgID, namespace, o.node(datasetOutside))
		if err != nil {
			return err
		}
		n = tag.RowsAffected()
		return authz.Audit(ctx, tx, caller, "lineage.forget", namespace, map[string]any{"edges": n})
	})
	if err != nil {
		return 0, fmt.Errorf("forget namespace %s: %w", namespace, err)
	}
	return n, nil
}

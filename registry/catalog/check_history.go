package catalog

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Check is what one check found over the last revisions of a dataset.
type Check struct {
	Name     string    `json:"name"`
	Severity string    `json:"severity" enum:"error,warn"`
	Outcome  string    `json:"outcome" enum:"pass,fail,error" doc:"Of its last run"`
	At       time.Time `json:"at" doc:"When it ran last"`
	Passed   int64     `json:"passed" doc:"Of the runs in history"`
	Failed   int64     `json:"failed" doc:"Of the runs in history, with those that ended with an error"`
	History  []Run     `json:"history" nullable:"false" doc:"The last 30 runs, the oldest first"`
}

// Run is one run of a check.
type Run struct {
	Partition string    `json:"partition"`
	Revision  int64     `json:"revision"`
	Outcome   string    `json:"outcome" enum:"pass,fail,error"`
	Failures  int64     `json:"failures,omitempty" doc:"Rows that do not pass"`
	At        time.Time `json:"at"`
}

// runsShown is how many runs of a check its history has.
const runsShown = 30

// checks returns the checks of a generation that the version which serves has, those first that failed last. Rows that
// do not pass, and errors, which may quote them, are not in it.
func checks(ctx context.Context, tx pgx.Tx, org uuid.UUID, generation *uuid.UUID) ([]Check, error) {
	found := []Check{}
	if generation == nil {
		return found, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT r.name, r.severity, r.partition_key, r.revision, r.outcome, r.failures, r.at
		FROM (SELECT k.*, row_number() OVER (PARTITION BY k.name ORDER BY k.at DESC, k.partition_key DESC, k.revision DESC) AS n
		      FROM check_results k
		      WHERE k.org_id = $1 AND k.dataset_version = $2 AND EXISTS (
		          SELECT FROM dag_version_datasets p
		          JOIN dag_current_versions c ON c.dag_version_id = p.dag_version_id
		          JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		          WHERE p.dataset_version = k.dataset_version AND j.definition -> 'checks' @>
		              jsonb_build_array(jsonb_build_object('name', k.name, 'output', p.output_index)))) AS r
		WHERE r.n <= $3 ORDER BY r.name, r.n DESC`, org, *generation, runsShown)
	if err != nil {
		return nil, err
	}

	var (
		name, severity string
		run            Run
	)
	_, err = pgx.ForEachRow(rows,
		[]any{&name, &severity, &run.Partition, &run.Revision, &run.Outcome, &run.Failures, &run.At}, func() error {
			if len(found) == 0 || found[len(found)-1].Name != name {
				found = append(found, Check{Name: name})
			}
			found[len(found)-1].add(severity, run)
			return nil
		})
	return found, err
}

// add adds a later run.
func (c *Check) add(severity string, run Run) {
	c.Severity, c.Outcome, c.At = severity, run.Outcome, run.At
	c.History = append(c.History, run)
	if run.Outcome == "pass" {
		c.Passed++
	} else {
		c.Failed++
	}
}

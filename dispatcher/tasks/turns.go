package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// DAGs that are built at the same time take turns: the tenth task of one is placed beside the tenth of another,
// whenever they came. Otherwise the nine tasks of a small deploy would wait behind the thousands of a large one. The
// turn is decided once, when a task is placed, so that a claim still reads the ready set in the order of its index.
//
// A task takes its turn by the rank of a task that waits already, and never by a number of its own: so it is never
// older than what it waits beside, and live tasks are not pushed back further than by the other build.

// Bounds of turns.
const (
	turnsSeen = 500            // tasks of each DAG that take turns; those behind them keep the order of their placement
	turnWorth = 24 * time.Hour // how much earlier than its time a task may be placed, by its turn
)

// turnKey names a queue in which builds take turns.
type turnKey struct {
	org     uuid.UUID
	runtime string
}

// turns holds the queues in which a transaction places tasks of builds.
type turns map[turnKey]*queueTurns

// queueTurns is one of those queues.
type queueTurns struct {
	ranks  map[string][]int64 // of the DAGs' ready tasks, lowest first: at most turnsSeen of each
	placed int                // tasks placed so far
}

// turnsOf returns what tasks of builds wait beside. It costs nothing where no task is a build's.
func turnsOf(ctx context.Context, tx pgx.Tx, wanted []Request) (turns, error) {
	var found turns
	for _, w := range wanted {
		key := turnKey{w.Job.OrgID, w.Runtime}
		if w.Class != ClassBuild || found[key] != nil {
			continue
		}
		if found == nil {
			found = turns{}
		}
		ranks, err := readyTurns(ctx, tx, key)
		if err != nil {
			return nil, err
		}
		found[key] = &queueTurns{ranks: ranks}
	}
	return found, nil
}

// readyTurns reads the ranks of a queue's builds. It relies on idx_ready_turn, and touches one place of it for each
// DAG.
func readyTurns(ctx context.Context, tx pgx.Tx, key turnKey) (map[string][]int64, error) {
	var (
		b     pg.Batch
		dag   string
		ranks []int64
		found = map[string][]int64{}
	)
	b.Query("find the builds that take turns", []any{&dag, &ranks}, func() error {
		found[dag], ranks = ranks, nil
		return nil
	}, `
		WITH RECURSIVE dags AS (
			(SELECT turn FROM ready WHERE org_id = $1 AND runtime = $2 AND turn <> ''
			 ORDER BY org_id, runtime, turn LIMIT 1)
			UNION ALL
			SELECT (SELECT r.turn FROM ready r
				WHERE r.org_id = $1 AND r.runtime = $2 AND r.turn > d.turn AND r.turn <> ''
				ORDER BY r.org_id, r.runtime, r.turn LIMIT 1)
			FROM dags d WHERE d.turn IS NOT NULL)
		SELECT d.turn, ARRAY(SELECT r.rank FROM ready r
			WHERE r.org_id = $1 AND r.runtime = $2 AND r.turn = d.turn AND r.turn <> ''
			ORDER BY r.org_id, r.runtime, r.turn, r.rank LIMIT $3)
		FROM dags d WHERE d.turn IS NOT NULL`, key.org, key.runtime, turnsSeen)
	if err := b.Send(ctx, tx); err != nil {
		return nil, fmt.Errorf("turns of builds: %w", err)
	}
	return found, nil
}

// rank returns the place of a new task in the order of its org: that of rankOf or, if builds of other DAGs have a task
// waiting for the same turn, the place of the first such task. Tasks that are placed together are a millisecond apart,
// so that others fit in between.
func (t turns) rank(w Request, now time.Time) int64 {
	rank := rankOf(w.Class, w.priority(), now)
	if w.Class != ClassBuild {
		return rank
	}

	queue := t[turnKey{w.Job.OrgID, w.Runtime}]
	rank += int64(queue.placed)
	turn, beside := len(queue.ranks[w.Job.DAG]), rank
	for dag, ranks := range queue.ranks {
		if dag != w.Job.DAG && turn < len(ranks) {
			beside = min(beside, ranks[turn])
		}
	}

	rank = max(beside, rank-turnWorth.Milliseconds())
	queue.placed++
	queue.ranks[w.Job.DAG] = append(queue.ranks[w.Job.DAG], rank)
	return rank
}

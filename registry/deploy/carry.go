package deploy

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// A job that reads columns by name keeps its generation when its input gets another one that has the same columns. What
// its outputs were made from is then carried over: a swap makes them name the new generation's revisions in place of
// the old one's, provided that they are equal. Two revisions are equal if both were made from the same revisions of
// their inputs, or from equal ones. That their definitions agree in the columns that the job reads is certain, for
// otherwise the job would have another fingerprint. An output with an input that has no equal is left alone: it is
// stale, and is made again after the swap.

// CarryInputs carries what the outputs of a version were made from over to the generations that the version reads. The
// version has just been cut over to, in the same transaction. It returns the new generations that jobs read which
// served before.
func CarryInputs(ctx context.Context, tx pgx.Tx, b registry.Build, back bool) ([]uuid.UUID, error) {
	jobs, generations, err := readersMoved(ctx, tx, b, back)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	outputs, err := consumed(ctx, tx, b, jobs)
	if err != nil {
		return nil, err
	}

	e := equality{dag: b.DAG, org: b.OrgID, made: map[Revised]map[inputAt]madeInput{}, known: map[revisedPair]bool{}}
	var pairs []revisedPair
	for _, inputs := range outputs {
		for _, in := range inputs {
			if in.to != nil {
				pairs = append(pairs, revisedPair{in.from, *in.to})
			}
		}
	}
	if err := e.load(ctx, tx, pairs); err != nil {
		return nil, err
	}
	return generations, carry(ctx, tx, outputs, &e)
}

// readersMoved returns the rows of the version's jobs whose outputs may have been made from other generations than the
// version reads, and those generations that jobs read which served before the swap. A build has made what else the
// version needs, but after a rollback, jobs that did not serve before count, too.
func readersMoved(
	ctx context.Context, tx pgx.Tx, b registry.Build, back bool,
) (jobs, generations []uuid.UUID, err error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id, array_remove(array_agg(n.dataset_version) FILTER (WHERE l.id IS NOT NULL), NULL)
		FROM jobs j
		JOIN dag_current_versions c ON c.org_id = j.org_id AND c.dag_name = j.dag_name
		JOIN job_inputs i ON i.job_id = j.id AND i.in_dag
		JOIN dag_version_datasets n ON n.dag_version_id = j.dag_version_id AND n.dataset_uuid = i.dataset_uuid
		LEFT JOIN jobs l ON l.dag_version_id = c.previous_version_id AND l.origin_job_id = j.origin_job_id
		LEFT JOIN dag_version_datasets w ON w.dag_version_id = l.dag_version_id AND w.dataset_uuid = i.dataset_uuid
		WHERE j.dag_version_id = $1 AND j.by_column
		  AND CASE WHEN l.id IS NULL THEN $2 ELSE w.dataset_version IS DISTINCT FROM n.dataset_version END
		GROUP BY j.id`, b.ID, back)
	if err != nil {
		return nil, nil, fmt.Errorf("reused jobs of %s v%d: %w", b.DAG, b.Number, err)
	}

	var (
		id    uuid.UUID
		reads []uuid.UUID
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &reads}, func() error {
		jobs, generations = append(jobs, id), append(generations, reads...)
		return nil
	}); err != nil {
		return nil, nil, fmt.Errorf("reused jobs of %s v%d: %w", b.DAG, b.Number, err)
	}
	return jobs, generations, nil
}

// consumedInput is an input revision that an output was made from, and the published revision of the generation that is
// read now.
type consumedInput struct {
	index int
	from  Revised
	to    *Revised // nil: it has none
}

// consumed returns the input revisions of other generations than the version reads, by the published output revisions
// that were made from them. It relies on the primary keys of dag_version_datasets, partition_inputs and job_inputs, and
// on idx_partition_versions_published.
func consumed(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []uuid.UUID,
) (map[Revised][]consumedInput, error) {
	rows, err := tx.Query(ctx, `
		SELECT i.output_version, i.output_key, i.output_revision, i.input_index, i.input_version, i.input_key,
		       i.input_revision, n.dataset_version, r.revision
		FROM jobs j
		JOIN dag_version_datasets o ON o.dag_version_id = j.dag_version_id AND o.job_name = j.name
		JOIN partition_versions p ON p.dataset_version = o.dataset_version AND p.state = 'Published'
		JOIN partition_inputs i ON i.output_version = p.dataset_version AND i.output_key = p.partition_key
		     AND i.output_revision = p.revision
		JOIN job_inputs e ON e.job_id = j.id AND e.input_index = i.input_index AND e.dataset_uuid = i.input_dataset AND e.in_dag
		JOIN dag_version_datasets n ON n.dag_version_id = j.dag_version_id AND n.dataset_uuid = i.input_dataset
		     AND n.dataset_version <> i.input_version
		LEFT JOIN partition_versions r ON r.dataset_version = n.dataset_version AND r.partition_key = i.input_key
		     AND r.state = 'Published'
		WHERE j.id = ANY($1) AND NOT EXISTS (
		    SELECT FROM partition_versions k WHERE k.dataset_version = p.dataset_version
		    AND k.partition_key = p.partition_key AND k.inherited_from IS NOT NULL)`, jobs)
	if err != nil {
		return nil, fmt.Errorf("what reused jobs of %s v%d were made from: %w", b.DAG, b.Number, err)
	}

	outputs := map[Revised][]consumedInput{}
	var (
		out     Revised
		in      consumedInput
		reads   uuid.UUID
		present *int64
	)
	into := []any{&out.Version, &out.Key, &out.Revision, &in.index, &in.from.Version, &in.from.Key, &in.from.Revision,
		&reads, &present}
	if _, err := pgx.ForEachRow(rows, into, func() error {
		in.to = nil
		if present != nil {
			in.to = &Revised{Ref: registry.Ref{Version: reads, Key: in.from.Key}, Revision: *present}
		}
		outputs[out] = append(outputs[out], in)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("what reused jobs of %s v%d were made from: %w", b.DAG, b.Number, err)
	}
	return outputs, nil
}

// revisedPair is two revisions that may be equal.
type revisedPair struct{ a, b Revised }

// inputAt is a partition of an input.
type inputAt struct {
	Index int    `json:"index"`
	Key   string `json:"key"`
}

// madeInput is the revision of a partition of an input that a revision was made from.
type madeInput struct {
	inputAt

	Dataset  uuid.UUID `json:"dataset"`
	Version  uuid.UUID `json:"version"`
	Revision int64     `json:"revision"`
}

func (in madeInput) revised() Revised {
	return Revised{Ref: registry.Ref{Version: in.Version, Key: in.Key}, Revision: in.Revision}
}

// equality decides which revisions are equal. A revision that cannot be compared, because no query of this DAG computed
// it, or because it was taken over from another generation, is equal to none.
type equality struct {
	org   uuid.UUID
	dag   string
	made  map[Revised]map[inputAt]madeInput // nil for those that cannot be compared
	known map[revisedPair]bool
}

// load reads what it takes to decide about pairs, with a statement for each level of jobs that was built anew.
func (e *equality) load(ctx context.Context, tx pgx.Tx, pairs []revisedPair) error {
	seen := map[revisedPair]bool{}
	for len(pairs) > 0 {
		if err := e.loadMade(ctx, tx, pairs); err != nil {
			return err
		}
		var further []revisedPair
		for _, p := range pairs {
			for _, up := range e.inputPairs(p) {
				if !seen[up] {
					seen[up] = true
					further = append(further, up)
				}
			}
		}
		pairs = further
	}
	return nil
}

// loadMade reads what revisions were made from. Copies of a revision that was taken over may not say so themselves, so
// none of its partition counts.
func (e *equality) loadMade(ctx context.Context, tx pgx.Tx, pairs []revisedPair) error {
	var (
		versions []uuid.UUID
		keys     []string
		numbers  []int64
	)
	for _, p := range pairs {
		for _, r := range []Revised{p.a, p.b} {
			if _, ok := e.made[r]; !ok {
				e.made[r] = nil
				versions, keys, numbers = append(versions, r.Version), append(keys, r.Key), append(numbers, r.Revision)
			}
		}
	}

	rows, err := tx.Query(ctx, `
		SELECT w.version, w.key, w.revision,
		       jsonb_agg(jsonb_build_object('index', i.input_index, 'key', i.input_key, 'dataset', i.input_dataset,
		           'version', i.input_version, 'revision', i.input_revision))
		FROM unnest($3::uuid[], $4::text[], $5::bigint[]) AS w(version, key, revision)
		JOIN dataset_versions g ON g.id = w.version
		JOIN jobs o ON o.id = g.origin_job_id AND o.org_id = $1 AND o.dag_name = $2 AND o.by_column
		JOIN partition_versions p ON p.dataset_version = w.version AND p.partition_key = w.key AND p.revision = w.revision
		     AND p.state IN ('Published', 'Replaced')
		JOIN partition_inputs i ON i.output_version = w.version AND i.output_key = w.key AND i.output_revision = w.revision
		WHERE NOT EXISTS (SELECT FROM partition_versions k WHERE k.dataset_version = w.version AND k.partition_key = w.key
		                  AND k.inherited_from IS NOT NULL)
		GROUP BY 1, 2, 3`, e.org, e.dag, versions, keys, numbers)
	if err != nil {
		return fmt.Errorf("what revisions of %s were made from: %w", e.dag, err)
	}

	var (
		r      Revised
		inputs []madeInput
	)
	if _, err := pgx.ForEachRow(rows, []any{&r.Version, &r.Key, &r.Revision, &inputs}, func() error {
		e.made[r] = make(map[inputAt]madeInput, len(inputs))
		for _, in := range inputs {
			e.made[r][in.inputAt] = in
		}
		inputs = nil
		return nil
	}); err != nil {
		return fmt.Errorf("what revisions of %s were made from: %w", e.dag, err)
	}
	return nil
}

// inputPairs returns the input revisions of a pair that come from different generations. It returns none if the pair
// cannot be equal, whatever they are.
func (e *equality) inputPairs(p revisedPair) []revisedPair {
	a, b := e.made[p.a], e.made[p.b]
	if a == nil || len(a) != len(b) {
		return nil
	}
	var pairs []revisedPair
	for at, in := range a {
		other, ok := b[at]
		switch {
		case !ok || in.Dataset != other.Dataset || in.Version == other.Version && in.Revision != other.Revision:
			return nil
		case in.Version != other.Version:
			pairs = append(pairs, revisedPair{in.revised(), other.revised()})
		}
	}
	return pairs
}

// equal reports whether two revisions were made from the same data. Inputs of other generations have to be equal
// themselves; those of other DAGs never are.
func (e *equality) equal(p revisedPair) bool {
	if known, ok := e.known[p]; ok {
		return known
	}

	a, b := e.made[p.a], e.made[p.b]
	same := a != nil && len(a) == len(b)
	for at, in := range a {
		other, ok := b[at]
		switch {
		case !same || !ok || in.Dataset != other.Dataset:
			same = false
		case in.Version == other.Version:
			same = in.Revision == other.Revision
		default:
			same = e.equal(revisedPair{in.revised(), other.revised()})
		}
	}
	e.known[p] = same
	return same
}

// carry makes the outputs all of whose inputs have equals name those.
func carry(ctx context.Context, tx pgx.Tx, outputs map[Revised][]consumedInput, e *equality) error {
	type row struct {
		Version     uuid.UUID `json:"version"`
		Key         string    `json:"key"`
		Revision    int64     `json:"revision"`
		Index       int       `json:"index"`
		From        uuid.UUID `json:"from"`
		InputKey    string    `json:"input_key"`
		Was         int64     `json:"was"`
		To          uuid.UUID `json:"to"`
		EqualNumber int64     `json:"equal_number"`
	}
	var rows []row
	for out, inputs := range outputs {
		if slices.ContainsFunc(inputs, func(in consumedInput) bool {
			return in.to == nil || !e.equal(revisedPair{in.from, *in.to})
		}) {
			continue
		}
		for _, in := range inputs {
			rows = append(rows, row{out.Version, out.Key, out.Revision, in.index, in.from.Version, in.from.Key,
				in.from.Revision, in.to.Version, in.to.Revision})
		}
	}
	if len(rows) == 0 {
		return nil
	}

	_, err := tx.Exec(ctx, `
		UPDATE partition_inputs i SET input_version = w."to", input_revision = w.equal_number, accepted = NULL
		FROM jsonb_to_recordset($2) AS w(version uuid, key text, revision bigint, index int, "from" uuid, input_key text,
		    was bigint, "to" uuid, equal_number bigint)
		WHERE i.org_id = $1 AND i.output_version = w.version AND i.output_key = w.key AND i.output_revision = w.revision
		  AND i.input_index = w.index AND i.input_key = w.input_key AND i.input_version = w."from" AND i.input_revision = w.was`,
		e.org, rows)
	if err != nil {
		return fmt.Errorf("carry %d inputs over: %w", len(rows), err)
	}
	return nil
}

// Renaming says under which name lies from now on what belongs to a job by its name.
type Renaming struct{ From, To string }

// Renamings compares the names of a version's jobs with those in the version that it replaces. What belongs to a job
// goes with it to another name: by a deploy with `renamed_from`, and by a rollback. If a job goes and another one gets
// its name, what was its own is kept for its return. It is pure.
func Renamings(before, after []*registry.Job) (renamed []Renaming) {
	was, holder, stays := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, job := range before {
		was[job.Def.Identity()], holder[job.Name] = job.Name, job.Def.Identity()
	}
	for _, job := range after {
		stays[job.Def.Identity()] = true
	}
	kept := func(identity string) string { return "~" + identity } // which is no name of a job

	for _, job := range after {
		from, served := was[job.Def.Identity()]
		if !served {
			from = kept(job.Def.Identity())
		}
		if from == job.Name {
			continue
		}
		renamed = append(renamed, Renaming{from, job.Name})
		switch identity, held := holder[job.Name]; {
		case held && !stays[identity]:
			renamed = append(renamed, Renaming{job.Name, kept(identity)})
		case !held && served: // by a job that went earlier
			renamed = append(renamed, Renaming{job.Name, kept(job.Name)})
		}
	}
	return renamed
}

// CarryNames makes the tasks of a version's jobs be found under the names that they have in it, those of earlier
// definitions too. The version has just been cut over to, in the same transaction. Origins are looked up by themselves
// too: of jobs that were renamed before identities were kept, they may have another one.
func CarryNames(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	_, err := tx.Exec(ctx, `
		UPDATE jobs o SET known_as = NULLIF(n.name, o.name)
		FROM (SELECT i.id, j.name FROM jobs j
		      JOIN jobs i ON i.org_id = $1 AND i.dag_name = $2 AND i.identity = j.identity AND i.id = i.origin_job_id
		      WHERE j.dag_version_id = $3
		      UNION SELECT origin_job_id, name FROM jobs WHERE dag_version_id = $3) AS n
		WHERE o.id = n.id AND coalesce(o.known_as, o.name) <> n.name`,
		b.OrgID, b.DAG, b.ID)
	if err != nil {
		return fmt.Errorf("carry the names of jobs of %s: %w", b.DAG, err)
	}
	return nil
}

package runevents

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/registry"
)

// run returns an attempt as its events tell it.
func (s *Sender) run(ctx context.Context, tx pgx.Tx, org uuid.UUID, e end, namespace string) (openlineage.Run, error) {
	jobs, err := s.registry.KnownJobs(ctx, tx, []uuid.UUID{e.Job})
	if err != nil {
		return openlineage.Run{}, err
	}
	job := jobs[e.Job]
	read, made := sidesOf(job, e)
	for _, d := range made {
		if err := d.addOrigins(ctx, tx, org, read); err != nil {
			return openlineage.Run{}, err
		}
	}
	number, err := name(ctx, tx, job, slices.Concat(read, made))
	if err != nil {
		return openlineage.Run{}, err
	}

	run := openlineage.Run{
		Namespace: cmp.Or(namespace, openlineage.Namespace(job.OrgSlug)), Program: s.version,
		Org: job.OrgSlug, DAG: job.DAG, Job: job.Name, Operator: job.Def.Operator,
		DAGVersion: number, DAGVersionID: job.VersionID,
		TaskID: e.Task, Attempt: e.Attempt, Kind: string(e.Kind), Started: e.Started, Ended: e.Ended,
		Type: e.Type, Reason: string(e.Reason),
	}
	for _, d := range read {
		run.Inputs = append(run.Inputs, d.Dataset)
	}
	for _, d := range made {
		run.Outputs = append(run.Outputs, d.Dataset)
	}
	return run, nil
}

// side is a dataset that a job reads or makes.
type side struct {
	id         uuid.UUID
	generation uuid.UUID // uuid.Nil: nobody knows which one is read
	edges      []lineage.ColumnEdge
	openlineage.Dataset
}

// sidesOf returns the datasets of a job, with the revisions that an attempt read and made. Two inputs may read the same
// dataset.
func sidesOf(job *registry.Job, e end) (read, made []*side) {
	for _, in := range job.Inputs {
		at := slices.IndexFunc(read, func(s *side) bool { return s.id == in.Dataset })
		if at < 0 {
			at = len(read)
			read = append(read, &side{id: in.Dataset, generation: in.Generation.Version})
		}
		read[at].add(e.Read, in.Index, e.Cut)
	}
	for i, out := range job.Outputs {
		s := &side{id: out.Generation.Dataset, generation: out.Generation.Version}
		s.add(e.Made, i, e.Cut)
		made = append(made, s)
	}
	return read, made
}

// add adds the revisions of one input or output.
func (s *side) add(all []revision, place int, cut bool) {
	for _, r := range all {
		if r.Place != place {
			continue
		}
		one := r.Revision
		if one.Rows, one.Bytes = r.Rows, r.Bytes; slices.Contains(s.Revisions, one) {
			continue
		}
		s.generation, s.Revisions = one.Generation, append(s.Revisions, one)
	}
	s.Truncated = cut
}

// addOrigins adds the edges of columns that were computed from the generations that were read. An input of which no
// generation is known counts with all of them.
func (s *side) addOrigins(ctx context.Context, tx pgx.Tx, org uuid.UUID, read []*side) error {
	edges, err := lineage.Origins(ctx, tx, org, s.generation)
	if err != nil {
		return err
	}
	for _, e := range edges {
		of := slices.IndexFunc(read, func(in *side) bool { return in.id == e.Input.DatasetUUID })
		if of >= 0 && (read[of].generation == uuid.Nil || read[of].generation == e.Input.DatasetVersion) {
			s.edges = append(s.edges, e)
		}
	}
	return nil
}

// name sets the names, columns and origins of datasets, and returns the number of the job's version.
func name(ctx context.Context, tx pgx.Tx, job *registry.Job, all []*side) (number int, err error) {
	var datasets, generations []uuid.UUID
	for _, s := range all {
		datasets, generations = append(datasets, s.id), append(generations, s.generation)
	}
	number, names, err := registry.NamesIn(ctx, tx, job.OrgID, job.VersionID, datasets)
	if err != nil {
		return 0, err
	}
	columns, err := registry.ColumnsOf(ctx, tx, generations)
	if err != nil {
		return 0, err
	}

	for _, s := range all {
		s.Name = names[s.id]
		for _, c := range columns[s.generation] {
			s.Columns = append(s.Columns, openlineage.Column{Name: c.Name, Type: c.Type})
		}
		for _, e := range s.edges {
			s.Origins = append(s.Origins, openlineage.Origin{Column: e.Output.Name, Dataset: names[e.Input.DatasetUUID],
				Field: e.Input.Name, Transform: e.Transform})
		}
		s.Origins = slices.Compact(s.Origins)
	}
	return number, nil
}

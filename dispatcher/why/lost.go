package why

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/registry"
)

// lookTime bounds how long an answer waits for the storage.
const lookTime = 3 * time.Second

// stored is the published revision of the partition that was asked about, and what is said if its bytes are gone.
type stored struct {
	job      *registry.Job
	revision registry.Stored
	lost     Reason
}

// seen adds to the reasons about a partition what the storage has of it. A file that is gone takes the place of what is
// true of the rows of the database alone: that readers see it, and that it is up to date.
func (y *Explainer) seen(ctx context.Context, s *stored, reasons []Reason) []Reason {
	problem, unseen := y.look(ctx, s.revision)
	switch {
	case unseen != "":
		return insertAfterPublished(reasons, Reason{Code: whyFileUnseen, Job: s.lost.Job, Hidden: s.lost.Hidden,
			Partition: s.lost.Partition, Detail: unseen})
	case problem == "":
		return reasons
	}

	if s.lost.Error = problem; s.lost.Hidden {
		s.lost.Error = ""
	}
	kept := []Reason{s.lost}
	for _, r := range reasons {
		if r.Code != whyPublished && (r.Code != whyUpToDate || len(r.Because) > 0) {
			kept = append(kept, r)
		}
	}
	return kept
}

// insertAfterPublished puts a reason behind the one that says that readers see the partition.
func insertAfterPublished(reasons []Reason, r Reason) []Reason {
	out := make([]Reason, 0, len(reasons)+1)
	for _, other := range reasons {
		if out = append(out, other); other.Code == whyPublished {
			out = append(out, r)
		}
	}
	return out
}

// look asks the storage for one revision. problem says what is wrong with it; unseen, why that could not be found out,
// without the names of folders and buckets.
func (y *Explainer) look(ctx context.Context, s registry.Stored) (problem, unseen string) {
	if unseen = y.dispatcher.Health.Reason(); unseen != "" {
		return "", unseen
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	type answer struct {
		problem string
		err     error
	}
	answers := make(chan answer, 1)
	go func() { // a file system that hangs does not heed ctx
		problem, err := y.registry.VerifyStored(ctx, s)
		answers <- answer{problem, err}
	}()
	var got answer
	select {
	case got = <-answers:
	case <-ctx.Done():
		got.err = ctx.Err()
	}

	if got.problem == "" && got.err == nil {
		return "", ""
	}
	// A folder that is not mounted, and a bucket that is refused, lack files, too.
	if h := y.dispatcher.Health; h != nil {
		if unseen = h.Look(ctx); unseen != "" {
			return "", unseen
		}
	}
	switch {
	case got.err == nil:
		return got.problem, ""
	case errors.Is(got.err, context.DeadlineExceeded):
		return "", "the storage did not answer in time"
	}
	return "", "the storage could not be asked"
}

// publishedAt prepares a look at the storage for a published revision of a dataset.
func (e *explainer) publishedAt(
	ctx context.Context, job *registry.Job, dataset string, ref registry.Ref, revision int64,
) (*stored, error) {
	found, err := registry.LoadStored(ctx, e.tx, e.caller.OrgID, ref, revision)
	if err != nil {
		return nil, err
	}

	lost := Reason{Code: whyFileGone, Partition: ref.Key, Since: &found.Materialized}
	switch made := makes(job, ref.Version); {
	case made && job.Def.UpdateStrategy == dag.Append && job.Def.Source != nil:
		// A run appends to what is gone, and what was appended before is not asked for again.
	case made && job.Def.Asked(): // what it is asked for again is published only if it has other rows
		lost.Command, err = e.resumed(ctx, job, rematerialize(dataset))
	case made:
		var again Reason
		again, err = e.comeBack(ctx, job, dataset, ref.Key)
		switch lost.Command = again.Command; {
		case lost.Command == "":
			lost.Detail = again.Detail
		case reads(job):
			lost.Detail = "its source still has it"
		}
	}
	if err != nil {
		return nil, err
	}
	lost, err = e.about(ctx, job, lost)
	return &stored{job, found, lost}, err
}

// reads reports whether a job reads what is outside, and may be gone there, too.
func reads(job *registry.Job) bool {
	return job.Def.Source != nil && job.Def.Source.Kind != "manual" && job.Def.Source.Kind != dag.SourceDeploy
}

// mostBehind bounds how many partitions of its inputs are looked at behind one that is gone, and how far upstream.
const (
	mostBehind    = 20
	mostBehindFar = 5
)

// addLostBehind puts behind a partition whose file is gone those that it is made from whose files are gone, too: then
// no command makes it again, but those that make them again.
func (y *Explainer) addLostBehind(
	ctx context.Context, caller authz.Caller, now time.Time, s *stored, r *Reason, far int,
) error {
	if s.job.Def.Activation != dag.ActivationReactive || r.Hidden || far == 0 {
		return nil
	}
	var from []*stored
	_, err := y.explain(ctx, caller, now, func(ctx context.Context, e *explainer, _ *Why) (err error) {
		from, err = e.madeFrom(ctx, s.job, s.revision.Key)
		return err
	})
	if err != nil {
		return err
	}

	for _, input := range from {
		problem, _ := y.look(ctx, input.revision)
		if problem == "" {
			continue
		}
		lost := input.lost
		if !lost.Hidden {
			lost.Error = problem
		}
		if err := y.addLostBehind(ctx, caller, now, input, &lost, far-1); err != nil {
			return err
		}
		r.Because = append(r.Because, lost)
	}
	if len(r.Because) > 0 {
		r.Command, r.Detail = "", ""
	}
	return nil
}

// madeFrom returns what a partition of a job would be made from now, as far as the caller may see its makers.
func (e *explainer) madeFrom(ctx context.Context, job *registry.Job, key string) (from []*stored, err error) {
	if job.Def.Splits() {
		key = dag.WholeKey
	}
	_, inputs, err := e.verdict(ctx, stale.Target{Job: job, Key: key})
	if err != nil {
		return nil, err
	}
	for _, in := range inputs {
		names, err := e.d.registry.ReadableNames(ctx, e.tx, e.caller, []uuid.UUID{in.Dataset})
		if err != nil {
			return nil, err
		}
		producer, err := e.producer(ctx, job, in)
		if err != nil {
			return nil, err
		}
		if names[in.Dataset] == "" || producer == nil {
			continue
		}

		pins := in.Pins()
		for _, pin := range pins[:min(len(pins), mostBehind-len(from))] {
			ref := registry.Ref{Version: pin.Version, Key: pin.Key}
			found, err := e.publishedAt(ctx, producer, names[in.Dataset], ref, pin.Revision)
			if errors.Is(err, pgx.ErrNoRows) {
				continue // it was purged meanwhile
			}
			if err != nil {
				return nil, err
			}
			from = append(from, found)
		}
	}
	return from, nil
}

// makes reports whether a generation is one of the job's outputs; otherwise another definition made it.
func makes(job *registry.Job, generation uuid.UUID) bool {
	return slices.ContainsFunc(job.Outputs, func(o registry.OutputGeneration) bool {
		return o.Generation.Version == generation
	})
}

// goneSentence puts whyFileGone into words.
func goneSentence(r Reason) string {
	text := "what is stored of it cannot be read" + saying(r.Error) +
		"; queries and tasks that read it fail. Restore it"
	switch {
	case len(r.Because) > 0:
		text += "; it cannot be made again before what it is made of, which is gone, too"
	case r.Command != "" && r.Detail != "":
		text += " or, if " + r.Detail + ", make it again: " + r.Command
	case r.Command != "":
		text += ", or make it again: " + r.Command
	case r.Detail != "":
		text += "; otherwise it comes back when " + r.Detail
	}
	return text
}

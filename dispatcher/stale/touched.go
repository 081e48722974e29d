package stale

import (
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// Touched returns the targets of reactive jobs whose verdict may be another one since partitions have changed: some one
// by one, and jobs of which that cannot be said one by one. reads are the generations that the inputs read, as
// InputGenerations returns them; incomplete are the origins of jobs that have a target which lacked something. It is
// pure.
//
// A verdict follows from the published revisions that a target is made from, and from what its last revision was made
// from, so a change of either is all that counts here. It also follows from the position of a cursor, and from what a
// job has acted on; the targets of such jobs are always returned.
func Touched(
	jobs []*registry.Job, reads map[uuid.UUID][]registry.InputGeneration, changed []registry.Ref,
	incomplete map[uuid.UUID]bool,
) (some []Target, whole []*registry.Job) {
	keys := map[uuid.UUID][]string{}
	for _, r := range changed {
		keys[r.Version] = append(keys[r.Version], r.Key)
	}

	for _, job := range jobs {
		if job.Def.Activation != dag.ActivationReactive {
			continue
		}
		touched, all := touchedOf(job, reads[job.ID], keys, incomplete[job.Origin])
		if all {
			whole = append(whole, job)
			continue
		}
		slices.Sort(touched)
		for _, key := range slices.Compact(touched) {
			some = append(some, Target{job, key})
		}
	}
	return some, whole
}

// touchedOf returns the keys of the touched targets of a job, or that they may be all of them.
func touchedOf(
	job *registry.Job, reads []registry.InputGeneration, changed map[uuid.UUID][]string, incomplete bool,
) (keys []string, all bool) {
	if job.Acts() || job.Def.PartitionBy.Kind == dag.ByCursor {
		return nil, true
	}
	for n, in := range job.Inputs {
		if Follows(job, in) {
			return nil, true
		}
		news := changed[reads[n].Version]
		if len(news) == 0 {
			continue
		}
		if !in.Def.Triggers() {
			// A `latest` input that is not compared matters only to a target that lacks it.
			if in.Def.Map.Kind != dag.MapLatest || in.Def.Refresh || incomplete {
				return nil, true
			}
			continue
		}
		for _, key := range news {
			fed, unmapped := OutputKeys(job, in, reads[n].PartitionBy, key)
			if unmapped != "" {
				break // it feeds none, now as before
			}
			keys = append(keys, fed...)
		}
	}

	for _, o := range job.Outputs {
		if news := changed[o.Generation.Version]; job.Def.Splits() && len(news) > 0 {
			keys = append(keys, dag.WholeKey)
		} else {
			keys = append(keys, news...)
		}
	}
	return keys, false
}

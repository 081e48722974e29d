package lineage

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/registry/flow"
)

// nearSteps is how many steps from the root a walk asks for the jobs next to what it has reached, and no others: most
// graphs are a small part of their DAGs. One more looks whether there is more. Beyond it, a walk would ask for up to a
// hundred steps each way.
const nearSteps = DefaultDepth + 1

// whole is what a walk knows of DAGs whose jobs it has all read.
type whole struct {
	versions []uuid.UUID               // of those DAGs
	makers   map[uuid.UUID][]flow.Job  // by dataset
	readers  map[uuid.UUID][]flow.Job  // by dataset
	away     map[uuid.UUID][]uuid.UUID // versions of other DAGs that read a dataset
	asked    map[uuid.UUID]bool        // datasets of which the DAGs that make and read them were read
}

func newWhole() whole {
	return whole{makers: map[uuid.UUID][]flow.Job{}, readers: map[uuid.UUID][]flow.Job{},
		away: map[uuid.UUID][]uuid.UUID{}, asked: map[uuid.UUID]bool{}}
}

// around returns the jobs that make some datasets, or that read them, and reads those DAGs that it needs for that.
func (k *whole) around(ctx context.Context, w *walk, up bool, datasets []uuid.UUID) ([]flow.Job, error) {
	if err := k.read(ctx, w, up, datasets); err != nil {
		return nil, err
	}
	beside := k.readers
	if up {
		beside = k.makers
	}

	var found []flow.Job
	for _, id := range datasets {
		found = append(found, beside[id]...)
	}
	slices.SortFunc(found, func(a, b flow.Job) int {
		return cmp.Or(cmp.Compare(a.DAG, b.DAG), cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
	return slices.CompactFunc(found, func(a, b flow.Job) bool { return a.ID == b.ID }), nil
}

// read reads the DAGs that make some datasets, or that read them, unless they were read.
func (k *whole) read(ctx context.Context, w *walk, up bool, datasets []uuid.UUID) error {
	var unknown, versions []uuid.UUID
	for _, id := range datasets {
		away, made := k.away[id]
		switch {
		case k.asked[id] || made && up:
		case made:
			versions = append(versions, away...)
		default:
			unknown = append(unknown, id)
		}
	}
	versions = slices.DeleteFunc(versions, func(id uuid.UUID) bool { return slices.Contains(k.versions, id) })
	if len(unknown) == 0 && len(versions) == 0 {
		return nil
	}

	found, err := flow.WholeDAGs(ctx, w.tx, w.caller, w.at, unknown, versions, k.versions)
	if err != nil {
		return err
	}
	for _, id := range unknown {
		k.asked[id] = true
	}
	for _, j := range found {
		k.add(j)
	}
	return nil
}

// add notes a job.
func (k *whole) add(j flow.Whole) {
	if !slices.Contains(k.versions, j.Version) {
		k.versions = append(k.versions, j.Version)
	}
	for _, id := range j.Reads {
		k.readers[id] = append(k.readers[id], j.Job)
	}
	for _, id := range j.Makes {
		if !slices.Contains(j.Moved, id) {
			k.makers[id] = append(k.makers[id], j.Job)
			k.away[id] = append(k.away[id], j.Elsewhere...)
		}
	}
}

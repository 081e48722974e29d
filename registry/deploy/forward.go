package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// A forward-only deploy bounds a rebuild: what the live generations have before the bound is taken over into the new
// ones and not computed again. That is another generation than the definition would have otherwise, so it gets a build
// epoch of its own, by which later plans of the same definition find it again. The revisions that are to be taken over
// are recorded, Held, in the transaction of the deploy, with what they were made from: from then on they count as made,
// and the build begins by giving them their bytes (inherit.go).

// continuation is a job whose outputs take partitions over from the live generations.
type continuation struct {
	live []planned                 // by output
	keys []map[string]heldRevision // that stay, by output
}

// bound makes the rebuilt jobs of a forward-only deploy continue the live generations. It leaves alone a version that
// was made so before, or that has served.
func (d *deploy) bound(ctx context.Context, tx pgx.Tx, live []planned, existing *registry.Version,
	hash string) (*registry.Version, string, error) {
	if err := d.checkBound(); err != nil {
		return nil, "", err
	}
	if existing != nil && existing.ForwardOnly && existing.ForwardFrom != d.req.ForwardFrom {
		return nil, "", fault.New(fault.Conflict, "version %d of %s is this document, forward-only %s",
			existing.Number, d.doc.Name, fromWhere(existing.ForwardFrom)).
			WithHint("deploy it with that bound; `dagctl rematerialize` computes all kept partitions, " +
				"`dagctl backfill --existing all` some of them")
	}

	if existing != nil && (existing.ForwardOnly || existing.ActivatedAt != nil) {
		return existing, hash, nil
	}
	if err := d.continueLive(ctx, tx, live); err != nil || len(d.continued) == 0 {
		return existing, hash, err
	}

	var raised []string
	for _, job := range d.doc.Jobs {
		if _, ok := d.continued[job.Name]; ok {
			raised = append(raised, job.Name)
		}
	}
	if err := d.raise(ctx, tx, raised); err != nil {
		return nil, "", err
	}
	return d.known(ctx, tx)
}

// checkBound refuses a bound that fits the partitions of no job. Where it fits some, those that are rebuilt decide.
func (d *deploy) checkBound() (err error) {
	if d.req.ForwardFrom == "" {
		return nil
	}
	for _, job := range d.doc.Jobs {
		problem := job.PartitionBy.ValidBound(d.req.ForwardFrom)
		if problem == nil {
			return nil
		}
		if err == nil || job.PartitionBy.Kind != dag.Unpartitioned {
			err = fault.New(fault.Invalid, "--forward-only=%s: %s has %s: %w",
				d.req.ForwardFrom, job.Name, job.PartitionBy, problem).
				WithHint("name the first partition to compute anew, as `dagctl datasets partitions` lists them")
		}
	}
	return err
}

// fromWhere describes a bound for people.
func fromWhere(bound string) string {
	if bound == "" {
		return "from what comes after it"
	}
	return "from " + bound
}

// knownGeneration is a generation of a dataset, with what decides whether a job can continue it.
type knownGeneration struct {
	id          uuid.UUID
	configHash  string
	served      bool
	partitionBy dag.Partitioning
	storage     dag.Storage
}

// continueLive finds the jobs that are rebuilt and have something to take over.
func (d *deploy) continueLive(ctx context.Context, tx pgx.Tx, live []planned) error {
	known, err := generationsOf(ctx, tx, d.caller.OrgID, live)
	if err != nil {
		return err
	}

	d.continued = map[string]*continuation{}
	var rebuilt []string
	partitioned := false
	for i := range d.doc.Jobs {
		job := &d.doc.Jobs[i]
		outputs := d.liveOutputs(live, job)
		if len(outputs) == 0 || resets(*job) || !d.rebuilds(job, outputs, known) {
			continue
		}
		rebuilt = append(rebuilt, job.Name)
		if job.TasksBy().Kind == dag.Unpartitioned {
			continue // computed as a whole
		}
		partitioned = true
		if err := continuable(job, outputs, known); err != nil {
			return err
		}
		c, err := d.keep(ctx, tx, job, outputs)
		if err != nil {
			return err
		}
		if c != nil {
			d.continued[job.Name] = c
		}
	}

	if len(rebuilt) == 0 || len(d.continued) > 0 {
		return nil
	}
	return d.nothingToKeep(strings.Join(rebuilt, ", "), partitioned)
}

// keep returns the partitions that the outputs of a rebuilt job take over; nil if there are none.
func (d *deploy) keep(ctx context.Context, tx pgx.Tx, job *dag.Job, outputs []planned) (*continuation, error) {
	c, kept := &continuation{live: outputs}, 0
	for _, l := range outputs {
		keys, err := d.staying(ctx, tx, job, l.generation)
		if err != nil {
			return nil, err
		}
		c.keys, kept = append(c.keys, keys), kept+len(keys)
	}
	if kept == 0 {
		return nil, nil
	}
	return c, nil
}

// nothingToKeep refuses a forward-only deploy that rebuilds jobs and takes nothing over.
func (d *deploy) nothingToKeep(rebuilt string, partitioned bool) error {
	switch {
	case !partitioned:
		return fault.New(fault.Invalid,
			"--forward-only keeps partitions, and the jobs that this deploy rebuilds have none: %s", rebuilt).
			WithHint("deploy without it")
	case d.req.ForwardFrom == "":
		return nil // none of their partitions is published: there is no history to keep
	}
	return fault.New(fault.Invalid,
		"the jobs that this deploy rebuilds (%s) have no partition before %s: there is nothing to keep",
		rebuilt, d.req.ForwardFrom).
		WithHint("deploy without --forward-only, or from a later partition")
}

// liveOutputs returns the live datasets of a job, by output, whatever its name was; nil unless all are there.
func (d *deploy) liveOutputs(live []planned, job *dag.Job) []planned {
	var found []planned
	for i := range job.Outputs {
		dataset := d.datasets[outputRef{job.Name, i}]
		at := slices.IndexFunc(live, func(p planned) bool { return p.id == dataset })
		if at < 0 {
			return nil
		}
		found = append(found, live[at])
	}
	return found
}

// rebuilds reports whether none of the job's outputs gets a generation that has served.
func (d *deploy) rebuilds(job *dag.Job, outputs []planned, known map[uuid.UUID][]knownGeneration) bool {
	for i, l := range outputs {
		hash := d.prints[job.Name].ConfigHash(i)
		if slices.ContainsFunc(known[l.id], func(g knownGeneration) bool { return g.configHash == hash && g.served }) {
			return false
		}
	}
	return true
}

// continuable refuses live partitions that cannot be in one generation with those that the job makes from now on.
func continuable(job *dag.Job, outputs []planned, known map[uuid.UUID][]knownGeneration) error {
	for i, l := range outputs {
		at := slices.IndexFunc(known[l.id], func(g knownGeneration) bool { return g.id == l.generation })
		if at < 0 {
			continue
		}

		was := known[l.id][at]
		if !reflect.DeepEqual(was.partitionBy, job.PartitionBy) {
			return fault.New(fault.Invalid, "%s has %s now and is to have %s: its partitions cannot stay",
				job.Name, was.partitionBy, job.PartitionBy).
				WithHint("deploy without --forward-only, or give the job another name")
		}
		if was.storage.Kind != job.Storage[i].Kind {
			return fault.New(fault.Invalid,
				"%s is in %s storage and is to be in %s storage: its partitions cannot stay",
				job.Name, was.storage.Kind, job.Storage[i].Kind).
				WithHint("deploy without --forward-only, or give the job another name")
		}
	}
	return nil
}

// generationsOf returns, by dataset, all generations of the live datasets that were not purged.
func generationsOf(ctx context.Context, tx pgx.Tx, org uuid.UUID,
	live []planned) (map[uuid.UUID][]knownGeneration, error) {
	datasets := make([]uuid.UUID, len(live))
	for i, l := range live {
		datasets[i] = l.id
	}

	rows, err := tx.Query(ctx, `
		SELECT g.dataset_uuid, g.id, g.config_hash, g.partition_by, g.storage, EXISTS (
			SELECT FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id AND v.activated_at IS NOT NULL
			WHERE p.dataset_version = g.id)
		FROM dataset_versions g WHERE g.org_id = $1 AND g.dataset_uuid = ANY($2) AND g.purged_at IS NULL`, org, datasets)
	if err != nil {
		return nil, fmt.Errorf("generations of live datasets: %w", err)
	}

	known := map[uuid.UUID][]knownGeneration{}
	var (
		dataset            uuid.UUID
		g                  knownGeneration
		partitionBy, store []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&dataset, &g.id, &g.configHash, &partitionBy, &store, &g.served}, func() error {
		g.partitionBy, g.storage = dag.Partitioning{}, dag.Storage{}
		err := errors.Join(json.Unmarshal(partitionBy, &g.partitionBy), json.Unmarshal(store, &g.storage))
		if err != nil {
			return err
		}
		known[dataset] = append(known[dataset], g)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("generations of live datasets: %w", err)
	}
	return known, nil
}

// staying returns, by partition key, the published revisions of a live generation that lie before the bound.
func (d *deploy) staying(ctx context.Context, tx pgx.Tx, job *dag.Job,
	generation uuid.UUID) (map[string]heldRevision, error) {
	published, err := publishedBy(ctx, tx, generation, nil)
	if err != nil || d.req.ForwardFrom == "" {
		return published, err
	}

	for key := range published {
		before, err := job.PartitionBy.Precedes(key, d.req.ForwardFrom)
		if err != nil {
			return nil, fault.New(fault.Invalid, "--forward-only=%s: %s has %s: %w",
				d.req.ForwardFrom, job.Name, job.PartitionBy, err).
				WithHint("name the first partition to compute anew, such as %s", key)
		}
		if !before {
			delete(published, key)
		}
	}
	return published, nil
}

// continues returns the live generation from which an output of the deploy takes partitions over; nil if it takes none.
func (d *deploy) continues(ref outputRef) *uuid.UUID {
	if c := d.continued[ref.job]; c != nil {
		return &c.live[ref.index].generation
	}
	return nil
}

// holdInherited records the revisions that the version takes over.
func (d *deploy) holdInherited(ctx context.Context, tx pgx.Tx) error {
	for _, job := range d.doc.Jobs {
		c := d.continued[job.Name]
		if c == nil {
			continue
		}
		for i := range job.Outputs {
			ref := outputRef{job.Name, i}
			own := storage.Generation{OrgID: d.caller.OrgID, OrgSlug: d.caller.OrgSlug, Dataset: d.datasets[ref],
				Version: d.generations[ref].id, Kind: storage.Kind(job.Storage[i].Kind)}
			h := heir{Generation: own, from: c.live[i].generation, job: d.rows[job.Name], output: i}
			if err := d.deployer.hold(ctx, tx, h, c.keys[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// keptKeys returns the partitions that outputs of a version take over, if the version has not served yet.
func keptKeys(ctx context.Context, tx pgx.Tx, next []planned) (map[outputRef]map[string]bool, error) {
	kept, refs := map[outputRef]map[string]bool{}, map[uuid.UUID]outputRef{}
	var generations []uuid.UUID
	for _, p := range next {
		if p.continues != nil {
			ref := outputRef{p.job, p.output}
			refs[p.generation], kept[ref] = ref, map[string]bool{}
			generations = append(generations, p.generation)
		}
	}
	if len(generations) == 0 {
		return nil, nil
	}

	rows, err := tx.Query(ctx, `
		SELECT dataset_version, partition_key FROM partition_versions
		WHERE dataset_version = ANY($1) AND inherited_from IS NOT NULL`, generations)
	if err != nil {
		return nil, fmt.Errorf("partitions that stay: %w", err)
	}

	var ref registry.Ref
	_, err = pgx.ForEachRow(rows, []any{&ref.Version, &ref.Key}, func() error {
		kept[refs[ref.Version]][ref.Key] = true
		return nil
	})
	return kept, err
}

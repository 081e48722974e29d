package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// errOnlyPlanned rolls back a deploy that is only planned.
var errOnlyPlanned = errors.New("only planned")

// Plan returns what a deploy of the document would do. It runs that deploy in a transaction that is rolled back at its
// end, so the plan cannot differ from the deploy.
func (dp *Deployer) Plan(ctx context.Context, caller authz.Caller, dagName string,
	req registry.DeployRequest) (registry.Plan, error) {
	ahead, err := dp.ahead(ctx, caller, req)
	if err != nil {
		return registry.Plan{}, fmt.Errorf("plan %s: %w", dagName, err)
	}
	if req.Beside = ahead; len(ahead) > 0 {
		if err := dp.checkBeside(ctx, caller, dagName, req); err != nil {
			return registry.Plan{}, fmt.Errorf("check %s: %w", dagName, err)
		}
		return registry.Plan{DAG: dagName, Changes: []registry.Change{}}, nil
	}
	return dp.plan(ctx, caller, dagName, req, true)
}

// plan makes the plan of a deploy. Unless it is only for planning, it refuses whatever the deploy would refuse.
func (dp *Deployer) plan(ctx context.Context, caller authz.Caller, dagName string,
	req registry.DeployRequest, planning bool) (registry.Plan, error) {
	var p registry.Plan
	err := dp.define(ctx, caller, dagName, req, func(doc *dag.Document, definitions *dag.Definitions) error {
		return pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
			d := &deploy{deployer: dp, caller: caller, req: req, doc: doc, definitions: definitions,
				now: clock.Now(), force: req.Force, planning: planning}
			if p, err = d.plan(ctx, tx); err != nil {
				return err
			}
			return errOnlyPlanned
		})
	})
	if !errors.Is(err, errOnlyPlanned) {
		return registry.Plan{}, fmt.Errorf("plan %s: %w", dagName, err)
	}
	return p, nil
}

// plan runs the deploy, and returns what it did.
func (d *deploy) plan(ctx context.Context, tx pgx.Tx) (registry.Plan, error) {
	// The rows are rolled back before their foreign keys would be checked, which takes long for many jobs.
	if _, err := tx.Exec(ctx, `SET CONSTRAINTS ALL DEFERRED`); err != nil {
		return registry.Plan{}, fmt.Errorf("put off foreign keys: %w", err)
	}
	if err := registry.LockDAG(ctx, tx, d.caller.OrgID, d.doc.Name); err != nil {
		return registry.Plan{}, err
	}
	base, err := activeNumber(ctx, tx, d.caller.OrgID, d.doc.Name)
	if err != nil {
		return registry.Plan{}, err
	}
	deployed, err := d.run(ctx, tx)
	if err != nil {
		return registry.Plan{}, err
	}

	p := registry.Plan{DAG: d.doc.Name, Version: deployed.Version.Number, Hash: deployed.Version.Hash,
		Changes: deployed.Changes, Findings: deployed.Findings, Meets: deployed.Meets, Cancels: deployed.Cancels}
	if base > 0 {
		p.Base = &base
	}
	if !deployed.Created {
		p.Status = cmp.Or(deployed.Was, deployed.Version.Status)
	}
	return p, nil
}

// activeNumber returns the number of the DAG's active version; 0 if there is none.
func activeNumber(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) (int, error) {
	var number int
	err := tx.QueryRow(ctx, `
		SELECT v.number FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
		WHERE c.org_id = $1 AND c.dag_name = $2`, org, dagName).Scan(&number)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return number, err
}

// checkBase refuses a deploy that was planned against a version that is no longer active.
func (d *deploy) checkBase(ctx context.Context, tx pgx.Tx) error {
	if d.req.Base == nil {
		return nil
	}
	number, err := activeNumber(ctx, tx, d.caller.OrgID, d.doc.Name)
	if err != nil || number == *d.req.Base {
		return err
	}

	var who string
	if err := tx.QueryRow(ctx, `SELECT actor FROM dag_activations
		WHERE org_id = $1 AND dag_name = $2 ORDER BY at DESC, id DESC LIMIT 1`,
		d.caller.OrgID, d.doc.Name).Scan(&who); err != nil {
		return err
	}
	return fault.New(fault.Conflict,
		"the plan is stale: it was made against version %d of %s, and %s has activated version %d since",
		*d.req.Base, d.doc.Name, who, number).
		WithHint("plan again, look at the new plan, and deploy it")
}

// changes compares the live pointer set with the next one, and works out what has to be computed.
func (d *deploy) changes(
	ctx context.Context, tx pgx.Tx, live, next []planned, version uuid.UUID,
) ([]registry.Change, error) {
	changes := plan(live, next)
	taken, err := d.takenOver(ctx, tx)
	if err != nil {
		return nil, err
	}
	readable := slices.Concat(live, taken)
	b, err := d.forecast(ctx, tx, readable, next)
	if err != nil {
		return nil, err
	}
	if err := b.loadMade(ctx, tx, d.deployer.registry, changes); err != nil {
		return nil, err
	}
	kept, err := keptKeys(ctx, tx, next)
	if err != nil {
		return nil, err
	}
	b.keep(kept)
	shown, err := d.shownAgain(ctx, tx, next)
	if err != nil {
		return nil, err
	}

	now, after := readableNow(readable), byDataset(next)
	for i := range changes {
		c := &changes[i]
		stays := kept[outputRef{c.Job, c.Output}]
		c.Kept = len(stays)

		job, ok := d.doc.Job(c.Job)
		if ok {
			c.Upstream = upstreamOf(job)
		}
		if !ok || job.ForwardOnly(d.deployer.catalog.Operators[job.Operator]) && c.Action != Rebuild &&
			c.Action != ForwardOnly {
			continue
		}
		c.Removes = b.removed(now.inPlaceOf(after[c.ID]), after[c.ID], job, func(key string) bool {
			return stays[key] || shown[registry.Ref{Version: after[c.ID].generation, Key: key}]
		})
		if c.Action == Reuse && c.Reason == "same definition" {
			continue
		}

		if p := b.of(c.Job); !p.unknown {
			c.Keys = slices.DeleteFunc(slices.Clone(p.keys), func(key string) bool {
				return stays[key] || !b.wants(job, key)
			})
			n := len(c.Keys)
			c.Partitions = &n
			if c.Moved = c.Keys; c.Action != Reuse {
				c.Moved = slices.DeleteFunc(slices.Clone(p.keys), func(key string) bool { return stays[key] })
			}
			if c.Kept > 0 {
				c.Bytes = c.Bytes * int64(n) / int64(n+c.Kept)
			}
		}
	}

	d.noteColumns(changes, live, next)
	if err := d.deployer.noteLater(ctx, tx, changes, live, d.serves, d.doc.Job); err != nil {
		return nil, err
	}
	d.noteTakeovers(changes)
	if err := d.noteFollowers(ctx, tx, live, next, changes); err != nil {
		return nil, err
	}
	d.findings, err = d.verdict(ctx, tx, live, changes, version)
	return changes, err
}

// readers finds what readers have now.
type readers struct {
	byID   map[uuid.UUID]planned
	byName map[string]planned // published names
}

func readableNow(live []planned) readers {
	r := readers{byID: byDataset(live), byName: map[string]planned{}}
	for _, l := range live {
		if l.published {
			r.byName[l.dataset] = l
		}
	}
	return r
}

// inPlaceOf returns what readers have now in place of an output: the same dataset, and the one that has its name.
func (r readers) inPlaceOf(next planned) (pairs []planned) {
	if l, ok := r.byID[next.id]; ok {
		pairs = append(pairs, l)
	}
	if l, ok := r.byName[next.dataset]; ok && next.published && l.id != next.id {
		pairs = append(pairs, l)
	}
	return pairs
}

// keep adds to the forecast what jobs take over unchanged.
func (b *behind) keep(kept map[outputRef]map[string]bool) {
	for ref, keys := range kept {
		if ref.index == 0 {
			b.kept[ref.job] = union(b.kept[ref.job], slices.Collect(maps.Keys(keys)))
		}
	}
}

// upstreamOf names the jobs of the DAG that a job reads.
func upstreamOf(job *dag.Job) []string {
	var names []string
	for _, in := range job.Inputs {
		if in.Job != "" && !slices.Contains(names, in.Job) {
			names = append(names, in.Job)
		}
	}
	return names
}

// forecast gathers what is known of the partitions to come: sources will have those that the generation itself has
// already, or those of its live counterpart.
func (d *deploy) forecast(ctx context.Context, tx pgx.Tx, live, next []planned) (*behind, error) {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return nil, err
	}

	var generations []uuid.UUID
	for _, p := range slices.Concat(live, next) {
		generations = append(generations, p.generation)
	}
	for _, ds := range foreign {
		generations = append(generations, ds.generation)
	}

	published, err := registry.Published(new(pg.Batch), generations).Get(ctx, tx)
	if err != nil {
		return nil, err
	}

	f := &forecast{doc: d.doc, sources: map[string]partitions{}, foreign: map[string]partitions{},
		shapes: map[string]dag.Partitioning{}, kept: map[string][]string{}, gone: map[string]map[string]bool{},
		done: map[string]partitions{}}
	b := &behind{forecast: f, generations: map[outputRef]uuid.UUID{}, elsewhere: map[string]uuid.UUID{},
		datasets: map[uuid.UUID]uuid.UUID{}, published: published, known: map[registry.Ref]bool{}}

	if b.purged, err = purgedKeys(ctx, tx, generations); err != nil {
		return nil, err
	}

	serving := byDataset(live)
	for _, p := range next {
		l, serves := serving[p.id]
		b.generations[outputRef{p.job, p.output}], b.datasets[p.generation] = p.generation, p.id
		if p.output == 0 && serves && l.generation == p.generation {
			f.kept[p.job] = sortedKeys(published[p.generation])
			f.gone[p.job] = b.purged[p.generation]
		}
		if job, _ := d.doc.Job(p.job); p.output == 0 && job.Source != nil {
			f.sources[p.job] = d.readFrom(job, sortedKeys(published[p.generation]), sortedKeys(published[l.generation]),
				serves && l.generation != p.generation)
			if err := f.ask(job, d.now); err != nil {
				return nil, err
			}
		}
	}

	f.unknownSources()
	for name, ds := range foreign {
		f.foreign[name], f.shapes[name] = partitions{keys: sortedKeys(published[ds.generation])}, ds.partitionBy
		b.elsewhere[name], b.datasets[ds.generation] = ds.generation, ds.id
	}
	return b, nil
}

// readFrom returns the partitions that a source will have in its generation, from those that this and the live one
// have. What cannot be read again is not there in another generation.
func (d *deploy) readFrom(job *dag.Job, own, live []string, another bool) partitions {
	operator := d.deployer.catalog.Operators[job.Operator]
	if another && len(live) > 0 && job.ForwardOnly(operator) && !resets(*job) {
		return partitions{keys: own}
	}
	keys := union(own, live)
	return partitions{keys: keys, unknown: len(keys) == 0}
}

// ask adds the partitions that a source is asked for, of which none is unknown.
func (f *forecast) ask(job *dag.Job, now time.Time) error {
	if !job.Asked() || !job.Source.OnDeploy {
		return nil
	}
	keys, err := job.PartitionBy.CompleteFrom(job.Source.FirstPartition, now)
	if err != nil {
		return fmt.Errorf("job %s: %w", job.Name, err)
	}
	f.sources[job.Name] = partitions{keys: union(keys, f.sources[job.Name].keys)}
	return nil
}

// unknownSources adds the sources of which nothing is known.
func (f *forecast) unknownSources() {
	for _, job := range f.doc.Jobs {
		if _, known := f.sources[job.Name]; job.Source != nil && !known {
			f.sources[job.Name] = partitions{unknown: true}
		}
	}
}

// purgedKeys returns the partitions of generations that were purged and not made again.
func purgedKeys(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) (map[uuid.UUID]map[string]bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key FROM partition_versions r
		WHERE r.dataset_version = ANY($1) AND r.state = 'Purged' AND NOT EXISTS (
			SELECT FROM partition_versions n WHERE n.dataset_version = r.dataset_version
			  AND n.partition_key = r.partition_key AND n.revision > r.revision)`, generations)
	if err != nil {
		return nil, fmt.Errorf("purged partitions: %w", err)
	}

	gone := map[uuid.UUID]map[string]bool{}
	var (
		generation uuid.UUID
		key        string
	)
	_, err = pgx.ForEachRow(rows, []any{&generation, &key}, func() error {
		if gone[generation] == nil {
			gone[generation] = map[string]bool{}
		}
		gone[generation][key] = true
		return nil
	})
	return gone, err
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

package usage

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/footprint"
)

// grouping says which rows of an answer the usage of outputs goes to. What a job uses as a whole goes to its datasets
// in equal parts; its tasks count for each of them.
type grouping struct {
	rows  []Row
	total Amount
	parts []part
	// hidden are the jobs whose rows and bytes the caller may not see.
	hidden map[job]bool
	index  map[subject]int
}

// subject is what a row is about.
type subject struct{ dag, job, dataset, owner, org string }

// job is a job by name.
type job struct{ DAG, Job string }

// part is what a group gets of the usage of an output; the fields are in the order of readSteps' columns.
type part struct {
	DAG, Job      string
	Output, Group int
	Seconds       float64 // of those of the job
	Data          bool    // its rows and bytes
}

// names is what the caller may know of the jobs and datasets of an org.
type names struct {
	caller    authz.Caller
	undivided bool // it is asked for no job
	jobs      map[[2]string]footprint.JobOutline
	datasets  map[output]footprint.DatasetName
	now       map[registry.NameOfJob]string
}

// of returns an output under the name that its job has now.
func (n names) of(o output) output {
	if now, ok := n.now[registry.NameOfJob{DAG: o.dag, Job: o.job}]; ok {
		o.job = now
	}
	return o
}

// readNames reads what a question has to know of jobs and datasets.
func readNames(ctx context.Context, tx pgx.Tx, caller authz.Caller, q Question) (names, error) {
	n := names{caller: caller, undivided: q.undivided(caller), jobs: map[[2]string]footprint.JobOutline{},
		datasets: map[output]footprint.DatasetName{}}
	if !n.undivided {
		jobs, err := footprint.JobOutlines(ctx, tx, caller, q.DAG)
		if err != nil {
			return n, err
		}
		for _, j := range jobs {
			n.jobs[[2]string{j.DAG, j.Job}] = j
		}
	}

	if q.By == ByDataset || q.By == ByOwner {
		datasets, err := footprint.DatasetNames(ctx, tx, caller, q.DAG)
		if err != nil {
			return n, err
		}
		for _, d := range slices.Backward(datasets) { // the published one of an output is first
			n.datasets[output{d.DAG, d.Job, d.Output}] = d
		}
	}
	return n, nil
}

// group sums what was used by what a question asks for.
func group(n names, q Question, used map[output]Amount) *grouping {
	g := &grouping{index: map[subject]int{}, hidden: map[job]bool{}}
	for o, a := range used {
		g.add(n, q.By, o, a)
	}
	return g
}

// rename finds the names that jobs have now which used something and which no active version has: they are gone, or
// were renamed.
func (n *names) rename(ctx context.Context, tx pgx.Tx, used map[output]Amount) (err error) {
	if n.undivided {
		return nil
	}
	unknown := map[registry.NameOfJob]bool{}
	for o := range used {
		if _, ok := n.jobs[[2]string{o.dag, o.job}]; !ok {
			unknown[registry.NameOfJob{DAG: o.dag, Job: o.job}] = true
		}
	}
	n.now, err = registry.NewNames(ctx, tx, n.caller.OrgID, slices.Collect(maps.Keys(unknown)))
	return err
}

// sum adds up the steps of what is undivided, which has one row unless nothing was used.
func (g *grouping) sum(steps map[at]Amount) {
	for of, amount := range steps {
		if of.group == -1 {
			g.total.add(amount, 1)
			g.rows[0].add(amount, 1)
		}
	}
	if g.total == (Amount{}) {
		g.rows, g.parts = nil, nil
	}
}

// hides reports whether the caller may not look into a job. Of a job that no active version has, nobody knows what it
// read.
func (n names) hides(o output) bool {
	if n.undivided {
		return false
	}
	job, known := n.jobs[[2]string{o.dag, o.job}]
	return job.Hidden || !known && !n.caller.ReadsAll()
}

// about returns what the row of an output is about.
func (n names) about(by By, o output) subject {
	switch by {
	case ByJob:
		return subject{dag: o.dag, job: o.job}
	case ByDAG:
		return subject{dag: o.dag}
	case ByOrg:
		return subject{org: n.caller.OrgSlug}
	case ByOwner:
		return subject{owner: n.datasets[o].Owner}
	}
	return subject{dataset: n.datasets[o].Name}
}

// add adds the usage of an output to its groups, and to the total.
func (g *grouping) add(n names, by By, o output, a Amount) {
	counted, o := o, n.of(o) // the tables have the name that the job had then
	hidden := n.hides(o)
	if hidden {
		a.Rows, a.Bytes, a.Stored = 0, 0, 0
		g.hidden[job{o.dag, counted.job}] = true
	}
	g.total.add(a, 1)

	// What is written and stored is the output's own, the rest the job's.
	own := g.at(n.about(by, o), hidden)
	give := func(to int, share float64) {
		mine := a
		if to != own {
			mine.Rows, mine.Bytes, mine.Stored = 0, 0, 0
		}
		g.rows[to].add(mine, share)
		g.parts = append(g.parts, part{o.dag, counted.job, o.index, to, share, to == own && !hidden})
	}
	outputs := n.jobs[[2]string{o.dag, o.job}].Outputs
	if o.index != 0 || outputs <= 1 {
		give(own, 1)
		return
	}

	shares := map[int]float64{own: 0}
	for i := range outputs {
		shares[g.at(n.about(by, output{o.dag, o.job, i}), hidden)] += 1 / float64(outputs)
	}
	for to, share := range shares {
		give(to, share)
	}
}

// at returns the index of the row about something.
func (g *grouping) at(of subject, hidden bool) int {
	i, ok := g.index[of]
	if !ok {
		i = len(g.rows)
		g.index[of] = i
		g.rows = append(g.rows, Row{DAG: of.dag, Job: of.job, Dataset: of.dataset, Owner: of.owner, Org: of.org})
	}
	g.rows[i].Redacted = g.rows[i].Redacted || hidden
	return i
}

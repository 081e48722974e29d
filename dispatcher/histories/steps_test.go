package histories_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// step makes one random change.
func (h *history) step() {
	producer, any := h.dags[pick(h, producers)], h.dags[pick(h, append(slices.Clone(producers), "carl"))]
	switch n := h.rng.IntN(40); {
	case n < 8:
		h.files(1 + h.rng.IntN(2))
	case n < 19:
		h.deploy(producer, h.edit(producer), nil)
	case n < 21:
		h.again(producer)
	case n < 25:
		h.read()
	case n < 29:
		h.back(any)
	case n < 33:
		h.waiting(any)
	case n < 34:
		h.resume(any)
	case n < 37:
		h.purge(any)
	case n < 39:
		h.anew(any)
	default:
		h.collect()
	}
}

// files adds files to the source, or replaces them.
func (h *history) files(n int) {
	for range n {
		key, content := fmt.Sprintf("2024-01-0%d", 1+h.rng.IntN(4)), fmt.Sprintf("r%d", h.rng.IntN(20))
		if h.rng.IntN(8) == 0 {
			content = "evil" + content
		}
		h.put(key, content)
	}
	h.w.Poll()
	h.w.Settle()
}

func (h *history) put(key, content string) {
	h.source[key] = content
	h.w.Probe.Put("raw", key, content)
	h.note("file %s: %s", key, content)
}

// late may replace a file in the middle of a build, by one that no check refuses, and reports whether it has.
func (h *history) late() bool {
	key := fmt.Sprintf("2024-01-0%d", 1+h.rng.IntN(4))
	if h.rng.IntN(4) > 0 || h.source[key] == "" || evil(h.source[key]) {
		return false
	}
	h.put(key, fmt.Sprintf("r%d", h.rng.IntN(20)))
	h.w.Poll()
	return true
}

func (h *history) agree() consents {
	return consents{moves: h.rng.IntN(3) > 0, breaking: h.rng.IntN(2) > 0, removals: h.rng.IntN(2) > 0}
}

// deploy deploys a version: at once, to wait for its promotion, forward-only, or instead of the one that waits.
func (h *history) deploy(d *dagModel, v *version, change func(*registry.DeployRequest)) {
	given := h.agree()
	v.given, v.consents = given, given.with(h.given[d.name+v.yaml])
	h.given[d.name+v.yaml] = v.consents
	v.forward, v.since = h.rng.IntN(8) == 0, h.made
	h.bind(v)
	activate, supersede := h.rng.IntN(5) > 0, h.rng.IntN(3) == 0
	r := h.judge(d, v, false)
	asked := *v
	asked.consents = given // a consent to an earlier build of the document may count or not
	stricter := h.judge(d, &asked, false)
	r.may = append(append(r.may, stricter.may...), stricter.must...)
	if d.parked != nil && !supersede {
		r.allow("v%d waits", d.parked.number)
	}
	if change != nil {
		r.allow("there is nothing to resume")
	}
	if v.forward {
		r.allow("nothing is rebuilt that could be kept")
	}

	deployed, err := h.w.TryDeploy(v.yaml, func(q *registry.DeployRequest) {
		q.AllowMoves, q.AllowBreaking, q.AllowRemovals = given.moves, given.breaking, given.removals
		q.Activate, q.Supersede, q.ForwardOnly = &activate, supersede, v.forward
		if change != nil {
			change(q)
		}
	})
	h.note("deploy %s activate=%v supersede=%v forward=%v %+v %s: %v", d.name, activate, supersede, v.forward,
		given, v, err)
	if err != nil {
		h.refused(r, err)
		return
	}
	h.built(d, v, deployed.Version, r)
}

// built works until a version that was deployed serves, waits or has failed.
func (h *history) built(d *dagModel, v *version, deployed registry.Version, r verdict) {
	v.id, v.number = deployed.ID, deployed.Number
	h.generations(d, v)
	d.building = v
	late := h.late()
	if late {
		r = verdict{may: append(r.must, r.may...)}
	}
	h.w.Settle()
	status, reason := h.w.Status(deployed.ID)
	if status == registry.Building {
		h.wait()
		status, reason = h.w.Status(deployed.ID)
	}
	h.note("v%d is %s %s", deployed.Number, status, reason)
	before := d.replaced(v)
	h.settle()
	if late && status == registry.Active {
		leaveOpen(before)
	}
	d.building = nil
	if d.parked != nil {
		if was, _ := h.w.Status(d.parked.id); was != registry.Ready && was != registry.Building {
			d.parked = nil
		}
	}
	switch {
	case d.live != nil && d.live.id == v.id:
	case status == registry.Active:
		h.done(r)
		h.serve(d, v)
	case status == registry.Ready:
		d.parked = v
	default:
		require.Equal(h.t, registry.Failed, status, "%s\n%s", reason, h.story())
		h.refused(r, fault.New(fault.Conflict, "%s", reason))
		d.failed = v
	}
}

// refused requires a reason for a refusal.
func (h *history) refused(r verdict, err error) {
	require.True(h.t, fault.Is(err, fault.Conflict) || fault.Is(err, fault.Invalid), "%v\n%s", err, h.story())
	require.NotEmpty(h.t, append(r.must, r.may...), "this must not be refused: %v\n%s", err, h.story())
}

// done requires that nothing speaks against what was done.
func (h *history) done(r verdict) {
	require.Empty(h.t, r.must, "this must be refused\n%s", h.story())
}

// serve makes a version the one that serves.
func (h *history) serve(d *dagModel, v *version) {
	h.settle()
	if d.parked == v || d.parked != nil && d.parked.id == v.id {
		d.parked = nil
	}
	before := d.live
	for name, g := range v.gens {
		if before != nil {
			g.inheritAgain(before.gens[name])
		}
		g.heir = nil
	}
	d.live = v
	h.claim(d, v)
	if !slices.ContainsFunc(d.versions, func(known *version) bool { return known.id == v.id }) {
		d.versions = append(d.versions, v)
	}
	for name, g := range v.gens {
		if !v.jobs[name].checked && before != v {
			h.release(g)
		}
	}
	h.settle()
}

// generations looks up what a version's jobs fill.
func (h *history) generations(d *dagModel, v *version) {
	v.gens = map[string]*generation{}
	for name, j := range v.jobs {
		id := h.w.Generation(v.id, name)
		g := d.known[id]
		if g == nil {
			g = &generation{job: j.unchecked(), name: name, parts: map[string]*part{}}
			d.known[id] = g
			if v.forward && d.live != nil {
				if from := d.live.gens[name]; from != nil && from.job.whole == j.whole && !j.whole {
					g.inherit(from)
				}
			}
		}
		require.Equal(h.t, j.unchecked(), g.job, "%s/%s shares data with another definition\n%s", d.name, name,
			h.story())
		v.gens[name] = g
	}
}

// again deploys the document of a version that has served.
func (h *history) again(d *dagModel) {
	if len(d.versions) == 0 {
		return
	}
	v := *pick(h, d.versions)
	v.gens, v.takes = nil, maps.Clone(v.takes)
	h.deploy(d, &v, nil)
}

// read deploys carl, for a name that it reads or another definition.
func (h *history) read() {
	d, name := h.dags["carl"], pick(h, names)
	j := job{tag: fmt.Sprintf("c%d", h.rng.IntN(3)), whole: h.rng.IntN(3) == 0, tables: h.rng.IntN(4) == 0}
	h.deploy(d, &version{jobs: map[string]job{"r": j}, names: map[string]string{"read_by_carl": "r"}, input: name,
		yaml: reader(name, j)}, nil)
}

// back rolls a DAG back to a random version that served.
func (h *history) back(d *dagModel) {
	if len(d.versions) == 0 {
		return
	}
	v := pick(h, d.versions)
	given := h.agree()
	judged := *v
	judged.consents = given
	r := h.judge(d, &judged, true)
	if v.id == d.live.id {
		r.require("it serves")
	}
	if d.parked != nil && d.parked.id == v.id {
		r.require("it waits")
	}

	req := builds.RollbackRequest{To: &v.number, AllowMoves: given.moves, AllowBreaking: given.breaking,
		AllowRemovals: given.removals}
	_, err := h.w.D.Builds.Rollback(h.t.Context(), h.w.Caller, d.name, req)
	h.w.Settle()
	h.note("rollback %s to v%d %+v: %v", d.name, v.number, given, err)
	if err != nil {
		h.refused(r, err)
		return
	}
	h.done(r)
	h.serve(d, v)
}

// waiting promotes the version that waits, or abandons it.
func (h *history) waiting(d *dagModel) {
	v := d.parked
	if v == nil {
		return
	}
	if h.rng.IntN(4) == 0 {
		_, err := h.w.D.Builds.Abandon(h.t.Context(), h.w.Caller, d.name)
		h.note("abandon %s: %v", d.name, err)
		require.NoError(h.t, err, h.story())
		h.w.Settle()
		d.parked = nil
		return
	}
	r, asked := h.judge(d, v, false), *v
	asked.consents = v.given
	r.may = append(r.may, h.judge(d, &asked, false).must...)
	_, err := h.w.D.Builds.Promote(h.t.Context(), h.w.Caller, d.name, v.number)
	h.note("promote %s v%d: %v", d.name, v.number, err)
	if err != nil {
		h.refused(r, err)
		return
	}
	h.w.Settle()
	status, reason := h.w.Status(v.id)
	h.note("v%d is %s %s", v.number, status, reason)
	if status != registry.Active {
		require.Equal(h.t, registry.Failed, status, "%s\n%s", reason, h.story())
		h.refused(r, fault.New(fault.Conflict, "%s", reason))
		d.parked, d.failed = nil, v
		return
	}
	h.done(r)
	h.serve(d, v)
}

// resume takes the version that failed up again.
func (h *history) resume(d *dagModel) {
	v := d.failed
	if v == nil {
		return
	}
	d.failed = nil
	h.deploy(d, v, func(q *registry.DeployRequest) { q.Resume, q.ForwardOnly = true, false })
}

// purge deletes a partition, or all, of what the source gave, of a job's dataset or of carl's.
func (h *history) purge(d *dagModel) {
	if d.live == nil {
		return
	}
	name := pick(h, append(slices.Sorted(maps.Keys(d.live.jobs)), "raw"))
	if d.name == "carl" {
		name = "r"
	}
	key := fmt.Sprintf("2024-01-0%d", 1+h.rng.IntN(4))
	if g := d.live.gens[name]; g != nil && g.job.whole {
		key = "all"
	}
	req := upkeep.PurgeRequest{Reason: "erasure request 17", From: key, To: key, BreakWindow: h.rng.IntN(3) > 0}
	address := h.address(d, name)
	_, err := h.w.D.Upkeep.Purge(h.t.Context(), h.w.Caller, address, req, time.Now())
	h.w.Settle()
	h.note("purge %s of %s break=%v: %v", key, address, req.BreakWindow, err)
	if err != nil {
		require.True(h.t, fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound), "%v\n%s", err, h.story())
		return
	}

	if name == "raw" {
		if p := d.read[key]; p != nil {
			p.absent = true
		}
		return
	}
	for _, g := range d.known {
		if p := g.parts[key]; g.name == name && p != nil {
			p.absent, p.withheld, p.either = true, "", nil
		}
	}
}

// anew computes a dataset anew.
func (h *history) anew(d *dagModel) {
	if d.live == nil || d.parked != nil {
		return
	}
	name := pick(h, slices.Sorted(maps.Keys(d.live.jobs)))
	v := *d.live
	v.gens, v.forward, v.since = maps.Clone(v.gens), false, h.made
	h.bind(&v)
	v.gens[name] = &generation{job: v.jobs[name].unchecked(), parts: map[string]*part{}} // for the verdict
	v.consents = consents{removals: h.rng.IntN(2) > 0}
	r := h.judge(d, &v, false)
	v.gens = nil

	address := h.address(d, name)
	made, err := deploy.New(h.w.D.Registry).Rematerialize(h.t.Context(), h.w.Caller, address,
		deploy.RematerializeRequest{AllowRemovals: v.consents.removals})
	h.note("rematerialize %s %+v: %v", address, v.consents, err)
	if err != nil {
		h.refused(r, err)
		return
	}
	h.built(d, &v, *made[0].Version, r)
}

// collect collects garbage, sometimes long after now.
func (h *history) collect() {
	now := time.Now()
	if h.rng.IntN(2) == 0 {
		now = now.Add(2 * dispatchertest.PastWindow)
		for _, d := range h.dags {
			for _, g := range d.known {
				g.gone = !d.inWork(g)
			}
		}
	}
	dry, err := h.w.D.Upkeep.CollectGarbage(h.t.Context(), h.w.Caller, true, now)
	require.NoError(h.t, err, h.story())
	found, err := h.w.D.Upkeep.CollectGarbage(h.t.Context(), h.w.Caller, false, now)
	require.NoError(h.t, err, h.story())
	require.Equal(h.t, dry.Generations, found.Generations, "what a dry run lists is what goes\n%s", h.story())
	require.Equal(h.t, dry.Revisions, found.Revisions, h.story())
	h.note("gc as of %s", now.Format(time.DateOnly))
}

// inWork reports whether a version that serves or waits has a generation.
func (d *dagModel) inWork(g *generation) bool {
	for _, v := range []*version{d.live, d.parked} {
		if v != nil && v.gens[g.name] == g {
			return true
		}
	}
	return false
}

func (h *history) note(format string, args ...any) {
	h.steps = append(h.steps, fmt.Sprintf("%d: ", h.number)+fmt.Sprintf(format, args...))
}

// story returns how to repeat the history, and its last steps.
func (h *history) story() string {
	return fmt.Sprintf("repeat with: go test ./dispatcher/histories -run TestHistories -args -seed %d -steps %d\n%s",
		h.seed, h.number, strings.Join(h.steps[max(0, len(h.steps)-*shown):], "\n"))
}

package builds_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

var modelSteps = flag.Int("model-steps", 30, "steps of each random history over several DAGs")

// A random history over three DAGs: two that publish under three names, which move between jobs and DAGs, and one that
// reads a name. After every step, each name shows what a simple model says, or is absent where the model says so. A
// refused step changes nothing.

// modelDAG is a DAG in the model. Dataset identities are "dag/job".
type modelDAG struct {
	name     string
	versions []modelVersion // those that have served, in the order of their numbers
	current  int            // index in versions; -1: none
}

// modelVersion is a version of a DAG.
type modelVersion struct {
	number int
	yaml   string
	tags   map[string]string // by job: what it puts before the content of each partition
	names  map[string]string // published name → job
	takes  map[string]string // name → DAG that it is taken over from
	reads  string            // of the consumer: the dataset that its input means
}

func (d *modelDAG) serving() *modelVersion {
	if d.current < 0 {
		return nil
	}
	return &d.versions[d.current]
}

// history is a run of the model beside the real thing.
type history struct {
	t      *testing.T
	w      *dispatchertest.World
	rng    *rand.Rand
	dags   map[string]*modelDAG
	claims map[string][]string // by name: the DAGs that claim it, the newest last
	raw    map[string]string   // content by partition
	steps  []string
}

var (
	modelNames     = []string{"x", "y", "z"}
	modelProducers = []string{"anna", "bert"}
	modelJobs      = []string{"p", "q"}
)

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, w: dispatchertest.NewWorld(t), rng: rand.New(rand.NewPCG(seed, 12)),
		dags: map[string]*modelDAG{}, claims: map[string][]string{}, raw: map[string]string{}}
	for _, name := range append(slices.Clone(modelProducers), "carl") {
		h.dags[name] = &modelDAG{name: name, current: -1}
	}
	h.put()
	return h
}

func pick[T any](h *history, from []T) T { return from[h.rng.IntN(len(from))] }

// put writes or replaces a partition of the source.
func (h *history) put() {
	key, content := fmt.Sprintf("2024-01-0%d", 1+h.rng.IntN(4)), fmt.Sprintf("r%d", h.rng.IntN(1000))
	h.raw[key] = content
	h.w.Probe.Put("raw", key, content)
	h.note("put %s %s", key, content)
}

func (h *history) note(format string, args ...any) {
	h.steps = append(h.steps, fmt.Sprintf(format, args...))
}

// document returns the file of a producer.
func document(name string, v modelVersion) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\njobs:\n%s", name, dispatchertest.Raw)
	for _, job := range slices.Sorted(maps.Keys(v.tags)) {
		fmt.Fprintf(&b, `  - name: %s
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT '%s ' || content AS content FROM raw" }
`, job, v.tags[job])
	}
	if len(v.names) > 0 {
		b.WriteString("publish:\n")
	}
	for _, n := range slices.Sorted(maps.Keys(v.names)) {
		takes := ""
		if from := v.takes[n]; from != "" {
			takes = ", takes_over: " + from
		}
		fmt.Fprintf(&b, "  %s: { from: { job: %s }%s }\n", n, v.names[n], takes)
	}
	return b.String()
}

// edit returns another version of a producer: a job gains, loses or changes its tag, or names move.
func (h *history) edit(d *modelDAG) modelVersion {
	v := modelVersion{tags: map[string]string{}, names: map[string]string{}, takes: map[string]string{}}
	if s := d.serving(); s != nil {
		v.tags, v.names, v.takes = maps.Clone(s.tags), maps.Clone(s.names), maps.Clone(s.takes)
	}
	for range 1 + h.rng.IntN(2) {
		switch job := pick(h, modelJobs); h.rng.IntN(5) {
		case 0, 1:
			v.tags[job] = fmt.Sprintf("%s%d", job, h.rng.IntN(4))
		case 2:
			if _, ok := v.tags[job]; ok {
				name := pick(h, modelNames)
				for other, j := range v.names { // one name a dataset
					if j == job {
						delete(v.names, other)
					}
				}
				v.names[name] = job
			}
		case 3:
			delete(v.names, pick(h, modelNames))
		default:
			if len(v.tags) > 1 && h.rng.IntN(3) == 0 {
				delete(v.tags, job)
				maps.DeleteFunc(v.names, func(_, j string) bool { return j == job })
			}
		}
	}

	if len(v.tags) == 0 {
		v.tags["p"] = "p0"
	}
	for name := range v.names {
		if owner := h.owner(name); owner != "" && owner != d.name {
			v.takes[name] = owner
		}
	}
	maps.DeleteFunc(v.takes, func(name, _ string) bool { return v.names[name] == "" })
	v.yaml = document(d.name, v)
	return v
}

func (h *history) owner(name string) string {
	if c := h.claims[name]; len(c) > 0 {
		return c[len(c)-1]
	}
	return ""
}

// dataset returns the dataset that a name means now; empty if none.
func (h *history) dataset(name string) string {
	owner := h.owner(name)
	if owner == "" {
		return ""
	}
	return owner + "/" + h.dags[owner].serving().names[name]
}

// rows returns what a dataset has now, nil if no version that serves has it.
func (h *history) rows(dataset string) map[string][]string {
	dagName, job, _ := strings.Cut(dataset, "/")
	v := h.dags[dagName].serving()
	if v == nil || v.tags[job] == "" {
		return nil
	}
	rows := map[string][]string{}
	for key, content := range h.raw {
		rows[key] = []string{v.tags[job] + " " + content}
	}
	return rows
}

// served makes a version the one that serves, in the model.
func (h *history) served(d *modelDAG, v modelVersion) {
	at := slices.IndexFunc(d.versions, func(known modelVersion) bool { return known.number == v.number })
	if at < 0 {
		d.versions = append(d.versions, v)
		at = len(d.versions) - 1
	}
	d.current = at

	for name, claims := range h.claims {
		if _, wants := v.names[name]; !wants {
			h.claims[name] = slices.DeleteFunc(claims, func(c string) bool { return c == d.name })
		}
	}
	for name := range v.names {
		if h.owner(name) != d.name {
			others := slices.DeleteFunc(h.claims[name], func(c string) bool { return c == d.name })
			h.claims[name] = append(others, d.name)
		}
	}
}

// consent gives a random choice of consents.
func (h *history) consent(r *registry.DeployRequest) {
	r.AllowMoves, r.AllowBreaking, r.AllowRemovals = h.rng.IntN(3) > 0, h.rng.IntN(2) > 0, h.rng.IntN(2) > 0
}

// try deploys a version, and reports whether it serves. Only a conflict keeps it from that.
func (h *history) try(d *modelDAG, v modelVersion, parked bool) bool {
	deployed, err := h.w.TryDeploy(v.yaml, h.consent, func(r *registry.DeployRequest) {
		activate := !parked
		r.Activate = &activate
	})
	h.note("deploy %s: %v\n%s", d.name, err, v.yaml)
	if err != nil {
		require.True(h.t, fault.Is(err, fault.Conflict) || fault.Is(err, fault.Invalid), "%v", err)
		h.safe(d, v)
		return false
	}

	h.w.Settle()
	if parked {
		_, err = h.w.D.Builds.Promote(h.t.Context(), h.w.Caller, d.name, deployed.Version.Number)
		h.note("promote: %v", err)
		h.w.Settle()
	}
	status, reason := h.w.Status(deployed.Version.ID)
	h.note("v%d is %s %s", deployed.Version.Number, status, reason)
	if status != registry.Active {
		h.safe(d, v)
		_, _ = h.w.D.Builds.Abandon(h.t.Context(), h.w.Caller, d.name)
		h.w.Settle()
		return false
	}
	v.number = deployed.Version.Number
	h.served(d, v)
	return true
}

// safe requires a reason for a refusal: names that move or go, or that a consumer has. An edit of tags alone is never
// refused.
func (h *history) safe(d *modelDAG, v modelVersion) {
	s := d.serving()
	if s == nil || d.name == "carl" {
		return
	}
	require.False(h.t, maps.Equal(s.names, v.names) && maps.Equal(h.ownedBy(d), s.names) && len(v.tags) >= len(s.tags),
		"an edit that takes nothing away was refused")
}

// ownedBy returns the names of a DAG's version that are its own.
func (h *history) ownedBy(d *modelDAG) map[string]string {
	names := maps.Clone(d.serving().names)
	maps.DeleteFunc(names, func(name, _ string) bool { return h.owner(name) != d.name })
	return names
}

// read deploys the consumer, for a name that it reads or another tag.
func (h *history) read() {
	d, name := h.dags["carl"], pick(h, modelNames)
	tag := fmt.Sprintf("c%d", h.rng.IntN(3))
	v := modelVersion{tags: map[string]string{"r": tag}, reads: h.dataset(name)}
	v.yaml = fmt.Sprintf(`
name: carl
jobs:
  - name: r
    operator: sql
    inputs: [{ from: { dataset: %s }, as: i }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT '%s ' || content AS content FROM i" }
publish:
  read_by_carl: { from: { job: r } }
`, name, tag)
	if v.reads == "" {
		_, err := h.w.TryDeploy(v.yaml)
		require.True(h.t, fault.Is(err, fault.Invalid), "%s is nobody's: %v", name, err)
		return
	}
	h.try(d, v, false)
}

// back rolls a DAG back to a random version that served.
func (h *history) back(d *modelDAG) {
	if len(d.versions) == 0 {
		return
	}
	at := h.rng.IntN(len(d.versions))
	v := d.versions[at]
	req := builds.RollbackRequest{To: &v.number, AllowMoves: h.rng.IntN(2) > 0, AllowBreaking: h.rng.IntN(2) > 0}
	_, err := h.w.D.Builds.Rollback(h.t.Context(), h.w.Caller, d.name, req)
	h.w.Settle()
	h.note("rollback %s to v%d %+v: %v", d.name, v.number, req, err)
	if err != nil {
		require.True(h.t, fault.Is(err, fault.Conflict), "%v", err)
		return
	}
	for name := range v.names { // a name of another DAG needs a word
		if owner := h.owner(name); owner != "" && owner != d.name {
			require.True(h.t, req.AllowMoves || v.takes[name] == owner, "%s was taken from %s unasked", name, owner)
		}
	}
	h.served(d, v)
}

// step makes one random change.
func (h *history) step() {
	d := h.dags[pick(h, modelProducers)]
	switch n := h.rng.IntN(20); {
	case n < 4:
		h.put()
		h.w.Poll()
		h.w.Settle()
	case n < 11:
		h.try(d, h.edit(d), h.rng.IntN(3) == 0)
	case n < 14:
		h.read()
	case n < 19:
		h.back(h.dags[pick(h, append(slices.Clone(modelProducers), "carl"))])
	default:
		h.w.GC(time.Now())
		h.note("gc")
	}
}

// check compares every name with the model, once all has caught up.
func (h *history) check() {
	require.NoError(h.t, h.w.D.Reconcile(h.t.Context(), time.Now()))
	h.w.Settle()
	for _, name := range modelNames {
		want := map[string][]string(nil)
		if dataset := h.dataset(name); dataset != "" {
			want = h.rows(dataset)
		}
		h.compare(name, want)
	}

	var want map[string][]string
	if v := h.dags["carl"].serving(); v != nil {
		if rows := h.rows(v.reads); rows != nil {
			want = map[string][]string{}
			for key, row := range rows {
				want[key] = []string{v.tags["r"] + " " + row[0]}
			}
		} else {
			return // what it reads serves no more: it keeps what it has
		}
	}
	h.compare("read_by_carl", want)
}

func (h *history) compare(name string, want map[string][]string) {
	got, err := h.w.TryRead(name)
	if want == nil {
		require.Error(h.t, err, "%s should be nobody's, but is %v\n%s", name, got, h.story())
		return
	}
	require.NoError(h.t, err, "%s\n%s", name, h.story())
	require.Equal(h.t, want, got, "%s\n%s", name, h.story())
}

func (h *history) story() string { return strings.Join(h.steps[max(0, len(h.steps)-40):], "\n") }

func TestNamesAcrossDAGsFollowAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := newHistory(t, seed)
			for range *modelSteps {
				h.step()
				h.check()
			}
		})
	}
}

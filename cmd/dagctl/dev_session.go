package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

// devPoll is how often a dev server looks whether a DAG file was saved, and what has happened.
const devPoll = 500 * time.Millisecond

// devDAG is one DAG file as it is on disk now.
type devDAG struct {
	source
	doc      *dag.Document // nil where it has problems
	problems dag.Problems
	hash     [sha256.Size]byte // of all that a deploy would send
}

// findDAGs reads every DAG file under dir. Hidden folders are left out.
func findDAGs(dir string, vars map[string]string) ([]*devDAG, error) {
	catalog, err := builtinCatalog()
	if err != nil {
		return nil, err
	}
	var found []*devDAG
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path != dir:
			return nil // a folder that vanished, or is not ours to read
		case err != nil:
			return fault.New(fault.NotFound, "%w", err)
		case entry.IsDir() && path != dir && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || entry.Name() != dagFileName:
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read DAG file: %w", err)
		}
		if path, err = filepath.Abs(path); err != nil {
			return fmt.Errorf("read DAG file: %w", err)
		}
		d := &devDAG{source: source{path: path, text: text, vars: vars}}
		if d.doc, d.problems, err = d.parse(catalog); err != nil {
			return err
		}
		d.hash = d.contentHash()
		found = append(found, d)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fault.New(fault.NotFound, "there is no %s under %s", dagFileName, dir).WithHint("`dagctl init %s` writes a first one", dir)
	}
	return inOrder(found), nil
}

func (d *devDAG) contentHash() [sha256.Size]byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d\n%s", len(d.text), d.text)
	if d.doc == nil {
		fmt.Fprint(&b, d.problems.Error()) // a file it names may be the problem
		return sha256.Sum256(b.Bytes())
	}
	for _, name := range slices.Sorted(maps.Keys(d.doc.Files)) {
		fmt.Fprintf(&b, "%s %d\n%s", name, len(d.doc.Files[name]), d.doc.Files[name])
	}
	return sha256.Sum256(b.Bytes())
}

// inOrder puts producers before the consumers of their datasets. DAGs of a circle stay as they are; deploying says why not.
func inOrder(dags []*devDAG) []*devDAG {
	producers := map[string]*devDAG{}
	for _, d := range dags {
		if d.doc != nil {
			for _, p := range d.doc.Publish {
				producers[p.Name] = d
			}
		}
	}
	var ordered []*devDAG
	visited := map[*devDAG]bool{}
	var visit func(d *devDAG)
	visit = func(d *devDAG) {
		if visited[d] {
			return
		}
		visited[d] = true
		for _, name := range d.reads() {
			if producer := producers[name]; producer != nil {
				visit(producer)
			}
		}
		ordered = append(ordered, d)
	}
	for _, d := range dags {
		visit(d)
	}
	return ordered
}

// reads lists the published datasets that the DAG takes from others.
func (d *devDAG) reads() []string {
	var names []string
	if d.doc != nil {
		for _, job := range d.doc.Jobs {
			for _, in := range job.Inputs {
				if in.Dataset != "" {
					names = append(names, in.Dataset)
				}
			}
		}
	}
	return names
}

// deployedDAG is what a dev server last did with a DAG file.
type deployedDAG struct {
	hash    [sha256.Size]byte
	version *registry.Version // nil where it had problems
}

// devSession deploys what is saved and tells what happens.
type devSession struct {
	*cli
	api     *client
	app     *app
	org     uuid.UUID
	options devOptions
	vars    map[string]string
	folders *dagFolders

	runtimes dispatcher.RuntimeMap // that are mapped
	workers  devWorkers

	known  map[string]deployedDAG       // by path
	seen   map[string][sha256.Size]byte // by path, at the look before
	tasks  map[uuid.UUID]string         // last state that was told
	states map[string]string            // version → last state that was told
}

func (s *devSession) run(ctx context.Context) error {
	s.tasks, s.states, s.seen = map[uuid.UUID]string{}, map[string]string{}, map[string][sha256.Size]byte{}
	for {
		if err := s.deployChanged(ctx); err != nil {
			return err
		}
		if err := s.tell(ctx); err != nil {
			return err
		}
		if s.options.once {
			done, err := s.finished(ctx)
			if err != nil {
				return err
			}
			if done {
				return s.finish(ctx)
			}
		}
		if err := pause(ctx, devPoll); err != nil {
			return err
		}
	}
}

// deployChanged deploys every DAG file that differs from what was deployed last.
func (s *devSession) deployChanged(ctx context.Context) error {
	dags, err := findDAGs(s.options.dir, s.vars)
	if err != nil {
		if s.options.once || len(s.known) == 0 {
			return err
		}
		return nil // a moment between two writes of an editor; the next look will see
	}
	s.folders.learn(dags)
	for _, d := range dags {
		known, deployedBefore := s.known[d.path]
		// An editor may still be writing: a change counts once it looks the same twice.
		settled := s.seen[d.path] == d.hash
		s.seen[d.path] = d.hash
		if deployedBefore && (known.hash == d.hash || !settled) {
			continue
		}
		if err := s.waitForProducers(ctx, d, dags); err != nil {
			return err
		}
		version, err := s.deploy(ctx, d)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, errReported) {
			fmt.Fprintf(s.err, "%s: ", d.path)
			s.printError(err)
		}
		if err != nil && s.options.once {
			return errReported
		}
		s.known[d.path] = deployedDAG{d.hash, version}
	}
	return nil
}

func (s *devSession) deploy(ctx context.Context, d *devDAG) (*registry.Version, error) {
	if len(d.problems) > 0 {
		return nil, s.reportProblems(d.problems)
	}
	for _, job := range d.doc.Jobs {
		if _, mapped := s.runtimes[job.Runtime]; !mapped {
			return nil, fault.New(fault.Conflict, "job %s names the runtime %s, which no DAG file did when this dev server was started", job.Name, job.Runtime).
				WithHint("stop it and start it again: it then has a worker for that runtime too")
		}
	}
	request, name, err := s.deployRequest(ctx, s.api, d.source)
	if err != nil {
		return nil, err
	}
	request.Supersede = true // whoever saves again wants the later one
	deployed, err := s.api.deploy(ctx, name, request)
	if err != nil {
		return nil, err
	}
	if deployed.Created {
		s.printPlan(s.out, deployed)
	}
	if err := s.tellWorkers(ctx, d.doc); err != nil {
		return nil, err
	}
	s.app.dispatcher.Wake()
	return &deployed.Version, nil
}

// waitForProducers waits until the DAGs whose datasets this one reads serve them, because it binds to what is served.
func (s *devSession) waitForProducers(ctx context.Context, d *devDAG, dags []*devDAG) error {
	wanted := d.reads()
	for _, producer := range dags {
		known, ok := s.known[producer.path]
		if producer == d || producer.doc == nil || !ok || known.version == nil ||
			!slices.ContainsFunc(producer.doc.Publish, func(p dag.Publication) bool { return slices.Contains(wanted, p.Name) }) {
			continue
		}
		for {
			v, err := s.version(ctx, *known.version)
			if err != nil {
				return err
			}
			if v.Status != registry.Building && v.Status != registry.Ready {
				break
			}
			if err := s.tell(ctx); err != nil {
				return err
			}
			if err := pause(ctx, devPoll); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *devSession) version(ctx context.Context, v registry.Version) (registry.Version, error) {
	err := s.api.get(ctx, versionPath(v.DAG, v.Number), nil, &v)
	return v, err
}

// tell prints what has happened since it was last called: a line per version that changed its state, and one per job
// whose tasks ended.
func (s *devSession) tell(ctx context.Context) error {
	tasks, err := fetch[dispatcher.Task](ctx, s.api, "/v1/tasks", nil, pageFlags{limit: 500})
	if err != nil {
		return err
	}
	done := map[string][]string{}
	for _, t := range slices.Backward(tasks) {
		state := t.Status
		if t.Waiting == "dead" || t.Waiting == "backoff" {
			state = fmt.Sprint(t.Waiting, t.Failures)
		}
		if s.tasks[t.ID] == state {
			continue
		}
		s.tasks[t.ID] = state
		what := t.DAG + "/" + t.Job
		if t.Kind == "check" {
			what += " checks"
		}
		switch {
		case t.Status == "Completed":
			done[what] = append(done[what], t.Partition)
		case t.Waiting == "dead":
			fmt.Fprintf(s.out, "%s %s %s: %s\n", s.style(s.out).bad("dead"), what, t.Partition, oneLine(t.Error, 1000))
			fmt.Fprintf(s.out, "  `dagctl tasks retry %s` takes it up again\n", t.ID)
		case t.Waiting == "backoff":
			fmt.Fprintf(s.out, "%s %s %s, will retry: %s\n", s.style(s.out).busy("failed"), what, t.Partition, oneLine(t.Error, 300))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(done)) {
		fmt.Fprintln(s.out, strings.TrimSpace(fmt.Sprintf("%s %s %s", s.style(s.out).good("done"), what, few(done[what]))))
	}
	return s.tellVersions(ctx)
}

func (s *devSession) tellVersions(ctx context.Context) error {
	dags, err := fetch[dispatcher.DAGStatus](ctx, s.api, "/v1/dags", nil, pageFlags{limit: 500})
	if err != nil {
		return err
	}
	for _, d := range dags {
		for _, v := range []*registry.Version{d.Failed, d.Building, d.Active} {
			if v == nil || s.states[v.ID.String()] == string(v.Status) {
				continue
			}
			s.states[v.ID.String()] = string(v.Status)
			fmt.Fprintf(s.out, "%s v%d is %s", v.DAG, v.Number, s.style(s.out).status(string(v.Status)))
			if v.Error != "" {
				fmt.Fprintf(s.out, ": %s", oneLine(v.Error, 1000))
			}
			fmt.Fprintln(s.out)
		}
	}
	return nil
}

// few names the first partitions of many.
func few(keys []string) string {
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == dag.WholeKey })
	slices.Sort(keys)
	const shown = 3
	if len(keys) <= shown {
		return strings.Join(keys, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(keys[:shown], ", "), len(keys)-shown)
}

// finished reports whether every version came to its end and nothing is left to do.
func (s *devSession) finished(ctx context.Context) (bool, error) {
	for _, known := range s.known {
		v, err := s.version(ctx, *known.version)
		if err != nil || v.Status == registry.Building || v.Status == registry.Ready {
			return false, err
		}
	}
	return s.app.dispatcher.Settled(ctx, s.org)
}

// finish shows what was made, and whether all went well.
func (s *devSession) finish(ctx context.Context) error {
	if err := s.tell(ctx); err != nil {
		return err
	}
	datasets, err := fetch[registry.Dataset](ctx, s.api, "/v1/datasets", nil, pageFlags{limit: 500})
	if err != nil {
		return err
	}
	for _, d := range datasets {
		var rows query.Rows
		if err := s.api.get(ctx, datasetPath(d.Name)+"/rows", url.Values{"limit": {"5"}}, &rows); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "\n%s: %s in %s\n", s.style(s.out).bold(d.Name), count(int(d.Rows), "row"), count(int(d.Partitions), "partition"))
		writeRows(s.out, s.style(s.out), rows)
	}
	failed, err := s.failures(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\nPages: `dagctl dev %s` serves them at %s\n", s.options.dir, s.api.target.URL)
	if len(failed) > 0 {
		fmt.Fprintf(s.err, "%s not everything completed: %s\n", s.style(s.err).bad("Error:"), strings.Join(failed, "; "))
		return errReported
	}
	return errDone
}

// failures names what did not come to a good end.
func (s *devSession) failures(ctx context.Context) ([]string, error) {
	dags, err := fetch[dispatcher.DAGStatus](ctx, s.api, "/v1/dags", nil, pageFlags{limit: 500})
	if err != nil {
		return nil, err
	}
	var failed []string
	for _, d := range dags {
		if d.Failed != nil {
			failed = append(failed, fmt.Sprintf("%s v%d is Failed", d.Name, d.Failed.Number))
		}
		if n := d.Tasks.Dead + d.Tasks.Retrying; n > 0 {
			failed = append(failed, fmt.Sprintf("%s of %s failed", count(int(n), "task"), d.Name))
		}
	}
	return failed, nil
}

package dev

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/dags"
	"github.com/dagctl/dagctl/cmd/dagctl/datasets"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

// pollInterval is how often a session looks for saved DAG files and for changes on the server.
const pollInterval = 500 * time.Millisecond

// deployedDAG is the last deploy of a DAG file.
type deployedDAG struct {
	hash    [sha256.Size]byte
	version *registry.Version // nil where the deploy failed
}

// session deploys what is saved and prints what happens.
type session struct {
	*cli.CLI
	api     *cli.Client
	app     *server.App
	org     uuid.UUID
	options options
	vars    map[string]string
	folders *dagFolders

	runtimes backends.RuntimeMap
	workers  platformWorkers
	own      *ownWorkers
	started  time.Time // when this dev server did; what was so before is not reported

	deployed map[string]deployedDAG       // by path
	seen     map[string][sha256.Size]byte // by path, at the previous look
	tasks    map[uuid.UUID]string         // the state that was last printed
	versions map[string]string            // by id, the state that was last printed; nil before the first look
	due      time.Time                    // with --once: what is due later is left to the next run; zero: not known yet
}

// run looks and deploys until ctx ends or, with --once, until the work is done.
func (s *session) run(ctx context.Context) error {
	s.tasks, s.seen = map[uuid.UUID]string{}, map[string][sha256.Size]byte{}
	for {
		if err := s.deployChanged(ctx); err != nil {
			return err
		}
		if err := s.report(ctx); err != nil {
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
		if err := cli.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// deployChanged deploys every DAG file that differs from what was deployed last.
func (s *session) deployChanged(ctx context.Context) error {
	files, err := dagfile.Find(s.options.dir, s.vars)
	if err != nil {
		if s.options.once || len(s.deployed) == 0 {
			return err
		}
		return nil // an editor may be between two writes; the next look shows
	}
	s.folders.add(files)

	for _, d := range files {
		last, deployedBefore := s.deployed[d.Path]
		// An editor may still be writing: a change counts once it looks the same twice.
		settled := s.seen[d.Path] == d.Hash
		s.seen[d.Path] = d.Hash
		if deployedBefore && (last.hash == d.Hash || !settled) {
			continue
		}

		if err := s.waitForProducers(ctx, d, files); err != nil {
			return err
		}
		version, err := s.deploy(ctx, d)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, cli.ErrReported) {
			fmt.Fprintf(s.Err, "%s: ", d.Path)
			s.PrintError(err)
		}
		if err != nil && s.options.once {
			return cli.ErrReported
		}
		s.deployed[d.Path] = deployedDAG{d.Hash, version}
	}
	return nil
}

// deploy deploys a DAG file, and replaces a build of it that is still running.
func (s *session) deploy(ctx context.Context, d *dagfile.File) (*registry.Version, error) {
	if len(d.Problems) > 0 {
		return nil, dagfile.Report(s.CLI, d.Problems)
	}
	for _, job := range d.Doc.Jobs {
		if _, mapped := s.runtimes[job.Runtime]; !mapped {
			return nil, fault.New(fault.Conflict,
				"job %s names the runtime %s, which no DAG file named when this dev server started",
				job.Name, job.Runtime).
				WithHint("restart the dev server: it then starts a worker for that runtime too")
		}
	}

	request, name, err := dags.NewRequest(ctx, s.CLI, s.api, d.Source)
	if err != nil {
		return nil, err
	}
	if v, err := s.rolledBack(ctx, d, name, request); err != nil || v != nil {
		return v, err
	}
	request.Supersede = true // the file that was saved last counts
	deployed, err := dags.SendDeploy(ctx, s.api, name, request)
	if err != nil {
		return nil, err
	}
	switch {
	case deployed.Created:
		dags.PrintPlan(s.CLI, s.Out, deployed)
	case s.options.once && deployed.Version.Status == registry.Active: // it deploys each file once
		if err := s.readSources(ctx, name, d); err != nil {
			return nil, err
		}
	}
	if err := s.reportWaiting(ctx, d); err != nil {
		return nil, err
	}
	s.app.Dispatcher.Wake()
	return &deployed.Version, nil
}

// readSources has the sources of a DAG that are polled read now: with --once nobody waits for their next time. Those
// that are paused stay as they are.
func (s *session) readSources(ctx context.Context, name string, d *dagfile.File) error {
	for _, job := range d.Doc.Jobs {
		if job.Source == nil || job.Source.Kind != "poll" {
			continue
		}
		err := s.api.Post(ctx, cli.SourcePath(name, job.Name)+"/read", nil, nil)
		if err != nil && !fault.Is(err, fault.Conflict) {
			return err
		}
	}
	return nil
}

// waitForProducers waits until the DAGs whose datasets d reads serve them, because inputs bind to what is served.
func (s *session) waitForProducers(ctx context.Context, d *dagfile.File, files []*dagfile.File) error {
	for _, producer := range files {
		last := s.deployed[producer.Path]
		if producer == d || last.version == nil || !reads(d, producer) {
			continue
		}

		for {
			v, err := s.version(ctx, *last.version)
			if err != nil {
				return err
			}
			if !inProgress(v) {
				break
			}
			if err := s.report(ctx); err != nil {
				return err
			}
			if err := cli.Sleep(ctx, pollInterval); err != nil {
				return err
			}
		}
	}
	return nil
}

// reads reports whether a DAG reads a dataset that the producer publishes.
func reads(d, producer *dagfile.File) bool {
	if producer.Doc == nil {
		return false
	}
	wanted := d.Reads()
	return slices.ContainsFunc(producer.Doc.Publish, func(p dag.Publication) bool {
		return slices.Contains(wanted, p.Name)
	})
}

// inProgress reports whether a version is still being built or about to be cut over to.
func inProgress(v registry.Version) bool {
	return v.HeldBecause == "" && (v.Status == registry.Building || v.Status == registry.Ready)
}

func (s *session) version(ctx context.Context, v registry.Version) (registry.Version, error) {
	err := s.api.Get(ctx, cli.VersionPath(v.DAG, v.Number), nil, &v)
	return v, err
}

// report prints what has happened since the previous call: a line for each task that failed, each job whose tasks
// completed, and each version whose state changed.
func (s *session) report(ctx context.Context) error {
	tasks, err := cli.Fetch[views.Task](ctx, s.api, "/v1/tasks", nil, cli.Page{Limit: 500})
	if err != nil {
		return err
	}

	style := s.Style(s.Out)
	done := map[string][]string{} // partitions by job
	for _, t := range slices.Backward(tasks) {
		state := t.Status
		if t.Waiting == "dead" || t.Waiting == "backoff" {
			state = fmt.Sprint(t.Waiting, t.Failures)
		}
		if s.tasks[t.ID] == state {
			continue
		}
		s.tasks[t.ID] = state
		if last := cmp.Or(t.CompletedAt, t.StartedAt); last != nil && last.Before(s.started) {
			continue
		}

		what := t.DAG + "/" + t.Job
		if t.Kind == "check" {
			what += " checks"
		}
		switch {
		case t.Status == "Completed":
			done[what] = append(done[what], t.Partition)
		case t.Waiting == "dead":
			fmt.Fprintf(s.Out, "%s %s %s: %s\n", style.Bad("dead"), what, t.Partition, cli.OneLine(t.Error, 1000))
			fmt.Fprintf(s.Out, "  %s\n", againBy(t))
		case t.Waiting == "backoff" && t.Error == "": // it was handed back
			fmt.Fprintf(s.Out, "%s %s %s: %s\n", style.Busy("waits"), what, t.Partition, cli.OneLine(t.State, 300))
		case t.Waiting == "backoff":
			text := cli.OneLine(t.Error, 300)
			fmt.Fprintf(s.Out, "%s %s %s, will retry: %s\n", style.Busy("failed"), what, t.Partition, text)
		}
	}

	for _, what := range slices.Sorted(maps.Keys(done)) {
		fmt.Fprintln(s.Out, strings.TrimSpace(fmt.Sprintf("%s %s %s", style.Good("done"), what, few(done[what]))))
	}
	return s.reportVersions(ctx)
}

// againBy names the command that does again what a dead task could not. The next time of a source begins it anew by
// another task, which ends this one.
func againBy(t views.Task) string {
	if strings.HasPrefix(t.DedupeKey, sources.FiredPrefix) {
		return fmt.Sprintf("its next time begins it anew; `dagctl run %s/%s` does at once", t.DAG, t.Job)
	}
	return fmt.Sprintf("`dagctl tasks retry %s` retries it", t.ID)
}

func (s *session) reportVersions(ctx context.Context) error {
	dags, err := cli.Fetch[views.DAGStatus](ctx, s.api, "/v1/dags", nil, cli.Page{Limit: 500})
	if err != nil {
		return err
	}
	first := s.versions == nil
	if first {
		s.versions = map[string]string{}
	}

	for _, d := range dags {
		for _, v := range []*registry.Version{d.Failed, d.Building, d.Active} {
			if v == nil || s.versions[v.ID.String()] == string(v.Status)+v.HeldBecause {
				continue
			}
			s.versions[v.ID.String()] = string(v.Status) + v.HeldBecause
			if first && !s.concerns(*v) {
				continue
			}

			fmt.Fprintf(s.Out, "%s v%d is %s", v.DAG, v.Number, s.Style(s.Out).Status(string(v.Status)))
			if v.Error != "" {
				fmt.Fprintf(s.Out, ": %s", cli.OneLine(v.Error, 1000))
			}
			if v.HeldBecause != "" {
				fmt.Fprintf(s.Out, ", and waits: %s; `dagctl promote %s` lets it serve", v.HeldBecause, v.DAG)
			}
			fmt.Fprintln(s.Out)
		}
	}
	return nil
}

// concerns reports whether the files that are deployed make it worth to say what a version was when the session began:
// for a DAG that has one, what serves and what is being built, and what has failed where this session deployed it.
func (s *session) concerns(v registry.Version) bool {
	if v.Status != registry.Failed {
		return s.folders.roots("", v.DAG) != nil
	}
	for _, last := range s.deployed {
		if last.version != nil && last.version.ID == v.ID {
			return true
		}
	}
	return false
}

// few names the first few partitions, and counts the others.
func few(keys []string) string {
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == dag.WholeKey })
	slices.Sort(keys)
	const shown = 3
	if len(keys) <= shown {
		return strings.Join(keys, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(keys[:shown], ", "), len(keys)-shown)
}

// finished reports whether no version is in progress and nothing is left to do of what was due when the last one began
// to serve, and of what follows from it. What comes due later would go on for ever.
func (s *session) finished(ctx context.Context) (bool, error) {
	for _, last := range s.deployed {
		v, err := s.version(ctx, *last.version)
		if err != nil || inProgress(v) {
			return false, err
		}
	}
	if s.due.IsZero() {
		s.due = clock.Now()
		s.app.Dispatcher.Sources.FireUntil(s.due)
	}
	return s.app.Dispatcher.Views.SettledBy(ctx, s.org, s.due)
}

// finish prints the published datasets. It ends the dev server, with an error if something failed.
func (s *session) finish(ctx context.Context) error {
	if err := s.report(ctx); err != nil {
		return err
	}
	published, err := cli.Fetch[registry.Dataset](ctx, s.api, "/v1/datasets", nil, cli.Page{Limit: 500})
	if err != nil {
		return err
	}
	for _, d := range published {
		var rows query.Rows
		if err := s.api.Get(ctx, cli.DatasetPath(d.Name)+"/rows", url.Values{"limit": {"5"}}, &rows); err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "\n%s: %s in %s\n", s.Style(s.Out).Bold(d.Name),
			plural.Of(int(d.Rows), "row"), plural.Of(int(d.Partitions), "partition"))
		datasets.WriteRows(s.Out, s.Style(s.Out), rows)
	}

	failed, err := s.failures(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "\nPages: `dagctl dev %s` serves them at %s\n", cli.Argument(s.options.dir), s.api.Target.URL)
	if len(failed) > 0 {
		list := strings.Join(failed, "; ")
		fmt.Fprintf(s.Err, "%s not everything completed: %s\n", s.Style(s.Err).Bad("Error:"), list)
		return cli.ErrReported
	}
	return errDone
}

// failures lists the failed versions, and the DAGs with failed tasks.
func (s *session) failures(ctx context.Context) ([]string, error) {
	dags, err := cli.Fetch[views.DAGStatus](ctx, s.api, "/v1/dags", nil, cli.Page{Limit: 500})
	if err != nil {
		return nil, err
	}
	var failed []string
	for _, d := range dags {
		if d.Failed != nil {
			failed = append(failed, fmt.Sprintf("%s v%d is Failed", d.Name, d.Failed.Number))
		}
		if n := d.Tasks.Dead + d.Tasks.Retrying; n > 0 {
			failed = append(failed, fmt.Sprintf("%s of %s failed", plural.Of(int(n), "task"), d.Name))
		}
	}
	return failed, nil
}

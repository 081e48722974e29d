// Command bench measures dagctl against a bare queue and against the PostgreSQL that both run on, in one run, because
// absolute times mean little on shared machines.
//
// Vocabulary: a figure is one row of the table of goals (docs/performance.md). A run of a figure creates databases of
// its own beside the one that the DSN names, and prints one JSON line. baseline is what River, a bare queue, does with
// the same number of jobs, or, for figures about dagctl alone, what dagctl does without the load in question; ratio is
// value / baseline. detail has the floor of this PostgreSQL and the cost of the run. Tasks arise as in production: a
// source publishes partitions, their events are routed, and tasks are claimed and completed under their fence.
//
//	go run ./bench -figure throughput -tasks 100000 -dsn postgres://...
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/engine/inside"
)

// figure is one thing to measure.
type figure struct {
	name string
	unit string
	run  func(ctx context.Context, b *bench) (result, error)
}

// figures lists the figures in the order of the table.
var figures = []figure{
	{"throughput", "tasks/s", throughputFigure},
	{"hop", "ms at p50", hopFigure},
	{"fan-out, fan-in", "s at p50", fanFigure},
	{"flat cost", "tasks/s", flatFigure},
	{"held snapshot", "tasks/s", heldFigure},
	{"fairness", "ms at p50", fairnessFigure},
	{"memory", "MiB", memoryFigure},
	{"limits", "tasks/s", limitsFigure},
	{"retention", "tasks/s", retentionFigure},
	{"due at once", "ms at most", dueFigure},
	{"remote workers, poll", "tasks/s", pollFigure},
	{"remote workers, SQS", "tasks/s", queueFigure},
	{"remote workers, Lambda", "tasks/s", lambdaFigure},
	{"deploys: swap", "ms at p50", swapFigure},
	{"deploys: gate", "ms at most", gateFigure},
	{"deploys: history", "ms at p50", historyFigure},
	{"deploys: edit", "ms at p50", editFigure},
	{"deploys: plan", "ms at p50", planFigure},
}

// options are the flags of a run.
type options struct {
	dsn        string
	figure     string
	rounds     int
	tasks      int
	consumers  int
	publish    bool
	edges      int
	fan        int
	reps       int
	history    int
	hold       time.Duration
	backlog    int
	patience   time.Duration
	block      int
	remote     int
	datasets   int
	jobs       int
	partitions int
	versions   int
	swaps      int
	workers    int
	conns      int
	storage    string
	statements bool
	dispatch   bool
	work       workOptions
	timeout    time.Duration
	cpuProfile string
	memProfile string
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	names := make([]string, len(figures))
	for i, f := range figures {
		names[i] = f.name
	}

	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.dsn, "dsn", os.Getenv("DAGCTL_BENCH_DATABASE_URL"),
		"PostgreSQL `URL` of a superuser; default: DAGCTL_BENCH_DATABASE_URL, else a server of its own, with durable "+
			"commits")

	flags.StringVar(&o.figure, "figure", "", "figures to measure, all by default; a prefix of a name is "+
		"enough; + joins several: "+strings.Join(names, " + "))
	flags.IntVar(&o.rounds, "rounds", 1, "how often")
	flags.IntVar(&o.tasks, "tasks", 100_000, "tasks of the figures about throughput")
	flags.IntVar(&o.consumers, "consumers", 9, "throughput: tasks that each event creates; one more publishes the "+
		"event")
	flags.BoolVar(&o.publish, "publish", false, "let every one of these tasks publish a partition, not only "+
		"the sources")
	flags.IntVar(&o.edges, "edges", 400, "hop: length of the chain")
	flags.IntVar(&o.fan, "fan", 1000, "fan-out, fan-in: width")
	flags.IntVar(&o.reps, "reps", 5, "hop, fan, remote workers: repetitions, after an unmeasured one")
	flags.IntVar(&o.history, "history", 10_000_000,
		"flat cost, retention: finished tasks beforehand; of the first, a tenth as many events, a hundredth as "+
			"many datasets")
	flags.DurationVar(&o.hold, "hold", 10*time.Minute,
		"held snapshot: how long another session holds its transaction open")
	flags.IntVar(&o.backlog, "backlog", 1_000_000, "fairness, memory, due at once: queued tasks")
	flags.DurationVar(&o.patience, "patience", time.Minute,
		"fairness: how long to wait for a task; memory: how long to watch the process")
	flags.IntVar(&o.remote, "remote", 1000, "remote workers: tasks of each repetition")
	flags.IntVar(&o.block, "block", 1, "remote workers, SQS: tasks that a message may name, at most 10")
	flags.IntVar(&o.datasets, "datasets", 500, "deploys: datasets of the DAG that is swapped and edited")
	flags.IntVar(&o.jobs, "jobs", 1000, "deploys: jobs of the DAG that is planned")
	flags.IntVar(&o.partitions, "partitions", 100_000, "deploys: partitions that the gate looks at")
	flags.IntVar(&o.versions, "versions", 36_500, "deploys: old versions of the DAG with a history")
	flags.IntVar(&o.swaps, "swaps", 20, "deploys: how often each thing is measured")
	flags.IntVar(&o.workers, "workers", 100, "tasks that run at once in the process, or in the worker")
	flags.IntVar(&o.conns, "conns", 20, "connections of the pool")
	flags.StringVar(&o.storage, "storage", "", "`folder` of the published files; default: one in memory if there "+
		"is one, so that the disk's sync is not measured")
	flags.BoolVar(&o.statements, "statements", false, "print the cost of the statements of each run to stderr")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Minute, "bound on each figure")
	flags.BoolVar(&o.dispatch, "dispatch", false, "only run a dispatcher on -dsn until stdin ends: the process that "+
		"the memory figure watches")
	flags.StringVar(&o.work.URL, "work", "", "only run a worker for the server at this `URL` until stdin ends: the "+
		"process that the remote figures look at")
	flags.StringVar(&o.work.Queue, "queue", "", "of that worker: `URL` of its queue")
	flags.StringVar(&o.work.Endpoint, "endpoint", "", "of that worker: `URL` of the SQS server")
	flags.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile to this `file`")
	flags.StringVar(&o.memProfile, "memprofile", "", "write a heap profile to this `file` at the end")
	if err := flags.Parse(args); err != nil {
		return o, err
	}

	return o, o.check()
}

// check refuses sizes that nothing can be measured with.
func (o options) check() error {
	least := slices.Min([]int{o.tasks, o.consumers, o.edges, o.fan, o.reps, o.workers, o.rounds, o.remote, o.backlog,
		o.datasets, o.jobs, o.partitions - 1, o.versions, o.swaps})
	if least < 1 || o.conns < 4 || o.history < 100 {
		return errors.New("numbers must be positive, connections at least 4, and the history at least 100")
	}
	return nil
}

// chosen returns the figures that -figure names.
func chosen(names string) ([]figure, error) {
	if names == "" {
		return figures, nil
	}

	var found []figure
	for name := range strings.SplitSeq(names, "+") {
		before := len(found)
		for _, f := range figures {
			if strings.HasPrefix(f.name, strings.TrimSpace(name)) {
				found = append(found, f)
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("there is no figure %q", name)
		}
	}
	return found, nil
}

func main() {
	inside.Main()
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) (err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	wanted, err := chosen(o.figure)
	if err != nil {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	endProfiles, err := profile(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endProfiles()) }()

	if o.work.URL != "" {
		return work(ctx, o, os.Stdin, stdout, stderr)
	}
	b := &bench{options: o, stderr: stderr, log: slog.New(slog.NewTextHandler(stderr,
		&slog.HandlerOptions{Level: slog.LevelWarn}))}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	if o.dispatch {
		return b.dispatchOnly(ctx)
	}
	for range o.rounds {
		for _, f := range wanted {
			if err := b.measure(ctx, f, stdout); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}

// result is the result of a figure.
type result struct {
	value    float64
	baseline float64
	params   map[string]any
	detail   map[string]any
}

// measure runs a figure and prints its line.
func (b *bench) measure(ctx context.Context, f figure, stdout io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, fmt.Errorf("not done after %s", b.timeout))
	defer cancel()
	r, err := f.run(ctx, b)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return errors.Join(cause, err)
		}
		return err
	}

	r.params["cores"], r.params["postgres"], r.params["storage"] = runtime.NumCPU(), b.version, b.storageKind
	line := struct {
		Figure   string         `json:"figure"`
		Value    float64        `json:"value"`
		Unit     string         `json:"unit"`
		Baseline float64        `json:"baseline"`
		Ratio    float64        `json:"ratio"`
		Params   map[string]any `json:"params"`
		Detail   map[string]any `json:"detail,omitempty"`
	}{f.name, round(r.value), f.unit, round(r.baseline), 0, r.params, r.detail}

	if r.baseline != 0 {
		line.Ratio = round(r.value / r.baseline)
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(line)
}

// profile starts the requested profiles and returns a function that ends them.
func profile(o options) (end func() error, err error) {
	var cpu *os.File
	if o.cpuProfile != "" {
		if cpu, err = os.Create(o.cpuProfile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, errors.Join(err, cpu.Close())
		}
	}

	return func() error {
		var failed []error
		if cpu != nil {
			pprof.StopCPUProfile()
			failed = append(failed, cpu.Close())
		}
		if o.memProfile != "" {
			heap, err := os.Create(o.memProfile)
			if err != nil {
				return errors.Join(append(failed, err)...)
			}
			runtime.GC()
			failed = append(failed, pprof.WriteHeapProfile(heap), heap.Close())
		}
		return errors.Join(failed...)
	}, nil
}

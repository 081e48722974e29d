// Command dagctl-lambda is the bootstrap of an AWS Lambda function (runtime provided.al2023) that runs the platform's
// operators. The server invokes the function with claimed tasks. Functions of your own need a program of your own, see
// worker/function; docs/aws.md describes how to set up both.
//
// These variables configure it:
//
//   - DAGCTL_OPERATORS: names of the operators to run, separated by commas; empty means all
//   - DAGCTL_ALLOW_ADDRESSES: private prefixes (CIDR) that operators of HTTP may reach, separated by commas
//   - DAGCTL_MEMORY_MB: memory of each DuckDB session, by default half of the function's memory
//   - DAGCTL_UDF: on to run users' code of operator udf, and nothing else
//   - DAGCTL_UDF_PATH: folders of interpreters for such code, separated by colons, by default /opt, where layers are
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
	"github.com/dagctl/dagctl/worker/function"
	"github.com/dagctl/dagctl/worker/protocol"
)

func main() {
	sandbox.Stage()
	inside.Main()
	w, err := newWorker(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "dagctl-lambda:", err)
		os.Exit(1)
	}
	handle := function.Handler(w)
	if runsOwnCode(os.Getenv) {
		handle = inCleanFolder(os.TempDir(), handle)
	}
	lambda.Start(handle)
}

// newWorker returns a worker with the operators that the environment names.
func newWorker(getenv func(string) string) (*worker.Worker, error) {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	w, err := worker.New(worker.Config{PoolSize: 1, ScratchDir: os.TempDir(), Log: log})
	if err != nil {
		return nil, err
	}
	memory, err := memoryMB(getenv)
	if err != nil {
		return nil, err
	}

	config := engine.Config{}
	if runsOwnCode(getenv) {
		config.Idle = -1 // nothing outlives an invocation: its files do not
	}
	engines, err := engine.New(config)
	if err != nil {
		return nil, err
	}
	options := operators.Options{Engines: engines, MemoryLimit: memory << 20,
		AllowedAddresses: list(getenv("DAGCTL_ALLOW_ADDRESSES"), ",")}
	only := list(getenv("DAGCTL_OPERATORS"), ",")
	if runsOwnCode(getenv) {
		if err := confineOwnCode(getenv); err != nil {
			return nil, err
		}
		if len(only) > 0 && !slices.Equal(only, []string{dag.OwnCode}) {
			return nil, errors.New("with DAGCTL_UDF a function runs operator udf alone: " +
				"leave DAGCTL_OPERATORS empty, and create another function for the other operators")
		}
		only = []string{dag.OwnCode}
		programs := list(cmp.Or(getenv("DAGCTL_UDF_PATH"), "/opt"), ":")
		options.UDF = operators.UDFOptions{Alone: true, Programs: programs, MemoryMB: memory}
	}

	registry, err := standard.New(options)
	if err != nil {
		return nil, err
	}
	return w, builtin.Register(w, builtin.Options{Registry: registry, Only: only, ScratchDir: os.TempDir()})
}

// runsOwnCode reports whether the function runs users' code.
func runsOwnCode(getenv func(string) string) bool { return getenv("DAGCTL_UDF") == "on" }

// confineOwnCode hides this process from the code that it is going to run, and fails where that code cannot be
// confined. This process has what the code must not get: the credentials of the function's role, and the capability of
// the task.
func confineOwnCode(getenv func(string) string) error {
	if getenv("AWS_LAMBDA_FUNCTION_NAME") == "" {
		return errors.New("DAGCTL_UDF is for Lambda functions, whose machine does nothing else; " +
			"elsewhere `dagctl worker` runs operator udf")
	}
	if err := sandbox.Hide(); err != nil {
		return err
	}
	return sandbox.AvailableAlone()
}

// handler works on one claimed task.
type handler = func(context.Context, protocol.Claim) error

// inCleanFolder removes the files of the previous task, which may have been another org's, before each task: Lambda
// keeps the folder of temporary files from one invocation to the next.
func inCleanFolder(dir string, handle handler) handler {
	return func(ctx context.Context, claim protocol.Claim) error {
		left, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range left {
			if err := removeAll(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("clean up after the previous task: %w", err)
			}
		}
		return handle(ctx, claim)
	}
}

// removeAll removes a path, even if it has folders that nobody may write to.
func removeAll(path string) error {
	if os.RemoveAll(path) == nil {
		return nil
	}
	_ = filepath.WalkDir(path, func(path string, entry os.DirEntry, _ error) error {
		if entry != nil && entry.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}

// memoryMB returns the memory of each DuckDB session.
func memoryMB(getenv func(string) string) (int64, error) {
	if text := getenv("DAGCTL_MEMORY_MB"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 64 {
			return 0, fmt.Errorf("DAGCTL_MEMORY_MB %q is not a number of at least 64", text)
		}
		return n, nil
	}
	n, err := strconv.ParseInt(getenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), 10, 64)
	if err != nil {
		return 512, nil
	}
	return max(n/2, 64), nil
}

// list returns the items of a text, without blanks and empty ones.
func list(text, by string) (items []string) {
	for item := range strings.SplitSeq(text, by) {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// Command dagctl-lambda is the bootstrap of an AWS Lambda function (runtime provided.al2023) that runs the platform's
// operators: the server invokes it with claimed tasks. Functions of one's own need a program of one's own, see
// worker/function; docs/aws.md says how to set either up.
//
// It reads DAGCTL_OPERATORS, names of the operators to run divided by commas, all if empty; DAGCTL_ALLOW_ADDRESSES,
// prefixes (CIDR) that http_source may reach though they are private; DAGCTL_MEMORY_MB, of each DuckDB session, by
// default half of the function's memory; DAGCTL_UDF, on to run code of operator udf, and nothing else; and DAGCTL_UDF_PATH,
// folders of interpreters for such code divided by colons, by default /opt, where layers are.
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
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
	"github.com/dagctl/dagctl/worker/function"
	"github.com/dagctl/dagctl/worker/protocol"
)

func main() {
	sandbox.Stage()
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

// newWorker has the operators that the environment names.
func newWorker(getenv func(string) string) (*worker.Worker, error) {
	w, err := worker.New(worker.Config{PoolSize: 1, ScratchDir: os.TempDir(), Log: slog.New(slog.NewJSONHandler(os.Stderr, nil))})
	if err != nil {
		return nil, err
	}
	memory, err := memoryMB(getenv)
	if err != nil {
		return nil, err
	}
	options := operators.Options{MemoryLimit: memory << 20, AllowedAddresses: list(getenv("DAGCTL_ALLOW_ADDRESSES"), ",")}
	only := list(getenv("DAGCTL_OPERATORS"), ",")
	if runsOwnCode(getenv) {
		if err := confineOwnCode(getenv); err != nil {
			return nil, err
		}
		if len(only) > 0 && !slices.Equal(only, []string{dag.OwnCode}) {
			return nil, errors.New("with DAGCTL_UDF a function runs operator udf alone: leave DAGCTL_OPERATORS empty, and have another function for the others")
		}
		only = []string{dag.OwnCode}
		options.UDF = operators.UDFOptions{Alone: true, Programs: list(cmp.Or(getenv("DAGCTL_UDF_PATH"), "/opt"), ":"), MemoryMB: memory}
	}
	registry, err := operators.Builtin(options)
	if err != nil {
		return nil, err
	}
	return w, builtin.Register(w, builtin.Options{Registry: registry, Only: only, ScratchDir: os.TempDir()})
}

// runsOwnCode reports whether the function is for users' own code.
func runsOwnCode(getenv func(string) string) bool { return getenv("DAGCTL_UDF") == "on" }

// confineOwnCode hides this process from what it is going to run, and refuses where that cannot be confined. What the code
// must not have is here: the credentials of the function's role, and the capability of the task.
func confineOwnCode(getenv func(string) string) error {
	if getenv("AWS_LAMBDA_FUNCTION_NAME") == "" {
		return errors.New("DAGCTL_UDF is for Lambda functions, whose machine does nothing else; elsewhere `dagctl worker` runs operator udf")
	}
	if err := sandbox.Hide(); err != nil {
		return err
	}
	return sandbox.AvailableAlone()
}

// inCleanFolder runs each task with nothing left of the one before, which may have been another org's: Lambda keeps the
// folder of temporary files from one invocation to the next.
func inCleanFolder(dir string, handle func(context.Context, protocol.Claim) error) func(context.Context, protocol.Claim) error {
	return func(ctx context.Context, claim protocol.Claim) error {
		left, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range left {
			if err := removeAll(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("clean up after the task before: %w", err)
			}
		}
		return handle(ctx, claim)
	}
}

// removeAll removes folders too whose rights were taken away.
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

// memoryMB is what each DuckDB session may take.
func memoryMB(getenv func(string) string) (int64, error) {
	if text := getenv("DAGCTL_MEMORY_MB"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 64 {
			return 0, fmt.Errorf("DAGCTL_MEMORY_MB %q is not a number of 64 or more", text)
		}
		return n, nil
	}
	n, err := strconv.ParseInt(getenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), 10, 64)
	if err != nil {
		return 512, nil
	}
	return max(n/2, 64), nil
}

// list divides a text.
func list(text, by string) (items []string) {
	for item := range strings.SplitSeq(text, by) {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

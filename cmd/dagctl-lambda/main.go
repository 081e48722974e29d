// Command dagctl-lambda is the bootstrap of an AWS Lambda function (runtime provided.al2023) that runs the platform's
// operators: the server invokes it with claimed tasks. Functions of one's own need a program of one's own, see
// worker/function; docs/aws.md says how to set either up.
//
// It reads DAGCTL_OPERATORS, names of the operators to run divided by commas, all if empty; DAGCTL_ALLOW_ADDRESSES,
// prefixes (CIDR) that http_source may reach though they are private; and DAGCTL_MEMORY_MB, of each DuckDB session, by
// default half of the function's memory.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
	"github.com/dagctl/dagctl/worker/function"
)

func main() {
	w, err := newWorker(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "dagctl-lambda:", err)
		os.Exit(1)
	}
	lambda.Start(function.Handler(w))
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
	registry, err := operators.Builtin(operators.Options{MemoryLimit: memory << 20, AllowedAddresses: list(getenv("DAGCTL_ALLOW_ADDRESSES"))})
	if err != nil {
		return nil, err
	}
	return w, builtin.Register(w, builtin.Options{Registry: registry, Only: list(getenv("DAGCTL_OPERATORS")), ScratchDir: os.TempDir()})
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

// list divides a text by commas.
func list(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

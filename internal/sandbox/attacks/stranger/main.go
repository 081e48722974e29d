//go:build linux && (amd64 || arm64)

// Command stranger is a program of a job that does not want to do the job's work: it tries what it should not reach, or
// takes more than it should get. It owns no tables.
package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/internal/sandbox/attacks"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(65)
	}
}

// run exhausts what the arguments name, or else tries all attacks on a target, which it was given as JSON, and writes
// what came of them into the job's output, as rows of name and answer.
func run(args []string) (err error) {
	var task struct {
		Outputs []struct{ Dir string }
		Scratch string
	}
	if err := json.NewDecoder(os.Stdin).Decode(&task); err != nil {
		return err
	}
	if len(args) == 2 && args[0] == "exhaust" {
		return attacks.Exhaust(args[1])
	}
	var target attacks.Target
	if err := json.Unmarshal([]byte(args[0]), &target); err != nil {
		return err
	}

	target.Work = task.Scratch
	if target.Input, err = os.Executable(); err != nil { // which it may read and run, and no more
		return err
	}
	answers := attacks.Try(attacks.List(target))
	out, err := os.Create(filepath.Join(task.Outputs[0].Dir, "answers.csv"))
	if err != nil {
		return err
	}
	rows := csv.NewWriter(out)
	_ = rows.Write([]string{"name", "answer"})
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		_ = rows.Write([]string{name, answers[name]})
	}
	rows.Flush()
	return rows.Error()
}

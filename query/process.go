package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/child"
	"github.com/dagctl/dagctl/internal/fault"
)

// process is a child as its parent sees it. The parent trusts it as far as the caller: the child names relations, which
// the parent resolves with the caller's rights, and returns rows.
type process struct {
	*child.Process
	task task
}

// start starts a child in a folder. It may read that and the other folders, and is killed when ctx ends. DuckDB
// enforces its own memory limit; that of the process is higher and bounds what DuckDB does not count.
func start(ctx context.Context, dir string, folders []string, t task) (*process, error) {
	p, err := child.Start(ctx, child.Config{Kind: childArg, Dir: dir, Read: append([]string{dir}, folders...),
		Memory: t.Memory + t.Memory/2 + 256<<20, CPU: t.CPU + 5*time.Second, Answers: 2*t.Bytes + 16<<20})
	if err != nil {
		return nil, fmt.Errorf("start query: %w", err)
	}
	return &process{p, t}, nil
}

// ask sends one value and reads the next.
func (p *process) ask(ctx context.Context, question, answer any) error {
	return p.ended(ctx, p.Ask(question, answer))
}

// answer sends the relations and reads the outcome. The rows go to a stream if there is one.
func (p *process) answer(ctx context.Context, relations []relation, rows io.Writer) (out outcome, err error) {
	err = p.Tell(relations)
	if err == nil && rows != nil {
		err = p.Receive(rows)
	}
	if err == nil {
		err = p.Hear(&out)
	}
	if err = p.ended(ctx, err); err == nil {
		err = out.Failure.err()
	}
	return out, err
}

// ended returns why the child ended, if talking with it failed.
func (p *process) ended(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	ended := p.Stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return p.death(ended, err)
}

// death returns why a child ended without an answer.
func (p *process) death(ended, err error) error {
	switch signal, died := child.Died(ended); {
	case died && signal == syscall.SIGXCPU:
		return fault.New(fault.TooLarge, "the query took more processor time than a query may")
	case died:
		// Whatever the cause, only this query is affected: the next one has a process of its own.
		return outOfMemory(p.task.Memory).WithHint(
			"or it is too complex for DuckDB, for example nested too deeply: simplify it")
	case ended != nil:
		return fmt.Errorf("the process of the query ended: %w", ended)
	}
	return fmt.Errorf("talk with the process of the query: %w", errors.Join(err, ended))
}

package dev

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/dags"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// rolledBack returns the version of a DAG file from which somebody rolled back since the file was saved, or that was
// being built then, nil if nobody did. To deploy it would undo that, although the file has not changed: a session that
// starts anew finds it as it was.
func (s *session) rolledBack(
	ctx context.Context, d *dagfile.File, name string, request registry.DeployRequest,
) (*registry.Version, error) {
	from, err := s.lastRollback(ctx, name)
	if err != nil || from == nil {
		return nil, err
	}
	saved, err := d.SavedAt()
	if err != nil || saved.After(from.at) {
		return nil, err
	}
	plan, err := dags.RequestPlan(ctx, s.api, name, request)
	if err != nil || plan.Status == "" {
		return nil, err
	}

	v, err := s.version(ctx, registry.Version{DAG: name, Number: plan.Version})
	if err != nil || v.Number != from.number && v.HeldBecause == "" {
		return nil, err // it is none that the rollback is about
	}
	fmt.Fprintf(s.Out, "%s v%d was rolled back: dev deploys the file again once it changes; "+
		"`dagctl deploy %s` does at once\n", name, v.Number, s.options.dir)
	return &v, nil
}

// rollback is the last cutover of a DAG, where that was a rollback.
type rollback struct {
	number int // of the version that served before
	at     time.Time
}

// lastRollback returns nil where the last cutover of a DAG was none, and where there is no such DAG.
func (s *session) lastRollback(ctx context.Context, name string) (*rollback, error) {
	active, err := s.activeVersion(ctx, name)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil || active == nil || len(active.Activations) == 0 {
		return nil, err
	}

	last := active.Activations[0]
	if last.Reason != deploy.ByRollback || last.From == nil {
		return nil, nil
	}
	return &rollback{*last.From, last.At}, nil
}

// activeVersion returns the version of a DAG that serves, nil where none does. It is nearly always among the newest.
func (s *session) activeVersion(ctx context.Context, name string) (*deploy.PastVersion, error) {
	for _, newest := range []int{20, 500} {
		versions, err := cli.Fetch[deploy.PastVersion](ctx, s.api, cli.DAGPath(name)+"/versions", nil,
			cli.Page{Limit: newest})
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(versions, func(v deploy.PastVersion) bool { return v.Status == registry.Active })
		if i >= 0 {
			return &versions[i], nil
		}
		if len(versions) < newest {
			break
		}
	}
	return nil, nil
}

// Package intake takes in what other systems tell about their jobs and datasets, as OpenLineage events, so that lineage
// goes on beyond dagctl: to the report that reads a dataset, and from the job that feeds one.
//
// Vocabulary: what is outside is a job or dataset that dagctl does not have. It owns no tables.
package intake

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/registry"
)

// Intake takes in events.
type Intake struct {
	Requests *pgxpool.Pool
	Registry *registry.Registry
	Lineage  *lineage.Lineage
	// Namespaces has those of dagctl's own datasets, by org, where they are not the default.
	Namespaces map[string]string
}

// Take stores what an event says. Events come at least once and in any order, which changes nothing.
func (t *Intake) Take(ctx context.Context, caller authz.Caller, body []byte) error {
	event, err := openlineage.Receive(body, clock.Now())
	if err != nil || event == nil {
		return err
	}
	if t.own(caller, event.Job.Namespace) {
		return fault.New(fault.Invalid, "the namespace %q is that of this server's own jobs", event.Job.Namespace).
			WithHint("give the jobs of the other system a namespace of their own")
	}

	err = pg.InOrgTx(ctx, t.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		told := lineage.Told{Job: event.Job, Run: event.Run, At: event.At, Done: event.Done()}
		known := map[lineage.Outside]lineage.End{}
		if told.Inputs, err = t.ends(ctx, tx, caller, known, event.Inputs); err != nil {
			return err
		}
		if told.Outputs, err = t.ends(ctx, tx, caller, known, event.Outputs); err != nil {
			return err
		}
		if err = lineage.Tell(ctx, tx, caller.OrgID, told, clock.Now()); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "lineage.take", event.Job.Namespace+"/"+event.Job.Name,
			map[string]any{"run": event.Run, "at": event.At, "inputs": len(told.Inputs), "outputs": len(told.Outputs)})
	})
	if err != nil {
		return fmt.Errorf("take in an event of job %s: %w", event.Job.Name, err)
	}
	return nil
}

// own reports whether a namespace is that of the org's own datasets and jobs.
func (t *Intake) own(caller authz.Caller, namespace string) bool {
	return namespace == openlineage.Namespace(caller.OrgSlug) || namespace == t.Namespaces[caller.OrgSlug]
}

// ends resolves the datasets of an event. Those in the org's own namespace have to be datasets that the caller may see.
func (t *Intake) ends(ctx context.Context, tx pgx.Tx, caller authz.Caller, known map[lineage.Outside]lineage.End,
	datasets []openlineage.ReceivedDataset) (ends []lineage.End, err error) {
	for _, d := range datasets {
		end, err := t.end(ctx, tx, caller, known, d.Outside)
		if err != nil {
			return nil, err
		}
		for _, o := range d.Origins {
			from, err := t.end(ctx, tx, caller, known, o.From)
			if err != nil {
				return nil, err
			}
			end.Columns = append(end.Columns, lineage.ColumnOutside{Column: o.Column, From: from.Node(), Field: o.Field,
				Transform: o.Transform})
		}
		ends = append(ends, end)
	}
	return ends, nil
}

func (t *Intake) end(ctx context.Context, tx pgx.Tx, caller authz.Caller, known map[lineage.Outside]lineage.End,
	name lineage.Outside) (lineage.End, error) {
	if end, ok := known[name]; ok {
		return end, nil
	}

	end := lineage.End{Outside: name}
	if t.own(caller, name.Namespace) {
		d, err := t.Registry.FindDataset(ctx, tx, caller, name.Name)
		if fault.Is(err, fault.NotFound) {
			return end, fault.New(fault.Invalid, "there is no dataset %q in the namespace %q", name.Name,
				name.Namespace).WithHint("`dagctl datasets list` has the names")
		}
		if err != nil {
			return end, err
		}

		end = lineage.End{Dataset: d.ID}
	}
	known[name] = end
	return end, nil
}

// AddRoutes adds the operations to an API.
func (t *Intake) AddRoutes(api *authz.API) {
	type event struct {
		RawBody []byte `contentType:"application/json"`
	}
	authz.Handle(api, authz.To(authz.Operate, authz.TheOrg), huma.Operation{
		OperationID: "take-lineage", Method: http.MethodPost, Path: "/v1/lineage", Tags: []string{"datasets"},
		Summary: "Take in an OpenLineage event of another system", DefaultStatus: http.StatusCreated,
		Description: "A RunEvent or JobEvent of OpenLineage, until version 2-0-2. Datasets in the org's own " +
			"namespace (dagctl://ORG, unless the server's config has another) are datasets of dagctl; all others " +
			"appear in lineage graphs as `external` nodes. Events of a run add up; what it makes counts when it " +
			"completes.",
		MaxBodyBytes: 1 << 20, SkipValidateBody: true,
		RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{
			"application/json": {Schema: &huma.Schema{Type: huma.TypeObject, Description: "The event"}},
		}},
	}, func(ctx context.Context, caller authz.Caller, in *event) (*struct{}, error) {
		return nil, t.Take(ctx, caller, in.RawBody)
	})

	type namespace struct {
		Name string `query:"namespace" required:"true" minLength:"1" maxLength:"500" doc:"Of what is outside"`
	}
	type forgotten struct {
		Body struct {
			Edges int64 `json:"edges" doc:"How many edges were removed"`
		}
	}
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "forget-lineage", Method: http.MethodDelete, Path: "/v1/lineage", Tags: []string{"datasets"},
		Summary: "Remove what another system has told about a namespace",
	}, func(ctx context.Context, caller authz.Caller, in *namespace) (*forgotten, error) {
		n, err := t.Lineage.Forget(ctx, caller, in.Name)
		out := &forgotten{}
		out.Body.Edges = n
		return out, err
	})
}

package lineage

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// AddRoutes adds the operation to an API.
func (l *Lineage) AddRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-lineage", Method: http.MethodGet, Path: "/v1/datasets/{name}/lineage",
		Tags:    []string{"datasets"},
		Summary: "Get what a dataset is made from, and what is made from it, over DAGs",
		Description: registry.NameDoc + " What the caller may not read is a node without a name: datasets that are " +
			"not published are passed through, and at those with read roles the graph ends. `at` is live (the " +
			"default), a version (v3, or sales@v3 for one of another DAG), whose last moment in service is meant, " +
			"candidate, or an instant. A version that has not served is for writers. With `column`, the graph is " +
			"what that column comes from and what is computed from it. With `partition`, `revisions` says what its " +
			"revision was made from, whatever the direction.",
	}, l.handle)
}

type input struct {
	registry.NameInput
	Direction string `query:"direction" enum:"up,down,both" default:"both" doc:"up: what it is made from; down: what is made from it"`
	Depth     int    `query:"depth" minimum:"1" maximum:"100" default:"10" doc:"Steps from the dataset"`
	Limit     int    `query:"limit" minimum:"1" maximum:"5000" default:"1000" doc:"The most datasets of the answer"`
	At        string `query:"at" maxLength:"100" doc:"A version such as v3 or sales@v3, candidate, or an RFC 3339 instant"`
	Columns   bool   `query:"columns" doc:"Edges say which columns were computed from which"`
	Column    string `query:"column" maxLength:"300" doc:"Only what concerns this column of the dataset"`
	Partition string `query:"partition" maxLength:"500" doc:"With the revisions that the one of this partition was made from"`
}

type answer struct{ Body Graph }

func (l *Lineage) handle(ctx context.Context, caller authz.Caller, in *input) (*answer, error) {
	g, err := l.Graph(ctx, caller, Query{Dataset: in.Name, Direction: in.Direction, Depth: in.Depth, Nodes: in.Limit,
		At: in.At, Columns: in.Columns, Column: in.Column, Partition: in.Partition})
	return &answer{g}, err
}

package registry

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// AddRoutes adds the registry's operations to an API. The dispatcher's routes say what a DAG is doing.
func (r *Registry) AddRoutes(api *authz.API) {
	api.FindBy(authz.TheDatasets, r.dagOf)
	api.BeforeUsers(r.KeepHidden)
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-datasets", Method: http.MethodGet, Path: "/v1/datasets", Tags: []string{"datasets"},
		Summary:     "Search the catalogue",
		Description: "In the order of names; with search, the best match first, and each with what matched.",
	}, r.handleDatasets)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}", Tags: []string{"datasets"},
		Summary: "Get a dataset with its columns and the results of its checks", Description: NameDoc,
	}, r.handleDataset)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-dataset-versions", Method: http.MethodGet, Path: "/v1/datasets/{name}/versions",
		Tags:    []string{"datasets"},
		Summary: "List the generations of a dataset, the newest first", Description: NameDoc,
	}, r.handleGenerations)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-partitions", Method: http.MethodGet, Path: "/v1/datasets/{name}/partitions",
		Tags:    []string{"datasets"},
		Summary: "List the partitions that readers see", Description: NameDoc,
	}, r.handlePartitions)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-operators", Method: http.MethodGet, Path: "/v1/operators", Tags: []string{"dags"},
		Summary: "List the operators and runtimes that DAG files are validated against",
	}, r.handleOperators)

	r.addVisibilityRoutes(api)
	r.addPatternRoutes(api)
	r.addPinRoutes(api)
	r.addVerifyRoute(api)
	r.addBundleRoutes(api)
}

const NameDoc = "An unpublished dataset is named dag/job/output; write the slashes as %2F, or use the dataset's id."

// NameInput addresses a dataset.
type NameInput struct {
	Name string `path:"name" maxLength:"300" doc:"Name or id of the dataset"`
}

type datasetsInput struct {
	rest.PageInput
	Search      string `query:"search" maxLength:"200" doc:"Words of the name, the description, the columns, the tags or the owner; typing errors are forgiven. The answer is ranked, the best match first"`
	Tag         string `query:"tag" maxLength:"100"`
	DAG         string `query:"dag" maxLength:"63" doc:"Made by this DAG"`
	Unpublished bool   `query:"unpublished" doc:"Also datasets without a published name; for writers"`
	Late        bool   `query:"late" doc:"Only datasets that lack data that is due by now"`
}

type datasetsOutput struct{ Body rest.List[Dataset] }

func (r *Registry) handleDatasets(ctx context.Context, caller authz.Caller,
	in *datasetsInput) (*datasetsOutput, error) {
	f := DatasetFilter{Search: in.Search, Tag: in.Tag, DAG: in.DAG, Unpublished: in.Unpublished, Late: in.Late,
		Limit: in.Limit + 1}
	if err := f.ReadCursor(in.PageInput); err != nil {
		return nil, err
	}
	datasets, err := r.Datasets(ctx, caller, f)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(datasets, in.Limit, f.Position)
	return &datasetsOutput{list}, err
}

type datasetOutput struct{ Body Dataset }

func (r *Registry) handleDataset(ctx context.Context, caller authz.Caller, in *NameInput) (*datasetOutput, error) {
	d, err := r.Dataset(ctx, caller, in.Name)
	return &datasetOutput{d}, err
}

type generationsOutput struct{ Body rest.List[Generation] }

func (r *Registry) handleGenerations(ctx context.Context, caller authz.Caller,
	in *NameInput) (*generationsOutput, error) {
	generations, err := r.Generations(ctx, caller, in.Name)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(generations, len(generations), func(g Generation) any { return g.ID })
	return &generationsOutput{list}, err
}

type partitionsInput struct {
	rest.PageInput
	NameInput
	Position int64 `query:"position" minimum:"-1" default:"-1" doc:"Only the range, or the segment of a cursor, that covers this position; -1: all partitions"`
}

type partitionsOutput struct{ Body rest.List[Revision] }

func (r *Registry) handlePartitions(ctx context.Context, caller authz.Caller,
	in *partitionsInput) (*partitionsOutput, error) {
	var after string
	if _, err := in.After(&after); err != nil {
		return nil, err
	}
	partitions, err := r.Partitions(ctx, caller, in.Name, PartitionFilter{Position: in.Position, After: after,
		Limit: in.Limit + 1})
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(partitions, in.Limit, func(p Revision) any { return p.Key })
	return &partitionsOutput{list}, err
}

type operatorsOutput struct{ Body OperatorCatalog }

func (r *Registry) handleOperators(context.Context, authz.Caller, *struct{}) (*operatorsOutput, error) {
	return &operatorsOutput{NewOperatorCatalog(r.Catalog)}, nil
}

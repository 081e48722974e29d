package deploy

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// MaxDeployBody is the limit of a deploy's body in bytes: the largest DAG file with the largest set of files, in
// base64.
const MaxDeployBody = dag.MaxFilesBytes/3*4 + 2*dag.MaxFileBytes

// AddRoutes adds the operations on deploys and versions to an API.
func (dp *Deployer) AddRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), huma.Operation{
		OperationID: "deploy", Method: http.MethodPost, Path: "/v1/dags/{dag}/versions", Tags: []string{"dags"},
		Summary:      "Deploy a DAG file",
		Description:  "Answers 201 for a new version, and 200 if this very document was deployed before.",
		MaxBodyBytes: MaxDeployBody, DefaultStatus: http.StatusCreated,
	}, dp.handleDeploy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-versions", Method: http.MethodGet, Path: "/v1/dags/{dag}/versions", Tags: []string{"dags"},
		Summary: "List the versions of a DAG, the newest first",
	}, dp.handleVersions)

	authz.Handle(api, authz.To(authz.Inspect, authz.TheDAG), huma.Operation{
		OperationID: "diff-versions", Method: http.MethodGet, Path: "/v1/dags/{dag}/diff", Tags: []string{"dags"},
		Summary: "Compare two versions: their text, and what going from one to the other does to each dataset",
	}, dp.handleDiff)

	authz.Handle(api, authz.To(authz.Inspect, authz.TheDAG), huma.Operation{
		OperationID: "get-definition", Method: http.MethodGet, Path: "/v1/dags/{dag}/versions/{version}/definition",
		Tags:    []string{"dags"},
		Summary: "Get the jobs of a version, and the files that its document names",
	}, func(ctx context.Context, caller authz.Caller, in *versionPath) (*definitionOutput, error) {
		found, err := dp.Definition(ctx, caller, in.DAG, in.Version)
		return &definitionOutput{found}, err
	})

	authz.Handle(api, authz.To(authz.Inspect, authz.TheDAG), huma.Operation{
		OperationID: "preview-swap", Method: http.MethodGet, Path: "/v1/dags/{dag}/versions/{version}/swap",
		Tags:    []string{"dags"},
		Summary: "Show what readers would see change if a version served now",
		Description: "For a version that is being built or ready, a promotion; for one that served before, a " +
			"rollback. Nothing is changed. 409 for any other version.",
	}, func(ctx context.Context, caller authz.Caller, in *versionPath) (*swapOutput, error) {
		preview, err := dp.PreviewSwap(ctx, caller, in.DAG, &in.Version, clock.Now())
		return &swapOutput{preview}, err
	})

	authz.Handle(api, authz.To(authz.Inspect, authz.TheDAG), huma.Operation{
		OperationID: "preview-rollback", Method: http.MethodGet, Path: "/v1/dags/{dag}/rollback",
		Tags:        []string{"dags"},
		Summary:     "Show what readers would see change if the version before the active one served again",
		Description: "Nothing is changed. 409 if no version served before.",
	}, func(ctx context.Context, caller authz.Caller, in *dagPath) (*swapOutput, error) {
		preview, err := dp.PreviewSwap(ctx, caller, in.DAG, nil, clock.Now())
		return &swapOutput{preview}, err
	})

	dp.addRematerializeRoute(api)
}

type dagPath struct {
	DAG string `path:"dag" maxLength:"63"`
}

type versionPath struct {
	DAG     string `path:"dag" maxLength:"63"`
	Version int    `path:"version" minimum:"1" maximum:"2147483647"`
}

type definitionOutput struct{ Body Definition }

type swapOutput struct{ Body SwapPreview }

type deployInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body registry.DeployRequest
}

type deployOutput struct {
	Status int
	Body   registry.Deployment
}

func (dp *Deployer) handleDeploy(ctx context.Context, caller authz.Caller, in *deployInput) (*deployOutput, error) {
	deployed, err := dp.Deploy(ctx, caller, in.DAG, in.Body)
	if err != nil {
		return nil, err
	}
	out := &deployOutput{Status: http.StatusOK, Body: deployed}
	if deployed.Created {
		out.Status = http.StatusCreated
	}
	return out, nil
}

type versionsInput struct {
	rest.PageInput
	DAG string `path:"dag" maxLength:"63"`
}

type versionsOutput struct{ Body rest.List[PastVersion] }

func (dp *Deployer) handleVersions(ctx context.Context, caller authz.Caller,
	in *versionsInput) (*versionsOutput, error) {
	var before int32
	if _, err := in.After(&before); err != nil {
		return nil, err
	}
	versions, err := dp.History(ctx, caller, in.DAG, int(before), in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(versions, in.Limit, func(v PastVersion) any { return v.Number })
	return &versionsOutput{list}, err
}

type diffInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	From int    `query:"from" required:"true" minimum:"1" maximum:"2147483647"`
	To   int    `query:"to" required:"true" minimum:"1" maximum:"2147483647"`
}

type diffOutput struct{ Body VersionDiff }

func (dp *Deployer) handleDiff(ctx context.Context, caller authz.Caller, in *diffInput) (*diffOutput, error) {
	diff, err := dp.DiffVersions(ctx, caller, in.DAG, in.From, in.To)
	return &diffOutput{diff}, err
}

func (dp *Deployer) addRematerializeRoute(api *authz.API) {
	authz.Handle(api, authz.To(authz.Deploy, authz.TheDatasets), huma.Operation{
		OperationID: "rematerialize", Method: http.MethodPost, Path: "/v1/datasets/{name}/rematerialize",
		Tags:    []string{"upkeep"},
		Summary: "Compute a whole dataset anew",
		Description: "The active document is built as a new version, with new dataset versions of this dataset and " +
			"everything downstream of it, beside what serves. Deploying the same file afterwards changes nothing. " +
			registry.NameDoc,
	}, dp.handleRematerialize)
}

// RematerializeRequest says how far a dataset is rebuilt, and what the caller agrees to.
type RematerializeRequest struct {
	Downstream bool `json:"downstream,omitempty" doc:"Also rebuild DAGs that read it; otherwise they follow in place"`
	DryRun     bool `json:"dry_run,omitempty" doc:"Only say what would be rebuilt"`

	Base *int `json:"base_version,omitempty" minimum:"0" maximum:"2147483647" doc:"The active version of the dataset's DAG that it was planned against; refused with 409 if another is active now"`

	Supersede     bool `json:"supersede,omitempty" doc:"Abandon running builds of these DAGs, and keep what they built"`
	CancelTasks   bool `json:"cancel_tasks,omitempty" doc:"As for a deploy"`
	AllowBreaking bool `json:"allow_breaking,omitempty" doc:"Let columns go or change that jobs of other DAGs may read; without it, a rebuild that would is refused with 409 or fails"`
	AllowRemovals bool `json:"allow_removals,omitempty" doc:"Let partitions go that are served and cannot be computed again; without it, a rebuild that would lose some is refused with 409 or fails"`
}

type rematerializeInput struct {
	registry.NameInput
	Body *RematerializeRequest
}

type rematerializeOutput struct{ Body rest.List[Rematerialized] }

func (dp *Deployer) handleRematerialize(ctx context.Context, caller authz.Caller,
	in *rematerializeInput) (*rematerializeOutput, error) {
	var request RematerializeRequest
	if in.Body != nil {
		request = *in.Body
	}
	made, err := dp.Rematerialize(ctx, caller, in.Name, request)
	if err != nil {
		return nil, err
	}
	return &rematerializeOutput{rest.List[Rematerialized]{Items: made}}, nil
}

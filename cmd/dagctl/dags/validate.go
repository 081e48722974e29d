package dags

import (
	"context"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// server is a dagfile.Server.
type server struct{ api *cli.Client }

// Server returns what connects `dagctl validate --server` to the target.
func Server(c *cli.CLI) func() (dagfile.Server, error) {
	return func() (dagfile.Server, error) {
		api, err := c.Connect()
		return server{api}, err
	}
}

// Catalog implements dagfile.Server.
func (s server) Catalog(ctx context.Context) (dag.Catalog, error) {
	var catalog registry.OperatorCatalog
	err := s.api.Get(ctx, "/v1/operators", nil, &catalog)
	return catalog.Catalog(), err
}

// Plan implements dagfile.Server.
func (s server) Plan(ctx context.Context, seen dagfile.Seen) error {
	request := requestFor(seen.Source, seen.Doc)
	request.Beside = seen.Beside
	_, err := RequestPlan(ctx, s.api, seen.Doc.Name, request)
	return err
}

// requestFor returns the request that deploys a valid document.
func requestFor(src dagfile.Source, doc *dag.Document) registry.DeployRequest {
	return registry.DeployRequest{YAML: string(src.Text), Files: doc.Files, Vars: src.Vars}
}

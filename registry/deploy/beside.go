package deploy

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A plan may name datasets of DAG files that are to be deployed before its own, so that a folder of DAGs is checked as
// it is going to be deployed. What serves like that already is planned with as ever. With what does not, there is
// nothing to bind to, so only the document is checked.

// ahead returns those of the datasets beside a document that it reads and that do not serve as they are offered.
func (dp *Deployer) ahead(ctx context.Context, caller authz.Caller,
	req registry.DeployRequest) (map[string]dag.Offer, error) {
	if len(req.Beside) == 0 {
		return nil, nil
	}
	reads := dag.File{Name: "dag.yaml", Text: []byte(req.YAML), Files: dag.InMemory(req.Files), Vars: req.Vars}.Reads()
	by, columns, err := dp.readDatasets(ctx, caller, reads)
	if err != nil {
		return nil, err
	}

	offers := maps.Clone(req.Beside)
	maps.DeleteFunc(offers, func(name string, o dag.Offer) bool {
		serves, ok := by[name]
		alike := ok && (o.PartitionBy == nil || *o.PartitionBy == serves) &&
			(o.Columns == nil || columns[name] == nil || sameColumns(o.Known(), columns[name]))
		return alike || !slices.Contains(reads, name)
	})
	return offers, nil
}

// sameColumns reports whether a dataset has the columns that it is offered with, whose types need not be known.
func sameColumns(offered, has []dag.Column) bool {
	return slices.EqualFunc(offered, has, func(a, b dag.Column) bool {
		return a.Name == b.Name && (a.Type == "" || b.Type == "" || a.Type == b.Type)
	})
}

// readBeside lets a file read datasets as they are offered beside it.
func readBeside(file dag.File, offers map[string]dag.Offer) {
	for name, o := range offers {
		delete(file.Columns, name) // of what serves
		if o.PartitionBy != nil {
			file.Datasets[name] = *o.PartitionBy
		}
		if o.Columns != nil {
			file.Columns[name] = o.Known()
		}
	}
}

// checkBeside refuses a document for what can be said of it before the DAGs beside it serve.
func (dp *Deployer) checkBeside(ctx context.Context, caller authz.Caller, dagName string,
	req registry.DeployRequest) error {
	doc, err := dp.parse(ctx, caller, dagName, req)
	if err != nil {
		return err
	}
	return pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.RefuseUnknownBundles(ctx, tx, caller.OrgID, doc); err != nil {
			return err
		}
		d := &deploy{deployer: dp, caller: caller, req: req, doc: doc}
		foreign, err := d.foreignDatasets(ctx, tx)
		if err != nil {
			return err
		}
		return refuseUnknown(doc, func(name string) bool {
			_, serves := foreign[name]
			_, offered := req.Beside[name]
			return serves || offered
		})
	})
}

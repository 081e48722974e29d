// Package deploy turns documents into DAG versions and moves the pointers between them: it plans what an edit changes,
// writes a version with its jobs, datasets and generations, takes over what stays, and cuts over and rolls back.
//
// It writes the registry's tables: dag_versions, dag_current_versions, dag_activations, jobs, job_inputs, datasets,
// dataset_versions, dag_version_datasets, dataset_pointers and build_epochs.
package deploy

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Deployer deploys, plans and compares versions.
type Deployer struct {
	registry       *registry.Registry
	pool, requests *pgxpool.Pool
	storage        *storage.Storage
	catalog        dag.Catalog
	vault          *authz.Vault
}

// New returns a Deployer that works with the registry's pools, storage, catalog and vault.
func New(r *registry.Registry) *Deployer {
	return &Deployer{registry: r, pool: r.Pool, requests: r.Requests, storage: r.Storage, catalog: r.Catalog,
		vault: r.Vault}
}

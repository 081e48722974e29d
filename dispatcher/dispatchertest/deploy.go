package dispatchertest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func dagName(yaml string) string {
	for line := range strings.Lines(yaml) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "name: "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// TryDeploy deploys a DAG that may be refused.
func (tn *Tenant) TryDeploy(yaml string, change ...func(*registry.DeployRequest)) (registry.Deployment, error) {
	tn.W.T.Helper()
	req := registry.DeployRequest{YAML: yaml}
	for _, f := range change {
		f(&req)
	}
	return deploy.New(tn.W.D.Registry).Deploy(tn.W.T.Context(), tn.Caller, dagName(yaml), req)
}

// Plan plans a DAG.
func (tn *Tenant) Plan(yaml string) registry.Plan {
	tn.W.T.Helper()
	plan, err := tn.TryPlan(yaml)
	require.NoError(tn.W.T, err)
	return plan
}

// TryPlan plans a deploy that may be refused.
func (tn *Tenant) TryPlan(yaml string, change ...func(*registry.DeployRequest)) (registry.Plan, error) {
	tn.W.T.Helper()
	req := registry.DeployRequest{YAML: yaml}
	for _, f := range change {
		f(&req)
	}
	return deploy.New(tn.W.D.Registry).Plan(tn.W.T.Context(), tn.Caller, dagName(yaml), req)
}

// Supersede makes a deployment replace a build that is under way.
func Supersede(r *registry.DeployRequest) { r.Supersede = true }

// Deploy deploys a DAG and leaves its build to Advance.
func (tn *Tenant) Deploy(yaml string, change ...func(*registry.DeployRequest)) registry.Deployment {
	tn.W.T.Helper()
	deployed, err := tn.TryDeploy(yaml, change...)
	require.NoError(tn.W.T, err)
	return deployed
}

// Serve deploys a DAG and works until the version serves.
func (tn *Tenant) Serve(yaml string, change ...func(*registry.DeployRequest)) registry.Deployment {
	tn.W.T.Helper()
	deployed := tn.Deploy(yaml, change...)
	tn.W.Settle()
	status, reason := tn.Status(deployed.Version.ID)
	require.Equal(tn.W.T, registry.Active, status, reason)
	return deployed
}

// Status returns the status of a DAG version, and the error that it failed with.
func (tn *Tenant) Status(version uuid.UUID) (status registry.Status, reason string) {
	tn.W.T.Helper()
	tn.W.Row(`SELECT status, coalesce(error, '') FROM dag_versions WHERE id = $1`, version)(&status, &reason)
	return status, reason
}

// Drop writes a file into the landing folder in one step, as a careful producer does.
func (tn *Tenant) Drop(name, content string) {
	tn.W.T.Helper()
	path := filepath.Join(tn.Landing, name)
	require.NoError(tn.W.T, os.MkdirAll(filepath.Dir(path), 0o755))
	draft := path + ".part"
	require.NoError(tn.W.T, os.WriteFile(draft, []byte(content), 0o600))
	require.NoError(tn.W.T, os.Rename(draft, path))
}

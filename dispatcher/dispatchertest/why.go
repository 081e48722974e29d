package dispatchertest

import (
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/why"
)

// CodesIn lists the codes of a tree, each as PARENT/CHILD.
func CodesIn(reasons []why.Reason) (codes []string) {
	for _, r := range reasons {
		codes = append(codes, string(r.Code))
		for _, below := range CodesIn(r.Because) {
			codes = append(codes, string(r.Code)+"/"+below)
		}
	}
	return codes
}

// WhyTask explains why a task is where it is.
func (w *World) WhyTask(caller authz.Caller, id uuid.UUID) why.Why {
	w.T.Helper()
	why, err := w.D.Why.TaskWhy(w.T.Context(), caller, id, time.Now())
	require.NoError(w.T, err)
	return why
}

// WhyNot explains why a partition of a dataset is not there.
func (tn *Tenant) WhyNot(name, key string) why.Why {
	tn.W.T.Helper()
	why, err := tn.W.D.Why.PartitionWhyNot(tn.W.T.Context(), tn.Caller, name, key, time.Now())
	require.NoError(tn.W.T, err)
	return why
}

// WhyJob explains why a job does not run.
func (tn *Tenant) WhyJob(dag, job string) why.Why {
	tn.W.T.Helper()
	why, err := tn.W.D.Why.JobWhy(tn.W.T.Context(), tn.Caller, dag, job, time.Now())
	require.NoError(tn.W.T, err)
	return why
}

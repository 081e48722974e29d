package stale

import (
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// A dataset of another DAG may be partitioned differently from when its reader was deployed. Deploys and rollbacks that
// would leave a reader behind are refused, but rows may have been restored or edited. A job with such an input is
// blocked: nothing of it is made until its DAG is deployed again, and nobody else waits for that.

// Unmapped returns why an input cannot be mapped to the job's partitions, and what to do about it. It is empty where it
// can. by is the partitioning of the generation that the input reads now.
func Unmapped(job *registry.Job, in registry.JobInput, by dag.Partitioning) string {
	if in.PartitionBy == by {
		return ""
	}
	return deploy.ForeignInput{Job: &job.Def, DAG: job.DAG, Index: in.Index, Dataset: in.Dataset,
		Producer: in.Producer, Was: in.PartitionBy, Is: by}.Blocked()
}

// OutputKeys lists the output partitions of a job that a partition of an input feeds. Where it cannot be mapped,
// unmapped says why. by is the partitioning of the generation that has the partition.
func OutputKeys(
	job *registry.Job, in registry.JobInput, by dag.Partitioning, key string,
) (fed []string, unmapped string) {
	if unmapped = Unmapped(job, in, by); unmapped != "" {
		return nil, unmapped
	}
	fed, err := in.Def.Map.OutputKeys(by, job.Def.TasksBy(), key)
	if err != nil {
		return nil, unmappable(job, in, key, err)
	}
	return fed, ""
}

// unmappable says that a partition of an input cannot be mapped, which a deploy should have refused.
func unmappable(job *registry.Job, in registry.JobInput, key string, err error) string {
	return fmt.Sprintf("input %s of %s cannot be mapped at partition %s: %s; deploy %s again", in.Def.As, job.Address(),
		key, err, job.DAG)
}

package sources

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// calendar lists the partitions of a source that is asked for them: those that have ended since its first one. So it is
// read as a source of files is, where each partition is a unit: by builds, by backfills, and at its times.
type calendar struct {
	operators.Operator
	job   *registry.Job
	again []string // partitions that are there, and are to be made again
}

// Again returns the enumerator of a source that is to list some partitions again. One that compares what there is to
// read with what was read lists them by itself.
func Again(op operators.Enumerator, partitions []string) operators.Enumerator {
	if c, ok := op.(calendar); ok {
		c.again = partitions
		return c
	}
	return op
}

// askedVersion is the version of all units of a calendar: nothing says whether the rows of one are others by now.
const askedVersion = "asked"

// Enumerate lists all partitions that have ended.
func (c calendar) Enumerate(_ context.Context, e operators.Enumeration) (units []operators.Unit, err error) {
	by := c.job.Def.PartitionBy
	keys, err := by.CompleteFrom(c.job.Def.Source.FirstPartition, e.Now)
	if err != nil {
		return nil, err
	}

	for _, key := range keys {
		u := operators.Unit{Partition: key, Version: askedVersion}
		if c.job.Def.Source.Kind == "cron" {
			if u.Payload, err = scheduledFor(c.job, key); err != nil {
				return nil, err
			}
		}
		units = append(units, u)
	}
	return units, nil
}

// Resume lists those of them that are not there yet, and those that are to be listed again. Another one that is there
// is made again only when somebody asks for it.
func (c calendar) Resume(ctx context.Context, e operators.Enumeration) (found operators.Listing, err error) {
	all, err := c.Enumerate(ctx, e)
	for _, u := range all {
		if _, there := e.Known[u.Partition]; there && !slices.Contains(c.again, u.Partition) {
			found.Before++
		} else {
			found.Units = append(found.Units, u)
		}
	}
	found.Partial = true // what is there stays, whatever its tasks were
	return found, err
}

// scheduledFor returns the payload of the task that a schedule makes for a partition, at its end.
func scheduledFor(job *registry.Job, key string) (json.RawMessage, error) {
	_, end, err := job.Def.PartitionBy.Bounds(key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]string{"scheduled_at": end.UTC().Format(time.RFC3339)})
}

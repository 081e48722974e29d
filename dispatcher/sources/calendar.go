package sources

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// calendar lists the partitions of a source that is asked for them: those that have ended since its first one. So it is
// read as a source of files is, where each partition is a unit: by builds, by backfills, and at its times.
type calendar struct {
	operators.Operator
	job   *registry.Job
	again []string // partitions that are there, and are to be made again
	due   bool     // its time has come: it looks back

	rejected map[string]bool // partitions that checks have rejected, of a source that a build reads
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

// due returns the enumerator of a source whose time has come. One that looks back lists its newest partitions again.
func due(op operators.Enumerator) operators.Enumerator {
	if c, ok := op.(calendar); ok {
		c.due = true
		return c
	}
	return op
}

// building returns the enumerator of a source that a build reads. One that is asked for its partitions is asked again
// for those that checks have rejected: they fail the build, and whoever resumes it may have mended them outside.
func building(op operators.Enumerator, there map[string]registry.SourceVersion) operators.Enumerator {
	c, ok := op.(calendar)
	if !ok {
		return op
	}
	c.rejected = map[string]bool{}
	for key, v := range there {
		c.rejected[key] = v.Rejected
	}
	return c
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
// is made again only when somebody asks for it, or when a source that is due looks back.
func (c calendar) Resume(ctx context.Context, e operators.Enumeration) (found operators.Listing, err error) {
	all, err := c.Enumerate(ctx, e)
	if err != nil {
		return found, err
	}
	back, err := c.lookBack(all, e)
	if err != nil {
		return found, err
	}

	for i, u := range all {
		_, there := e.Known[u.Partition]
		switch {
		case i >= back && !e.Purged[u.Partition], c.rejected[u.Partition]:
			// Each reading is one of its own, so its version is the moment.
			u.Version, u.Again = askedVersion+" at "+e.Now.UTC().Format(time.RFC3339Nano), true
			found.Units = append(found.Units, u)
		case there && !slices.Contains(c.again, u.Partition):
			found.Before++
		default:
			found.Units = append(found.Units, u)
		}
	}
	found.Partial = true // what is there stays, whatever its tasks were

	if c.due && len(all) > 0 { // also without a lookback, which a deploy may add
		found.Position, err = json.Marshal(looked{Newest: all[len(all)-1].Partition})
	}
	return found, err
}

// looked is the position of a calendar.
type looked struct {
	Newest string `json:"newest"` // the partition that had ended last
}

// lookBack returns the index of the first partition that a source is asked for whether or not it is there. Those are
// the newest one and, as many as its lookback says, the ones before it; and where several have ended since it was due
// last, such as after an outage, the ones before each of these.
func (c calendar) lookBack(all []operators.Unit, e operators.Enumeration) (first int, err error) {
	back := c.job.Def.Source.Lookback
	if !c.due || back == 0 || len(all) == 0 {
		return len(all), nil
	}

	first = len(all) - 1
	if len(e.Position) > 0 {
		var last looked
		if err := json.Unmarshal(e.Position, &last); err != nil {
			return 0, fmt.Errorf("where the source looked back last: %w", err)
		}
		at := slices.IndexFunc(all, func(u operators.Unit) bool { return u.Partition == last.Newest })
		if at >= 0 {
			first = min(first, at+1)
		}
	}
	return max(first-back, 0), nil
}

// LooksBackAt reports whether a source that is due at a time is asked for a partition that is there.
func LooksBackAt(ctx context.Context, tx pgx.Tx, job *registry.Job, key string, at time.Time) (bool, error) {
	c, e := calendar{job: job, due: true}, operators.Enumeration{Now: at}
	var err error
	if e.Position, err = positionOf(ctx, tx, job); err != nil {
		return false, err
	}
	all, err := c.Enumerate(ctx, e)
	if err != nil {
		return false, nil // there are too many: its next reading fails, and says so
	}
	back, err := c.lookBack(all, e)
	return slices.ContainsFunc(all[back:], func(u operators.Unit) bool { return u.Partition == key }), err
}

// scheduledFor returns the payload of the task that a schedule makes for a partition, at its end.
func scheduledFor(job *registry.Job, key string) (json.RawMessage, error) {
	_, end, err := job.Def.PartitionBy.Bounds(key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]string{"scheduled_at": end.UTC().Format(time.RFC3339)})
}

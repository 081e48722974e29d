package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// VersionDiff is the difference between two versions of a DAG.
type VersionDiff struct {
	DAG     string            `json:"dag"`
	From    int               `json:"from_version"`
	To      int               `json:"to_version"`
	Text    string            `json:"text" doc:"Unified diff of the DAG file and the files it names"`
	Changes []registry.Change `json:"changes" doc:"What going from one to the other does to each dataset"`

	Records []int `json:"records,omitempty" doc:"Those of the two of which only the record is left, past the version retention: their texts are compared, but not their datasets"`

	Findings []contract.Finding `json:"findings,omitempty" doc:"What readers would notice of it, by what each promised once it was built"`

	Jobs []JobChange `json:"jobs,omitempty" doc:"Jobs that differ, in the order of their names"`
}

// JobChange says how a job differs between two versions. A job that was renamed is the same one.
type JobChange struct {
	Job         string   `json:"job" doc:"Its name in the second version, or in the first where it is removed"`
	Change      string   `json:"change" enum:"added,removed,renamed,changed,upstream" doc:"changed: its own definition; upstream: only what it reads; renamed: neither"`
	RenamedFrom string   `json:"renamed_from,omitempty" doc:"Its name in the first version, if it is another one"`
	Fields      []string `json:"fields,omitempty" doc:"Of its definition that differ, also those that make nothing anew, such as checks and limits"`
}

// The changes of jobs.
const (
	JobAdded    = "added"
	JobRemoved  = "removed"
	JobRenamed  = "renamed"
	JobChanged  = "changed"
	JobUpstream = "upstream"
)

// jobChanges compares the jobs of two versions, each by its identity.
func jobChanges(ctx context.Context, tx pgx.Tx, org uuid.UUID, versions [2]uuid.UUID) ([]JobChange, error) {
	rows, err := tx.Query(ctx, `
		SELECT coalesce(b.name, a.name), CASE WHEN a.name IS NULL THEN 'added' WHEN b.name IS NULL THEN 'removed'
			WHEN a.config_hash <> b.config_hash THEN 'changed' WHEN a.origin_job_id <> b.origin_job_id THEN 'upstream'
			ELSE 'renamed' END,
			CASE WHEN a.name <> b.name THEN a.name ELSE '' END, a.definition, b.definition
		FROM (SELECT * FROM jobs WHERE org_id = $1 AND dag_version_id = $2) a
		FULL JOIN (SELECT * FROM jobs WHERE org_id = $1 AND dag_version_id = $3) b ON b.identity = a.identity
		WHERE a.origin_job_id IS DISTINCT FROM b.origin_job_id OR a.name <> b.name ORDER BY 1`,
		org, versions[0], versions[1])
	if err != nil {
		return nil, fmt.Errorf("compare jobs: %w", err)
	}

	var was, is []*dag.Job
	changes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c JobChange, err error) {
		var a, b *dag.Job
		err = row.Scan(&c.Job, &c.Change, &c.RenamedFrom, &a, &b)
		was, is = append(was, a), append(is, b)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("compare jobs: %w", err)
	}

	renamed := map[string]string{}
	for _, c := range changes {
		if c.RenamedFrom != "" {
			renamed[c.RenamedFrom] = c.Job
		}
	}
	for i := range changes {
		if was[i] == nil || is[i] == nil {
			continue
		}
		if changes[i].Fields, err = differingFields(was[i], is[i], renamed); err != nil {
			return nil, fmt.Errorf("compare job %s: %w", changes[i].Job, err)
		}
	}
	return changes, nil
}

// differingFields lists the fields of a job's definition that differ, sorted: those of its config one by one. What it
// is called and what the jobs that it reads are called is no difference; renamed is by the names in the first version.
func differingFields(was, is *dag.Job, renamed map[string]string) ([]string, error) {
	older := *was
	older.Name, older.RenamedFrom, older.GivenIdentity = is.Name, is.RenamedFrom, is.GivenIdentity
	older.Inputs = slices.Clone(was.Inputs)
	for i, in := range older.Inputs {
		older.Inputs[i].Job = cmp.Or(renamed[in.Job], in.Job)
	}

	var fields [2]map[string]json.RawMessage
	for i, job := range []*dag.Job{&older, is} {
		flat, err := flattened(job)
		if err != nil {
			return nil, err
		}
		fields[i] = flat
	}
	var differ []string
	for name, value := range fields[0] {
		if string(fields[1][name]) != string(value) {
			differ = append(differ, name)
		}
	}
	for name := range fields[1] {
		if _, both := fields[0][name]; !both {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	return differ, nil
}

// flattened returns the fields of a job's definition, and those of its config as config.FIELD.
func flattened(job *dag.Job) (map[string]json.RawMessage, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	fields, config := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if own := fields["config"]; own != nil {
		if err := json.Unmarshal(own, &config); err != nil {
			return nil, err
		}
	}

	delete(fields, "config")
	for name, value := range config {
		fields["config."+name] = value
	}
	return fields, nil
}

// DiffVersions compares two versions: their texts, and their datasets, by the same function that plans a deploy.
func (dp *Deployer) DiffVersions(ctx context.Context, caller authz.Caller, dagName string,
	from, to int) (VersionDiff, error) {
	diff := VersionDiff{DAG: dagName, From: from, To: to}
	err := pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var texts [2]map[string]string
		var sets [2][]planned
		var ids [2]uuid.UUID
		var promises [2]contract.Contract
		for i, number := range []int{from, to} {
			id, shrunk, files, err := documentOf(ctx, tx, caller.OrgID, dagName, number) // nil files: hidden
			if err != nil {
				return err
			}
			hidden, err := registry.HiddenVersions(ctx, tx, caller, []uuid.UUID{id})
			if err != nil {
				return err
			}
			if hidden[id] || files == nil {
				return fault.New(fault.Forbidden, "version %d reads or makes what %s may not read", number,
					caller.Actor).
					WithHint("ask an admin of the org %s for the org roles that may read it", caller.OrgSlug)
			}
			if texts[i], ids[i] = files, id; shrunk {
				diff.Records = append(diff.Records, number)
				continue
			}
			if sets[i], err = pointerSet(ctx, tx, caller.OrgID, id); err != nil {
				return err
			}
			if promises[i], err = dp.keptContract(ctx, tx, caller.OrgID, id); err != nil {
				return err
			}
		}

		if diff.Changes = []registry.Change{}; len(diff.Records) == 0 {
			diff.Changes = plan(sets[0], sets[1])
			if err := dp.noteLaterBetween(ctx, tx, diff.Changes, sets[0], ids); err != nil {
				return err
			}
			diff.Findings = contract.Compare(promises[0], promises[1], contract.Facts{})
		}
		var err error
		if diff.Jobs, err = jobChanges(ctx, tx, caller.OrgID, ids); err != nil {
			return err
		}
		diff.Text, err = unified(texts[0], texts[1], fmt.Sprintf("v%d", from), fmt.Sprintf("v%d", to))
		return err
	})
	if err != nil {
		return VersionDiff{}, fmt.Errorf("compare versions %d and %d of %s: %w", from, to, dagName, err)
	}
	return diff, nil
}

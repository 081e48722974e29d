// Package openlineage builds the run events of the OpenLineage specification, 2-0-2, that tell other programs what ran,
// what it read and what it made. It is pure: it knows neither the database nor the network. It owns no tables.
//
// An event names things and counts them. No field of it takes a statement, an error's text, a value of a row or a
// secret; a partition is named only where its key is a time, because other keys are values of rows.
package openlineage

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/lineage"
)

// Run is an attempt of a task that has ended.
type Run struct {
	Namespace string // of the job and of its datasets
	Program   string // version of dagctl

	Org          string // slug
	DAG, Job     string
	Operator     string
	DAGVersion   int
	DAGVersionID uuid.UUID

	TaskID  uuid.UUID
	Attempt int
	Kind    string // of the task
	Started time.Time
	Ended   time.Time
	Type    Type   // how it ended: Complete, Fail or Abort
	Reason  string // why it did not complete: a word such as timeout

	Inputs, Outputs []Dataset
}

// Dataset is a dataset that a run read or made.
type Dataset struct {
	Name      string
	Columns   []Column
	Origins   []Origin // of a dataset that was made, sorted by Column
	Revisions []Revision
	Truncated bool // there are more Revisions
}

// Column is a column with its type as DuckDB writes it.
type Column struct{ Name, Type string }

// Origin says that Column was computed from column Field of a dataset.
type Origin struct {
	Column, Dataset, Field string
	Transform              lineage.Transform
}

// Revision is a revision of a partition. Rows, Bytes and State are those of one that was made.
type Revision struct {
	Generation  uuid.UUID `json:"generation"`
	Partition   string    `json:"partition,omitempty"` // set if it is a time
	Revision    int64     `json:"revision"`
	State       string    `json:"state,omitempty"`
	Rows, Bytes int64     `json:"-"`
}

// Namespace returns the namespace of an org for which none is configured.
func Namespace(org string) string { return "dagctl://" + org }

// RunID returns the id of an attempt: the same whenever it is asked for.
func RunID(task uuid.UUID, attempt int) uuid.UUID {
	return uuid.NewSHA1(task, fmt.Appendf(nil, "attempt %d", attempt))
}

// Events returns the events of a run: that it started, and how it ended.
func Events(r Run) []Event {
	start := r.event(Start, r.Started)
	start.Inputs, start.Outputs = []map[string]any{}, []map[string]any{}

	end := r.event(r.Type, r.Ended)
	if r.Type != Complete {
		end.Run.Facets["dagctl_run"].(facet)["reason"] = r.Reason
	}
	if r.Type == Fail {
		end.Run.Facets["errorMessage"] = r.errorMessage()
	}

	for _, d := range r.Inputs {
		end.Inputs = append(end.Inputs, r.dataset(d))
	}
	for _, d := range r.Outputs {
		made := r.dataset(d)
		if r.Type == Complete {
			made["outputFacets"] = map[string]any{"outputStatistics": statistics(d)}
		}
		end.Outputs = append(end.Outputs, made)
	}
	return []Event{start, end}
}

// event returns an event without datasets.
func (r Run) event(what Type, at time.Time) Event {
	run := facet{
		"_producer": Producer, "_schemaURL": ours + "DagctlRunFacet.json#/$defs/DagctlRunFacet",
		"org": r.Org, "dag": r.DAG, "job": r.Job, "dagVersion": r.DAGVersion, "dagVersionId": r.DAGVersionID,
		"taskId": r.TaskID, "attempt": r.Attempt, "kind": r.Kind,
	}
	parent := standard("1-2-0", "ParentRunFacet")
	parent["run"] = map[string]any{"runId": r.DAGVersionID}
	parent["job"] = map[string]any{"namespace": r.Namespace, "name": r.DAG}
	engine := standard("1-1-1", "ProcessingEngineRunFacet")
	engine["name"], engine["version"] = "dagctl", r.Program

	kind := standard("2-0-4", "JobTypeJobFacet")
	kind["processingType"], kind["integration"], kind["jobType"] = "BATCH", "DAGCTL", "TASK"
	return Event{
		Type: what, Time: at.UTC(), Producer: Producer, SchemaURL: spec + "2-0-2/OpenLineage.json#/$defs/RunEvent",
		Run: About{ID: RunID(r.TaskID, r.Attempt), Facets: map[string]any{
			"dagctl_run": run, "parent": parent, "processing_engine": engine}},
		Job:    Job{r.Namespace, r.DAG + "." + r.Job, map[string]any{"jobType": kind}},
		Inputs: []map[string]any{}, Outputs: []map[string]any{},
	}
}

// errorMessage says that the attempt failed. What it said itself may quote rows, and stays behind the API.
func (r Run) errorMessage() facet {
	f := standard("1-0-1", "ErrorMessageRunFacet")
	f["message"] = fmt.Sprintf("attempt %d of task %s failed: %s", r.Attempt, r.TaskID, r.Reason)
	f["programmingLanguage"] = "unknown"
	if r.Operator == "sql" {
		f["programmingLanguage"] = "SQL"
	}
	return f
}

// dataset returns a dataset with its facets.
func (r Run) dataset(d Dataset) map[string]any {
	facets := map[string]any{}
	if len(d.Columns) > 0 {
		fields := make([]map[string]any, len(d.Columns))
		for i, c := range d.Columns {
			fields[i] = map[string]any{"name": c.Name, "type": enumValues.ReplaceAllString(c.Type, "")}
		}
		schema := standard("1-2-0", "SchemaDatasetFacet")
		schema["fields"] = fields
		facets["schema"] = schema
	}

	if len(d.Origins) > 0 {
		facets["columnLineage"] = r.columnLineage(d.Origins)
	}

	if len(d.Revisions) > 0 {
		revisions := facet{
			"_producer":  Producer,
			"_schemaURL": ours + "DagctlRevisionsDatasetFacet.json#/$defs/DagctlRevisionsDatasetFacet",
			"revisions":  d.Revisions,
		}
		if d.Truncated {
			revisions["truncated"] = true
		}
		facets["dagctl_revisions"] = revisions
	}
	return map[string]any{"namespace": r.Namespace, "name": d.Name, "facets": facets}
}

// enumValues are the values of an ENUM type, which a type's text quotes.
var enumValues = late.Pattern(`\(\s*'(?:[^']|'')*'(?:\s*,\s*'(?:[^']|'')*')*\s*\)`)

// columnLineage returns the facet of the columns that others were computed from.
func (r Run) columnLineage(origins []Origin) facet {
	fields := map[string]any{}
	for _, o := range origins {
		at, _ := fields[o.Column].(map[string]any)
		if at == nil {
			at = map[string]any{"inputFields": []map[string]any{}}
			fields[o.Column] = at
		}
		at["inputFields"] = append(at["inputFields"].([]map[string]any), map[string]any{
			"namespace": r.Namespace, "name": o.Dataset, "field": o.Field,
			"transformations": []map[string]any{{"type": "DIRECT", "subtype": subtypes[o.Transform]}},
		})
	}
	f := standard("1-2-0", "ColumnLineageDatasetFacet")
	f["fields"] = fields
	return f
}

// subtypes are what the specification calls our transforms.
var subtypes = map[lineage.Transform]string{
	lineage.Identity: "IDENTITY", lineage.Expression: "TRANSFORMATION", lineage.Aggregate: "AGGREGATION",
}

// statistics returns how much a run made of a dataset.
func statistics(d Dataset) facet {
	f := standard("1-0-2", "OutputStatisticsOutputDatasetFacet")
	var rows, bytes int64
	for _, r := range d.Revisions {
		rows, bytes = rows+r.Rows, bytes+r.Bytes
	}
	f["rowCount"], f["size"] = rows, bytes
	if d.Truncated {
		delete(f, "rowCount")
		delete(f, "size")
	}
	return f
}

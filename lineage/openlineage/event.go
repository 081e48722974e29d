package openlineage

import (
	"time"

	"github.com/google/uuid"
)

// Producer identifies dagctl as the source of events and facets.
const Producer = "https://github.com/dagctl/dagctl"

// Where the schemas of facets are: those of the specification, and those of dagctl, which are in this package's folder
// schema.
const (
	spec = "https://openlineage.io/spec/"
	ours = "https://raw.githubusercontent.com/dagctl/dagctl/main/lineage/openlineage/schema/1-0-0/"
)

// Type is the transition of a run that an event tells of.
type Type string

// The transitions that dagctl tells of.
const (
	Start    Type = "START"
	Complete Type = "COMPLETE"
	Fail     Type = "FAIL"
	Abort    Type = "ABORT" // it ended without a result, and did not fail
)

// Event is a RunEvent of the specification.
type Event struct {
	Type      Type             `json:"eventType"`
	Time      time.Time        `json:"eventTime"`
	Producer  string           `json:"producer"`
	SchemaURL string           `json:"schemaURL"`
	Run       About            `json:"run"`
	Job       Job              `json:"job"`
	Inputs    []map[string]any `json:"inputs"`
	Outputs   []map[string]any `json:"outputs"`
}

// About is the run of an event.
type About struct {
	ID     uuid.UUID      `json:"runId"`
	Facets map[string]any `json:"facets"`
}

// Job is the job of an event.
type Job struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"` // DAG.JOB
	Facets    map[string]any `json:"facets"`
}

// facet is one facet, by the names of its fields.
type facet map[string]any

// standard returns an empty facet of the specification.
func standard(version, name string) facet {
	return facet{"_producer": Producer, "_schemaURL": spec + "facets/" + version + "/" + name + ".json#/$defs/" + name}
}

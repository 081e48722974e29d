package openlineage

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/lineage"
)

// Received is an event of another producer: of a run, or of a job if Run is the zero id.
type Received struct {
	Type    Type // of a run
	Run     uuid.UUID
	Job     lineage.Outside
	At      time.Time
	Inputs  []ReceivedDataset
	Outputs []ReceivedDataset
}

// Done reports whether what the run makes is made: it completed, or it is one that streams and goes on. What an event
// of a job says without a run holds, too.
func (r Received) Done() bool { return r.Run == uuid.Nil || r.Type == Complete || r.Type == "RUNNING" }

// ReceivedDataset is a dataset that an event names.
type ReceivedDataset struct {
	lineage.Outside
	Origins []ReceivedOrigin // of its columns, if it was made
}

// ReceivedOrigin says that Column was computed from column Field of a dataset.
type ReceivedOrigin struct {
	Column    string
	From      lineage.Outside
	Field     string
	Transform lineage.Transform
}

// longest bounds names, in bytes; mostOrigins the origins of a dataset's columns; mostPairs the pairs of inputs and
// outputs.
const longest, mostOrigins, mostPairs = 500, 10_000, 2000

// types are the transitions of runs that the specification has.
var types = []Type{Start, "RUNNING", Complete, Abort, Fail, "OTHER"}

// sent is the part of an event that is read. Facets that are not named here are ignored.
type sent struct {
	EventType Type                    `json:"eventType"`
	EventTime *string                 `json:"eventTime"`
	Run       *struct{ RunID string } `json:"run"`
	Job       *lineage.Outside        `json:"job"`
	Dataset   json.RawMessage         `json:"dataset"` // of an event of a dataset alone
	Inputs    []sentDataset           `json:"inputs"`
	Outputs   []sentDataset           `json:"outputs"`
}

type sentDataset struct {
	lineage.Outside
	Facets struct {
		ColumnLineage struct {
			Fields map[string]struct {
				InputFields []struct {
					lineage.Outside
					Field           string
					Transformations []struct{ Type, Subtype string }
				}
				TransformationType string // of older versions
			}
		} `json:"columnLineage"`
	}
}

// Receive reads an event: a RunEvent or a JobEvent of the specification, of any version until 2-0-2. It returns nil for
// an event of a dataset alone, which says nothing about lineage. The event came at now.
func Receive(body []byte, now time.Time) (*Received, error) {
	var s sent
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, unreadable(err)
	}
	if s.Job == nil && len(s.Dataset) > 0 {
		return nil, nil
	}

	r := &Received{Type: s.EventType}
	switch {
	case s.EventTime == nil:
		return nil, missing("eventTime")
	case s.Job == nil:
		return nil, missing("job")
	case s.Run != nil && !slices.Contains(types, s.EventType):
		return nil, fault.New(fault.Invalid, "eventType is %q", s.EventType).
			WithHint("one of START, RUNNING, COMPLETE, ABORT, FAIL, OTHER")
	}
	r.Job = *s.Job
	var err error
	if r.At, err = eventTime(*s.EventTime, now); err != nil {
		return nil, err
	}
	if s.Run != nil {
		id, err := uuid.Parse(s.Run.RunID)
		if err != nil || id == uuid.Nil {
			return nil, fault.New(fault.Invalid, "run.runId %q is no UUID", s.Run.RunID)
		}
		r.Run = id
	}

	if err := named("job", r.Job); err != nil {
		return nil, err
	}
	if r.Inputs, err = received("inputs", s.Inputs); err != nil {
		return nil, err
	}
	if r.Outputs, err = received("outputs", s.Outputs); err != nil {
		return nil, err
	}
	if err := r.readColumns(); err != nil {
		return nil, err
	}
	if pairs := len(r.Inputs) * len(r.Outputs); pairs > mostPairs {
		return nil, fault.New(fault.Invalid, "the event has %d pairs of inputs and outputs, and %d are the most", pairs,
			mostPairs).WithHint("tell of each step of the job as a job of its own")
	}
	return r, nil
}

// readColumns adds to the inputs the datasets that columns were computed from: what is made from a dataset is found by
// its inputs, and shown to those who may read them.
func (r *Received) readColumns() error {
	known := map[lineage.Outside]bool{}
	for _, in := range r.Inputs {
		known[in.Outside] = true
	}

	for _, out := range r.Outputs {
		for _, o := range out.Origins {
			if !known[o.From] && o.From != out.Outside {
				known[o.From] = true
				r.Inputs = append(r.Inputs, ReceivedDataset{Outside: o.From})
			}
		}
	}

	if len(r.Inputs) > lineage.MaxEnds {
		return fault.New(fault.Invalid, "the event has %d inputs, with those that only columnLineage names, and %d "+
			"are the most", len(r.Inputs), lineage.MaxEnds)
	}
	return nil
}

// unreadable says in terms of JSON why a body is no event.
func unreadable(err error) error {
	wrong, wants := (*json.UnmarshalTypeError)(nil), "an object"
	if !errors.As(err, &wrong) {
		return fault.New(fault.Invalid, "the body is no OpenLineage event: it is not JSON").
			WithHint("send one RunEvent or JobEvent as a JSON object")
	}
	switch wrong.Type.Kind() {
	case reflect.String:
		wants = "text"
	case reflect.Slice:
		wants = "an array"
	}

	is, _, _ := strings.Cut(wrong.Value, " ") // a number stands behind its kind
	is = map[string]string{"string": "text", "bool": "true or false", "array": "an array", "object": "an object",
		"number": "a number"}[is]
	field := strings.ReplaceAll(wrong.Field, "Outside.", "")
	if field == "" {
		field = "it"
	}
	return fault.New(fault.Invalid, "the body is no OpenLineage event: %s is %s, not %s", field, is, wants).
		WithHint("send one RunEvent or JobEvent as a JSON object")
}

// ahead is how far the time of an event may be in the future, as clocks differ; until it has come, the event counts as
// one of now. A later time is a mistake.
const ahead = 24 * time.Hour

func eventTime(text string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return at, fault.New(fault.Invalid, "eventTime %.40q is no time", text).
			WithHint("write it as RFC 3339 has it, such as 2026-01-31T12:00:00Z")
	case at.After(now.Add(ahead)):
		return at, fault.New(fault.Invalid, "eventTime %s is more than a day ahead", text).
			WithHint("send the time of the event; check the clock of the machine that sends it")
	}
	return at, nil
}

func missing(field string) error {
	return fault.New(fault.Invalid, "the event has no %s", field).
		WithHint("send a RunEvent or a JobEvent of OpenLineage 2-0-2")
}

// named refuses a name that is empty or too long, or that has characters which are not printed.
func named(where string, o lineage.Outside) error {
	for _, part := range []struct{ field, text string }{{"namespace", o.Namespace}, {"name", o.Name}} {
		if !isName(part.text) {
			return fault.New(fault.Invalid, "%s.%s is not a text of 1 to %d bytes without control characters", where,
				part.field, longest)
		}
	}
	return nil
}

// isName reports whether a text can be the name of something.
func isName(text string) bool {
	unprintable := strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
	return text != "" && len(text) <= longest && !unprintable
}

func received(where string, all []sentDataset) (datasets []ReceivedDataset, err error) {
	if len(all) > lineage.MaxEnds {
		return nil, fault.New(fault.Invalid, "the event has %d %s, and %d are the most", len(all), where,
			lineage.MaxEnds)
	}
	for i, s := range all {
		at := fmt.Sprintf("%s[%d]", where, i)
		if err := named(at, s.Outside); err != nil {
			return nil, err
		}
		d := ReceivedDataset{Outside: s.Outside}
		if d.Origins, err = origins(at+".facets.columnLineage", s); err != nil {
			return nil, err
		}
		datasets = append(datasets, d)
	}
	return datasets, nil
}

// origins returns what the columns of a dataset were computed from.
func origins(where string, s sentDataset) (list []ReceivedOrigin, err error) {
	for column, made := range s.Facets.ColumnLineage.Fields {
		for _, in := range made.InputFields {
			if err := named(where, in.Outside); err != nil {
				return nil, err
			}
			if !isName(column) || !isName(in.Field) {
				return nil, fault.New(fault.Invalid, "%s names a column that is not a text of 1 to %d bytes without "+
					"control characters", where, longest)
			}

			o := ReceivedOrigin{Column: column, From: in.Outside, Field: in.Field, Transform: lineage.Expression}
			for _, t := range in.Transformations {
				o.Transform = transform(t.Type, t.Subtype)
			}
			if len(in.Transformations) == 0 && made.TransformationType == "IDENTITY" {
				o.Transform = lineage.Identity
			}
			list = append(list, o)
		}
	}

	if len(list) > mostOrigins {
		return nil, fault.New(fault.Invalid, "%s has %d origins of columns, and %d are the most", where, len(list),
			mostOrigins)
	}
	return list, nil
}

// transform returns what the type and subtype of a transformation come to.
func transform(kind, subtype string) lineage.Transform {
	switch {
	case kind == "DIRECT" && subtype == "IDENTITY", kind == "IDENTITY":
		return lineage.Identity
	case subtype == "AGGREGATION":
		return lineage.Aggregate
	}
	return lineage.Expression
}

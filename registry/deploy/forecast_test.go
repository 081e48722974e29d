package deploy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

// sourcesOfForecast are what the cases of TestForecast read: two datasets by day, one as a whole.
const sourcesOfForecast = `name: f
jobs:
  - name: a
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: a, pattern: "{date}.csv", format: csv }
  - name: b
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: b, pattern: "{date}.csv", format: csv }
  - name: whole
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: none
    config: { path: w.csv, format: csv }
`

func TestForecast(t *testing.T) {
	t.Parallel()
	ops, err := standard.New(operators.Options{Engines: enginetest.Engines(),
		Command: operators.CommandOptions{Every: true}, Threads: 1})
	require.NoError(t, err)
	catalog := ops.Catalog([]string{"dispatcher"})

	var january []string
	for day := range 31 {
		january = append(january, fmt.Sprintf("2026-01-%02d", day+1))
	}
	for name, c := range map[string]struct {
		job     string
		have    map[string]partitions
		want    []string
		unknown bool
	}{
		"the same days": {
			job:  "inputs: [{ from: { job: a } }]",
			have: map[string]partitions{"a": {keys: january[:2]}},
			want: january[:2],
		},
		"nothing yet": {
			job:  "inputs: [{ from: { job: a } }]",
			have: map[string]partitions{"a": {}},
		},
		"an input that only its source knows": {
			job:     "inputs: [{ from: { job: a } }]",
			have:    map[string]partitions{"a": {unknown: true}},
			unknown: true,
		},
		"a complete month": {
			job:  "inputs: [{ from: { job: a }, map: { window: month } }]",
			have: map[string]partitions{"a": {keys: append(january[:31:31], "2026-02-01")}},
			want: []string{"2026-01"},
		},
		"a month of the available days": {
			job:  "inputs: [{ from: { job: a }, map: { window: month, require: available } }]",
			have: map[string]partitions{"a": {keys: append(january[:31:31], "2026-02-01")}},
			want: []string{"2026-01", "2026-02"},
		},
		"all triggering inputs": {
			job:  "inputs: [{ from: { job: a } }, { from: { job: b } }]\n    trigger: all",
			have: map[string]partitions{"a": {keys: january[:3]}, "b": {keys: january[1:4]}},
			want: january[1:3],
		},
		"any triggering input": {
			job:  "inputs: [{ from: { job: a } }, { from: { job: b } }]\n    trigger: any",
			have: map[string]partitions{"a": {keys: january[:3]}, "b": {keys: january[1:4]}},
			want: january[:4],
		},
		"a latest input that exists": {
			job:  "inputs: [{ from: { job: a } }, { from: { job: whole }, map: latest }]",
			have: map[string]partitions{"a": {keys: january[:2]}, "whole": {keys: []string{"all"}}},
			want: january[:2],
		},
		"a latest input that is missing": {
			job:  "inputs: [{ from: { job: a } }, { from: { job: whole }, map: latest }]",
			have: map[string]partitions{"a": {keys: january[:2]}, "whole": {}},
		},
		"a latest input that only its source knows": {
			job:  "inputs: [{ from: { job: a } }, { from: { job: whole }, map: latest }]",
			have: map[string]partitions{"a": {keys: january[:2]}, "whole": {unknown: true}},
			want: january[:2],
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := sourcesOfForecast + "  - name: out\n    operator: command\n    config: { argv: [x] }\n    " + c.job
			doc, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text)}, catalog)
			require.Empty(t, problems)

			f := &forecast{doc: doc, sources: c.have, done: map[string]partitions{}}
			got := f.of("out")
			require.Equal(t, c.unknown, got.unknown)
			require.Equal(t, c.want, got.keys)
		})
	}
}

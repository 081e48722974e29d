package dag

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestFirst(t *testing.T) {
	doc, ps := Parse(File{Name: "dag.yaml", Text: []byte(example), Files: fstest.MapFS{"sql/airport_delays.sql": {Data: []byte("select 1")}}}, testCatalog())
	fmt.Println(ps.Pretty())
	require.Empty(t, ps)
	fmt.Printf("%+v\n", doc.Jobs)
}

const example = `
name: us-flights                     # ^[a-z][a-z0-9_-]{0,62}$
description: Delays per airport and route, one partition a day.
vars: { data: { default: data } }    # ${var.data}; set by --var, target or environment file at deploy; recorded and hashed
defaults: { runtime: dispatcher, max_attempts: 3, timeout_seconds: 600 }

jobs:
  - name: flights_raw
    operator: file_source
    source: { kind: poll, every: 10s }                     # on_deploy: true is the default
    config: { path: "${var.data}/flights", pattern: "{date}.csv.gz", format: csv }
    partition_by: { time: day }

  - name: airport_delays
    runtime: ecs_platform
    operator: sql
    inputs:
      - { from: { job: flights_raw }, as: flights }
      - { from: { dataset: airports }, as: airports, map: latest }    # another DAG's dataset; a dimension: never triggers
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query_file: sql/airport_delays.sql }
    checks:
      - not_null: [iata]
      - row_count: { min: 1 }
      - { name: known_airports, sql: "SELECT * FROM output WHERE name IS NULL", severity: warn }
    scaling: { max_concurrency: 4 }

publish:
  airport_delays: { from: { job: airport_delays }, description: "...", owner: ops@example.com, tags: [flights], columns: { iata: "IATA code" }, due: { within: 2h } }
`

package dispatchertest

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/webhook"
)

// Raw is the job that most of these DAGs begin with. It lists what a test puts under "raw", a partition a day.
const Raw = `  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
`

// Edit returns a DAG with some texts replaced: old, new, and so on.
func Edit(yaml string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(yaml) }

// Pair is raw → made, a partition a day, both quick.
const Pair = `
name: pair
jobs:
` + Raw + `  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: m }
publish:
  pair_made: { from: { job: made } }
`

// Upkept is Pair under another name. It publishes letters_made.
var Upkept = Edit(Pair, "name: pair", "name: letters", "pair_made", "letters_made")

// Tagged returns Upkept with another definition of its second job.
func Tagged(tag string) string { return Edit(Upkept, "tag: m", "tag: "+tag) }

// InTables is Upkept with the rows of made in PostgreSQL.
var InTables = Edit(Upkept, "    config: { tag: m }\n", "    storage: postgres\n    config: { tag: one }\n")

// January is Upkept, without further attempts, and a third job: summed, from a partition a day to one of all.
var January = Edit(Upkept, "    config: { tag: m }\n", `    max_attempts: 1
    config: { tag: m }
  - name: summed
    operator: hook
    inputs: [{ from: { job: made } }]
    partition_by: none
    execution_strategy: PerUpdate
`)

// MonthWorld returns a world that serves January with some of its days.
func MonthWorld(t *testing.T, days ...string) *World {
	w := NewWorld(t)
	for _, day := range days {
		w.Probe.Put("raw", "2024-01-"+day, day)
	}
	w.Serve(January)
	return w
}

// Checked is raw → good → count, with a gating check on good.
const Checked = `
name: checked
jobs:
` + Raw + `  - name: good
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content, length(content) AS n FROM raw" }
    checks:
      - { name: short, sql: "SELECT * FROM output WHERE n > 3" }
  - name: count
    operator: sql
    inputs: [{ from: { job: good } }]
    partition_by: none
    config: { query: "SELECT sum(n)::BIGINT AS n FROM good" }
publish:
  checked_good: { from: { job: good } }
  checked_count: { from: { job: count } }
`

// Letters is raw → upper → joined, and raw → other.
const Letters = `
name: letters
jobs:
` + Raw + `  - name: upper
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT upper(content) AS content FROM raw" }
  - name: other
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content || '!' AS content FROM raw" }
  - name: joined
    operator: sql
    inputs: [{ from: { job: upper } }]
    partition_by: none
    config: { query: "SELECT string_agg(content, '' ORDER BY content) AS content FROM upper" }
publish:
  letters_upper: { from: { job: upper } }
  letters_joined: { from: { job: joined } }
`

// LettersWorld returns a world with two days for Letters, which is not deployed yet.
func LettersWorld(t *testing.T) *World {
	t.Helper()
	w := NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	return w
}

// Consumer is a DAG that reads a dataset of Letters.
const Consumer = `
name: words
jobs:
  - name: shout
    operator: sql
    inputs: [{ from: { dataset: letters_upper }, as: up }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT content || '!!' AS content FROM up" }
publish:
  shouts: { from: { job: shout } }
`

// Mail is a DAG whose jobs run when asked.
const Mail = `
name: mail
jobs:
  - name: send
    operator: hook
    source: { kind: manual }
    outputs: 0
    payload_schema: { type: object, required: [to], properties: { to: { type: string }, n: { type: integer } } }
  - name: once
    operator: hook
    source: { kind: manual }
    outputs: 0
    dedupe: [to]
  - name: load
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: { tag: l }
publish:
  loaded: { from: { job: load } }
`

// Payload encodes the payload of a task.
func Payload(v any) json.RawMessage { b, _ := json.Marshal(v); return b }

// FirstDay is the one partition of PairWorld.
const FirstDay = "2024-01-01"

// PairWorld returns a world that serves Pair, with "a" as the content of raw.
func PairWorld(t *testing.T) *World {
	t.Helper()
	w := NewWorld(t)
	w.Probe.Put("raw", FirstDay, "a")
	w.Serve(Pair)
	return w
}

// HookDAG is shop, whose jobs run upon deliveries: signed ones to shop/orders, unsigned ones to a
// path that nobody guesses.
const HookDAG = `name: shop
jobs:
  - name: orders
    operator: hook
    source: { kind: webhook, path: shop/orders, secret: ORDERS }
  - name: open
    operator: hook
    source: { kind: webhook, path: shop/5f2a8c0e4b7d41f69a3c2e1d0b9f8a76 }
    outputs: 0
`

// BoundTo binds a secret to jobs.
func BoundTo(jobs ...string) authz.Binding { return authz.Binding{AddJobs: jobs} }

// Signed returns a delivery to shop/orders, signed with a key.
func Signed(key, id string, at time.Time, body string) sources.Delivery {
	stamp := strconv.FormatInt(at.Unix(), 10)
	return sources.Delivery{Org: "acme", Path: "shop/orders", ID: id, Timestamp: stamp, Signature: webhook.Sign(key, id,
		stamp, []byte(body)), Body: []byte(body)}
}

// Limited is one job at most MAX of whose tasks run at the same time.
const Limited = `
name: limited
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    max_attempts: 20
    retry: { initial_seconds: 0.01, max_seconds: 0.01 }
    config: { list: raw }
    scaling: { max_concurrency: MAX }
`

// WordsDAG reads letters_made of Upkept.
const WordsDAG = `
name: words
jobs:
  - name: spelled
    operator: hook
    inputs: [{ from: { dataset: letters_made } }]
    partition_by: { time: day }
    execution_strategy: PerPartition
    config: { tag: w }
publish:
  words: { from: { job: spelled } }
`

// WorkDAG is work, whose jobs run outside of the servers.
const WorkDAG = `
name: work
jobs:
  - { name: mails, operator: handler, runtime: poll, source: { kind: manual }, outputs: 0, config: { handler: "email:send" } }
  - { name: texts, operator: handler, runtime: poll, source: { kind: manual }, outputs: 0, config: { handler: "sms:send" }, retry: { initial_seconds: 60 } }
  - { name: loads, operator: hook, runtime: poll, source: { kind: manual }, outputs: 0 }
  - { name: few, operator: hook, runtime: poll, source: { kind: manual }, outputs: 0, scaling: { max_concurrency: 1 } }
  - { name: there, operator: hook, runtime: lambda, source: { kind: manual }, outputs: 0 }
`

// Landed reads files as they come and sums each.
const Landed = `
name: landed
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv, types: { n: INTEGER } }
  - name: sums
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT sum(n)::BIGINT AS n FROM raw" }
publish:
  landed_sums: { from: { job: sums } }
`

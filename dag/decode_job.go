package dag

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
)

// Defaults of job fields. The code below has those that depend on other fields.
const (
	DefaultRuntime          = "dispatcher"
	DefaultMaxAttempts      = 5
	DefaultTimeout          = time.Hour
	DefaultHeartbeatTimeout = time.Minute
	DefaultIdleTimeout      = "5m"
)

// DefaultRetry is the back-off of jobs that do not state one.
var DefaultRetry = Retry{Initial: 2 * time.Second, Max: 5 * time.Minute, Multiplier: 5}

// job decodes the fields of a job. link adds what follows from other jobs.
func (d *decoder) job(v value) Job {
	j := Job{
		Name:           v.get("name").text(),
		RenamedFrom:    v.get("renamed_from").text(),
		Description:    v.get("description").text(),
		Runtime:        cmp.Or(d.setting(v, "runtime").text(), DefaultRuntime),
		Operator:       v.get("operator").text(),
		CodeVersion:    v.get("code_version").text(),
		UpdateStrategy: UpdateStrategy(cmp.Or(v.get("update_strategy").text(), string(Replace))),
		UniqueKey:      v.get("unique_key").texts(),
		Dedupe:         v.get("dedupe").texts(),
		Enqueues:       v.get("enqueues").texts(),
		TaskRetention:  d.setting(v, "task_retention").duration(),
		MaxConcurrency: int(v.get("scaling").get("max_concurrency").integer()),
		Priority:       int(d.setting(v, "priority").integer()),
		ConcurrencyKey: v.get("concurrency_key").text(),
		StateKey:       v.get("state_key").text(),
		MaxAttempts:    int(cmp.Or(d.setting(v, "max_attempts").integer(), DefaultMaxAttempts)),
		Position:       v.position(d.file),
	}

	d.activation(v, &j)
	d.execution(v, &j)
	j.Outputs = outputs(v.get("outputs"))
	j.PartitionBy, j.SplitBy = partitioning(v.get("partition_by")), splitColumn(v.get("partition_by"))
	d.storage(v, &j)
	d.source(v, &j)
	d.payload(v, &j)
	for _, input := range v.get("inputs").items() {
		j.Inputs = append(j.Inputs, d.input(input, &j))
	}

	op, known := d.operator(v, &j)
	j.UDF = d.udf(v.get("udf"))
	d.config(v, &j, op, known)
	d.effect(v.get("effect"), &j, op)
	d.checks(v.get("checks"), &j)
	d.secretsAllowed(v, &j)
	d.split(v, &j, op)
	d.asked(v, &j, op)
	return j
}

// effect decodes whether a job changes what is outside.
func (d *decoder) effect(stated value, j *Job, op OperatorSpec) {
	j.Effect = Effect(cmp.Or(stated.text(), string(op.Effect), string(EffectInternal)))
	if op.Effect == EffectExternal && j.Effect == EffectInternal {
		d.node(stated.node, CodeConflict, "operator %s changes what is outside, so the job is not internal", op.Name).
			suggest("leave `effect: internal` out")
	}
}

// secretsAllowed reports secrets of a job that must not get any.
func (d *decoder) secretsAllowed(v value, j *Job) {
	switch {
	case len(j.Secrets) == 0:
	case j.UDF != nil:
		d.node(v.key("udf"), CodeConflict, "a job with a udf gets no secrets, but its config names %s",
			quoted(j.Secrets))
	case !Trusted(j.Runtime, j.Operator):
		d.node(cmp.Or(d.setting(v, "runtime").node, v.node), CodeConflict,
			"runtime %s is for code that users upload and gets no secrets, but the config names %s",
			j.Runtime, quoted(j.Secrets))
	}
}

// setting returns a field of the job or, if the job does not have it, of `defaults`.
func (d *decoder) setting(job value, name string) value {
	if job.has(name) {
		return job.get(name)
	}
	return d.defaults.get(name)
}

// activation derives whether a source or inputs create the job's tasks, and reports fields for the other kind.
func (d *decoder) activation(v value, j *Job) {
	source, inputs := v.has("source") || j.Operator == Seed, v.has("inputs")
	j.Activation = ActivationSource
	if inputs {
		j.Activation = ActivationReactive
	}
	if source == inputs {
		return // the grammar has reported it
	}

	has, owner := "`inputs`", "a source"
	misplaced := []string{"bootstrap", "payload_schema", "payload_schema_file", "dedupe"}
	if source {
		has, owner = "a `source`", "inputs"
		misplaced = []string{"trigger", "execution_strategy", "idle_timeout"}
	}
	if stated := v.get("activation"); stated.text() != "" && stated.text() != string(j.Activation) {
		d.node(stated.node, CodeConflict, "`activation` is %s, but the job has %s", stated.text(), has).
			suggest("leave `activation` out; it follows from the other fields")
	}
	for _, name := range misplaced {
		if key := v.key(name); key != nil {
			d.node(key, CodeConflict, "`%s` is for jobs with %s", name, owner)
		}
	}
}

// execution decodes the timeouts, the back-off and what an append needs.
func (d *decoder) execution(v value, j *Job) {
	j.Timeout = cmp.Or(d.setting(v, "timeout_seconds").seconds(), DefaultTimeout)
	if v.get("source").get("kind").text() == "always_on" {
		j.Timeout = v.get("timeout_seconds").seconds() // runs until drained, unless the job itself has one
	}
	j.HeartbeatTimeout = cmp.Or(d.setting(v, "heartbeat_timeout_seconds").seconds(), DefaultHeartbeatTimeout)

	retry := d.setting(v, "retry")
	j.Retry = Retry{
		Initial:    cmp.Or(retry.get("initial_seconds").seconds(), DefaultRetry.Initial),
		Max:        cmp.Or(retry.get("max_seconds").seconds(), DefaultRetry.Max),
		Multiplier: cmp.Or(retry.get("multiplier").number(), DefaultRetry.Multiplier),
	}
	if j.Retry.Initial > j.Retry.Max {
		d.node(retry.node, CodeValue, "`retry` starts at %s, which is longer than its maximum of %s",
			j.Retry.Initial, j.Retry.Max)
	}

	if j.Activation == ActivationReactive {
		j.IdleTimeout = cmp.Or(d.setting(v, "idle_timeout").text(), DefaultIdleTimeout)
	}
	if j.UpdateStrategy == Append && len(j.UniqueKey) == 0 {
		d.node(v.get("update_strategy").node, CodeMissing, "`update_strategy: append` needs `unique_key`").
			suggest("name the columns that make a row unique, such as `unique_key: [id]`")
	}
	d.distinct(v.get("unique_key"), "column")
}

// distinct reports entries that appear twice in a list.
func (d *decoder) distinct(list value, what string) {
	seen := map[string]bool{}
	for _, item := range list.items() {
		if item.scalar() && seen[item.text()] {
			d.node(item.node, CodeDuplicate, "%s %q appears twice", what, item.text())
		}
		seen[item.text()] = true
	}
}

// outputs returns the names of the outputs: those listed, or their indices.
func outputs(v value) []string {
	if v.present() && v.node.Kind == yaml.SequenceNode {
		return append([]string{}, v.texts()...)
	}
	count := 1
	if v.scalar() {
		count = int(min(max(v.integer(), 0), MaxOutputs))
	}
	names := make([]string, count)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}

func partitioning(v value) Partitioning {
	switch {
	case v.text() == string(ByKey):
		return Partitioning{Kind: ByKey}
	case v.has("time"):
		return Partitioning{
			Kind:     ByTime,
			Unit:     TimeUnit(v.get("time").text()),
			Timezone: cmp.Or(v.get("timezone").text(), "UTC"),
		}
	case v.has("range"):
		return Partitioning{Kind: ByRange, Size: v.get("range").integer(), Column: v.get("column").text()}
	case v.has("cursor"):
		return Partitioning{Kind: ByCursor, Column: v.get("cursor").text()}
	}
	return Partitioning{}
}

// storage decodes `storage`: one for all outputs, or a list with one for each.
func (d *decoder) storage(v value, j *Job) {
	s := d.setting(v, "storage")
	d.distinct(v.get("outputs"), "output")

	if !s.present() || s.node.Kind != yaml.SequenceNode {
		for range j.Outputs {
			j.Storage = append(j.Storage, storageOf(s))
		}
		return
	}
	entries, outputs := len(s.items()), len(j.Outputs)
	if entries != outputs {
		d.node(s.node, CodeValue, "`storage` has %d %s, but the job has %d %s",
			entries, plural(entries, "entry", "entries"), outputs, plural(outputs, "output", "outputs"))
	}
	for _, item := range s.items() {
		j.Storage = append(j.Storage, storageOf(item))
	}
}

func storageOf(v value) Storage {
	if v.has("postgres") {
		s := Storage{Kind: StoragePostgres}
		for _, index := range v.get("postgres").get("indexes").items() {
			s.Indexes = append(s.Indexes, index.texts())
		}
		return s
	}
	return Storage{Kind: StorageKind(cmp.Or(v.text(), string(StorageParquet)))}
}

func (d *decoder) source(v value, j *Job) {
	if j.Operator == Seed {
		j.Source = &Source{Kind: SourceDeploy, OnDeploy: true}
	} else if v.has("source") {
		s := v.get("source")
		j.Source = &Source{
			Kind:     s.get("kind").text(),
			Schedule: s.get("schedule").text(),
			Timezone: s.get("timezone").text(),
			Start:    s.get("start").text(),
			Catchup:  s.get("catchup").boolean(false),
			Every:    s.get("every").duration(),
			Path:     s.get("path").text(),
			Secret:   s.get("secret").text(),
			OnDeploy: s.get("on_deploy").boolean(s.get("kind").text() == "poll" || s.has("first_partition")),

			FirstPartition: s.get("first_partition").text(),
			Lookback:       int(s.get("lookback").integer()),
		}

		if j.Source.Kind == "cron" {
			j.Source.Timezone = cmp.Or(j.Source.Timezone, "UTC")
		}
		d.webhook(s, j)
		op, known := d.cat.Operators[j.Operator]
		reads := s.has("on_deploy") && j.Source.OnDeploy && j.Source.Kind == "manual"
		if known && reads && !op.Replayable && !j.Asked() {
			d.node(s.key("on_deploy"), CodeConflict, "`on_deploy` has nothing to read: operator %s does not list what "+
				"there is, so a manual job of it runs only when somebody asks for it", j.Operator).
				suggest("leave it out; `dagctl run` makes its tasks, and a source of kind cron or poll runs by itself")
		}
	}
	if v.has("bootstrap") {
		j.Bootstrap = &Bootstrap{ResetOutputs: v.get("bootstrap").get("reset_outputs").boolean(false)}
	}
}

// unguessable is the length that the last part of a webhook's path must have if no signature protects the webhook:
// 128 bits in hexadecimal digits, and more in other alphabets.
const unguessable = 32

// webhook checks the rules for webhooks that are beyond the grammar.
func (d *decoder) webhook(s value, j *Job) {
	if j.Source.Kind != "webhook" {
		return
	}

	path := s.get("path")
	last := j.Source.Path[strings.LastIndexByte(j.Source.Path, '/')+1:]
	if path.scalar() && !s.has("secret") && len(last) < unguessable {
		d.node(path.node, CodeConflict, "a webhook without a `secret` needs a path that cannot be guessed: "+
			"its last part must have %d characters or more", unguessable).
			suggest("add `secret: NAME`, or end the path with the output of `openssl rand -hex 16`")
	}
	if k := j.PartitionBy.Kind; k == ByKey || k == ByRange {
		d.node(s.get("kind").node, CodeConflict, "the deliveries of a webhook have no partition key: "+
			"`partition_by` must be a unit of time, a cursor or none")
	}
}

// asked reports what does not go together with a source that is asked for its partitions.
func (d *decoder) asked(v value, j *Job, op OperatorSpec) {
	s := v.get("source")
	if !j.Asked() {
		d.lookback(s, j, op)
		return
	}
	key := s.key("first_partition")

	switch {
	case j.PartitionBy.Kind != ByTime:
		d.node(key, CodeConflict, "a source is asked for partitions of time, and job %q has none", j.Name).
			suggest("add `partition_by: { time: day }`, or leave `first_partition` out")
		return
	case j.Splits():
		d.node(key, CodeConflict, "one task of job %q makes all partitions: it splits its rows", j.Name).
			suggest("leave `first_partition` out, or `column` to be asked for each partition")
	case op.Replayable:
		d.node(key, CodeConflict, "operator %s finds by itself what there is to read", op.Name).
			suggest("leave `first_partition` out")
	case len(j.Outputs) == 0 || j.Effect == EffectExternal:
		d.node(key, CodeConflict, "job %q acts outside dagctl, so no build asks it for partitions", j.Name).
			suggest("leave `first_partition` out")
	case j.UpdateStrategy == Append:
		d.node(key, CodeConflict, "a partition that a source is asked for is made as a whole, and not appended to").
			suggest("leave `update_strategy` and `unique_key` out")
	case len(j.PayloadSchema) > 0 || len(j.Dedupe) > 0:
		d.node(key, CodeConflict, "a task that is asked for a partition has no payload").
			suggest("leave `payload_schema` and `dedupe` out")
	}

	if first := s.get("first_partition"); !j.PartitionBy.Unit.misspelled() {
		if err := j.PartitionBy.Valid(first.text()); err != nil {
			d.node(first.node, CodeValue, "`first_partition`: %s", fault.Text(err))
		}
	}
}

// lookback reports a lookback of a source that is not asked for partitions.
func (d *decoder) lookback(s value, j *Job, op OperatorSpec) {
	key := s.key("lookback")
	switch {
	case key == nil || s.has("first_partition") || !slices.Contains([]string{"cron", "poll"}, j.Source.Kind):
		// what is wrong with the others has been said
	case j.Splits():
		d.node(key, CodeConflict, "one task of job %q reads everything each time, late rows too: it splits its rows",
			j.Name).suggest("leave `lookback` out")
	case op.Replayable:
		d.node(key, CodeConflict, "operator %s finds by itself what has changed, late rows too", op.Name).
			suggest("leave `lookback` out")
	case j.PartitionBy.Kind != ByTime:
		d.node(key, CodeConflict, "`lookback` reads partitions of time again, and job %q has none", j.Name).
			suggest("leave it out: the source is read as a whole each time")
	default:
		d.node(key, CodeConflict, "`lookback` asks for partitions again, and this source is asked for none").
			suggest("add `first_partition`, the key of the first partition that it can make")
	}
}

// payload decodes the schema of a manual or timer job's payload, and the fields that deduplicate payloads.
func (d *decoder) payload(v value, j *Job) {
	inline, file := v.get("payload_schema"), v.get("payload_schema_file")
	if inline.present() && file.present() {
		d.node(v.key("payload_schema_file"), CodeConflict,
			"`payload_schema` and `payload_schema_file` exclude each other")
	}
	if j.Source != nil && !slices.Contains([]string{"manual", "timer"}, j.Source.Kind) {
		for _, name := range []string{"payload_schema", "payload_schema_file", "dedupe"} {
			if key := v.key(name); key != nil {
				d.node(key, CodeConflict, "`%s` is for sources of kind manual or timer", name)
			}
		}
	}
	d.distinct(v.get("dedupe"), "field")

	switch {
	case inline.present():
		text, err := json.Marshal(inline.json())
		if err == nil {
			j.PayloadSchema = d.payloadSchema(text, inline, "`payload_schema`")
		}
	case file.scalar():
		if text, ok := d.readText(file); ok {
			j.PayloadSchema = d.payloadSchema(text, file, file.text())
		}
	}
	d.dedupe(v.get("dedupe"), j)
}

// payloadSchema checks that a text is a JSON Schema, and returns it without white space.
func (d *decoder) payloadSchema(text []byte, place value, name string) json.RawMessage {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		d.node(place.node, CodeValue, "%s is not JSON: %s", name, err)
		return nil
	}
	if err := literal.Numbers(text); err != nil {
		d.node(place.node, CodeValue, "%s: %s", name, err)
		return nil
	}
	if _, err := compileSchema(document); err != nil {
		d.node(place.node, CodeValue, "%s is not a JSON Schema: %s", name, err)
		return nil
	}
	schema, _ := json.Marshal(document)
	return schema
}

// dedupe checks that the fields of `dedupe` are in the payload, if its schema lists fields.
func (d *decoder) dedupe(v value, j *Job) {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(j.PayloadSchema, &schema) != nil || schema.Properties == nil {
		return
	}
	for _, item := range v.items() {
		if _, ok := schema.Properties[item.text()]; !ok {
			d.node(item.node, CodeReference, "the payload has no field %q", item.text()).
				nearest(item.text(), sortedKeys(schema.Properties))
		}
	}
}

// operator returns the job's operator, and checks that it suits the job and its runtime.
func (d *decoder) operator(v value, j *Job) (OperatorSpec, bool) {
	if !v.get("operator").scalar() {
		return OperatorSpec{}, false
	}
	mapped := d.cat.Runtimes == nil || slices.Contains(d.cat.Runtimes, j.Runtime)
	if !mapped {
		place := cmp.Or(d.setting(v, "runtime").node, v.node)
		d.node(place, CodeReference, "this server maps no runtime %q", j.Runtime).
			suggest("use one of: %s", strings.Join(d.cat.Runtimes, ", "))
	}

	op, ok := d.cat.Operators[j.Operator]
	place := v.get("operator").node
	if !ok {
		d.node(place, CodeReference, "there is no operator %q", j.Operator).
			nearest(j.Operator, sortedKeys(d.cat.Operators))
		return OperatorSpec{}, false
	}
	j.OperatorVersion = op.Version

	switch {
	case v.has("source") && !v.has("inputs") && !op.Source:
		d.node(place, CodeConflict, "operator %s cannot be a source; it needs `inputs`", j.Operator)
	case v.has("inputs") && !v.has("source") && !op.Reactive:
		d.node(place, CodeConflict, "operator %s takes no inputs; it needs a `source`", j.Operator)
	}
	if mapped && op.Runtimes != nil && !slices.Contains(op.Runtimes, j.Runtime) {
		runs := "it runs on: " + strings.Join(op.Runtimes, ", ")
		if len(op.Runtimes) == 0 {
			runs = "no runtime of this server runs it: its config maps workers' runtimes, such as `python: poll`"
		}
		d.node(place, CodeConflict, "operator %s does not run on %s", j.Operator, j.Runtime).suggest("%s", runs)
	}
	return op, true
}

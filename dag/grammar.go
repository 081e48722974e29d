package dag

import (
	"errors"
	"fmt"
	"math"
	"net/mail"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dagctl/dagctl/internal/late"
)

// The grammar of a DAG file, field by field, in the order in which Format writes them. The rules over several fields
// are in the decode and link files.

const namePattern = `^[a-z][a-z0-9_-]{0,62}$`

var (
	nameShape = pattern(namePattern,
		"a name starts with a lowercase letter and has only lowercase letters, digits, _ and -, at most 63 characters")
	datasetName = pattern(`^[a-z][a-z0-9_]{0,127}$`,
		"a dataset name starts with a lowercase letter and has only lowercase letters, digits and _, "+
			"at most 128 characters")
	relationName = pattern(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`,
		"a relation name starts with a letter or _ and has only letters, digits and _, at most 63 characters")
	variableName = pattern(`^[a-z][a-z0-9_]{0,62}$`,
		"a variable name starts with a lowercase letter and has only lowercase letters, digits and _, "+
			"at most 63 characters")
	secretName = pattern(`^[A-Za-z][A-Za-z0-9_.-]{0,126}$`,
		"a secret name starts with a letter and has only letters, digits, _, . and -, at most 127 characters")
	runtimeName = pattern(`^[a-z][a-z0-9_-]{0,62}$`,
		"a runtime name starts with a lowercase letter and has only lowercase letters, digits, _ and -")
	operatorName = pattern(`^[a-z][a-z0-9_]{0,62}$`,
		"an operator name starts with a lowercase letter and has only lowercase letters, digits and _")
	pathShape = pattern(`^[A-Za-z0-9][A-Za-z0-9/_.-]{0,199}$`,
		"a path starts with a letter or digit and has only letters, digits, /, _, . and -")

	columnName = textShape{longest: 128}
	sentence   = textShape{longest: 4000}
	shortText  = textShape{longest: 200}
	filePath   = textShape{longest: 500}
	timezone   = textShape{longest: 64, valid: validTimezone}
	duration   = textShape{pattern: durationPattern, rule: durationRule, valid: validDuration}

	timeUnit      = textShape{enum: texts(TimeUnits), instead: insteadOfUnit}
	checkSeverity = oneOf("error", "warn")
	strategyShape = textShape{
		enum: []string{string(PerUpdate), string(PerPartition)},
		instead: func(text string) string {
			if text == "Bulk" {
				return "Bulk is not supported; the operator range_aggregator collects updates into ranges"
			}
			return ""
		},
	}
	columnList      = listShape{of: columnName, min: 1, max: 64, single: true}
	outputReference = choiceShape{
		want:    "the index or the name of an output",
		options: []shape{whole(0, MaxOutputs-1), nameShape},
	}
	outputField = field{
		name: "output", of: outputReference,
		doc: "Which of its outputs, by index or name; needed if it has several.",
	}

	fromJob = objectShape{what: "`from`", fields: []field{
		{name: "job", of: nameShape, doc: "A job of this DAG.", required: true},
		outputField,
	}}
	fromShape = objectShape{
		what:  "`from`",
		oneOf: []string{"job", "dataset"},
		needs: map[string]string{"output": "job"},
		fields: []field{
			{name: "job", of: nameShape, doc: "A job of this DAG."},
			outputField,
			{name: "dataset", of: datasetName, doc: "A published dataset of another DAG."},
		},
	}
	secretReference = objectShape{what: "a secret", fields: []field{
		{name: "secret", of: secretName, doc: "The name of a secret of the org.", required: true},
	}}
)

const durationRule = "a duration is a number and a unit, such as 90s, 15m, 2h, 30d or 1w"

var documentShape = objectShape{what: "a DAG", doc: "A DAG of jobs that read and write datasets.", fields: []field{
	{name: "name", of: nameShape, doc: "The DAG's name, unique in the org.", required: true},
	{name: "description", of: sentence, doc: "What the DAG is for."},
	{name: "vars", of: tableShape{key: variableName, of: variableShape, max: MaxVariables},
		doc: "Variables, used as ${var.name}; set by --var, target or environment file at deploy."},
	{name: "macros", of: listShape{of: filePath, min: 1, max: 100, single: true},
		doc: "Files of CREATE MACRO statements, for the SQL of jobs and checks."},
	{name: "defaults", of: defaultsShape, doc: "Fields of every job that does not state them itself."},
	{name: "jobs", of: listOf(jobShape, 1, MaxJobs), doc: "The jobs.", required: true},
	{name: "publish", of: tableShape{key: datasetName, of: publishShape, max: MaxJobs},
		doc: "Names that outputs have in the catalogue. Metadata: it never rebuilds anything."},
	{name: "notify", of: listOf(notifyShape, 0, 20), doc: "Webhooks that receive notifications of problems."},
}}

var variableShape = objectShape{what: "a variable", fields: []field{
	{name: "default", of: scalarShape{}, doc: "The value if none is given at deploy."},
	{name: "description", of: sentence},
}}

// Fields that may stand in a job and in `defaults`.
var (
	runtimeField = field{
		name: "runtime", of: runtimeName,
		doc: "Where tasks run: a name that the server's config maps. Default: dispatcher, the server's own process.",
	}
	storageField = field{
		name: "storage", of: storageShape,
		doc: "Where outputs live: parquet (default) or postgres; per job or a list per output.",
	}
	executionFields = []field{
		{name: "max_attempts", of: whole(1, MaxAttempts), doc: "How many times a task is tried. Default 3."},
		{name: "timeout_seconds", of: numberShape{low: 1, high: 30 * 86400},
			doc: "Hard limit of one attempt. Default 3600; none for always_on sources."},
		{name: "heartbeat_timeout_seconds", of: numberShape{low: 5, high: 86400},
			doc: "Length of a lease. Default 60."},
		{name: "retry", of: retryShape,
			doc: "Back-off between attempts: min(max, initial * multiplier^n), jittered by half."},
		{name: "priority", of: whole(-MaxPriority, MaxPriority), doc: "Higher runs first. Default 0."},
		{name: "idle_timeout", of: textShape{valid: validIdleTimeout, longest: 30},
			doc: "When a reactive job counts as idle: never, 0 or a duration. Default 5m."},
		{name: "task_retention", of: duration, doc: "How long finished tasks stay. Default: the server's."},
	}
)

var defaultsShape = objectShape{
	what:   "`defaults`",
	fields: append([]field{runtimeField, storageField}, executionFields...),
}

var noInputs = &setting{"operator", Seed} // nor a source

var jobShape = objectShape{what: "a job", oneOf: []string{"source", "inputs"}, unless: noInputs, fields: append([]field{
	{name: "name", of: nameShape, doc: "Unique in the DAG; a job is addressed as DAG/JOB.", required: true},
	{name: "renamed_from", of: nameShape,
		doc: "The name that the job has in the version that serves: it stays the same job. May go once it has served."},
	{name: "description", of: sentence},
	{name: "activation", of: oneOf("source", "reactive"), doc: "Derived from source or inputs."},
	runtimeField,
	{name: "operator", of: operatorName, doc: "What the job computes with.", required: true},
	{name: "code_version", of: shortText, doc: "Hashed, for code that the platform cannot see."},
	{name: "source", of: sourceShape, doc: "What creates tasks; for jobs without inputs. A seed has none."},
	{name: "bootstrap", of: bootstrapShape, doc: "Sources only: what to do once when a new version is activated."},
	{name: "inputs", of: listOf(inputShape, 1, MaxInputs), doc: "What the job reads."},
	{name: "trigger", of: oneOf("all", "any"),
		doc: "How many triggering inputs must have changed: all (PerPartition's default) or any (PerUpdate's)."},
	{name: "execution_strategy", of: strategyShape, doc: "PerUpdate or PerPartition."},
	{name: "update_strategy", of: oneOf("replace", "append"),
		doc: "replace (default), or append, which needs unique_key."},
	{name: "unique_key", of: columnList, doc: "Columns that make a row unique."},
	{name: "outputs", of: outputsShape, doc: "A count or a list of names. Default 1."},
	{name: "partition_by", of: partitionShape, doc: "How outputs are cut into partitions."},
	storageField,
	{name: "effect", of: oneOf("internal", "external"),
		doc: "external: the job changes something outside; it is never built, shadowed or caught up."},
	{name: "config", of: anyShape{object: true}, doc: "The operator's configuration."},
	{name: "checks", of: listOf(checkShape, 0, 200),
		doc: "Expectations on the outputs, checked before readers see a revision."},
	{name: "udf", of: udfShape, doc: "The user's own code."},
	{name: "payload_schema", of: anyShape{object: true}, doc: "Manual and timer jobs: JSON Schema of the payload."},
	{name: "payload_schema_file", of: filePath, doc: "The same, in a file."},
	{name: "dedupe", of: columnList, doc: "Manual and timer jobs: payload fields that make the input hash."},
	{name: "enqueues", of: listOf(nameShape, 1, 100), doc: "Manual and timer jobs that tasks of this one may enqueue."},
	{name: "scaling", of: scalingShape},
	{name: "concurrency_key", of: textShape{longest: 200, valid: validTaskKey},
		doc: "One running task per key in the org: a template over {partition} and {payload.FIELD}."},
	{name: "state_key", of: textShape{longest: 200, valid: validStateKey},
		doc: "One operator state per key: a template over {partition} and {payload.field}. Default: one for the job."},
}, executionFields...)}

var (
	bootstrapShape = objectShape{what: "`bootstrap`", fields: []field{
		{name: "reset_outputs", of: booleanShape{}, required: true},
	}}
	outputsShape = choiceShape{
		want:    "a count or a list of names",
		options: []shape{whole(0, MaxOutputs), listOf(nameShape, 0, MaxOutputs)},
	}
	scalingShape = objectShape{what: "`scaling`", fields: []field{
		{name: "max_concurrency", of: whole(1, 1_000_000), doc: "Tasks of the job that run at once.", required: true},
	}}
)

var sourceShape = objectShape{what: "a source", tag: "kind",
	fields: []field{
		{name: "kind", of: oneOf("cron", "poll", "webhook", "manual", "timer", "always_on"), required: true},
		{name: "schedule", of: textShape{longest: 100, valid: validSchedule},
			doc: "cron: five fields, or @hourly, @daily, @weekly, @monthly, @yearly."},
		{name: "timezone", of: timezone, doc: "cron: IANA name. Default UTC."},
		{name: "start", of: textShape{valid: validInstant, longest: 40},
			doc: "cron: first instant, a date or RFC 3339."},
		{name: "catchup", of: booleanShape{}, doc: "cron: create tasks for missed windows. Default false."},
		{name: "first_partition", of: textShape{longest: 40},
			doc: "The key of the first partition of time that the source can make: it is asked for each one since."},
		{name: "lookback", of: whole(1, MaxLookback),
			doc: "How many partitions before the newest one are read again each time, for late rows."},
		{name: "every", of: duration, doc: "poll: how often."},
		{name: "path", of: pathShape, doc: "webhook: below /v1/hooks/ORG/."},
		{name: "secret", of: secretName, doc: "webhook: name of the secret that signs requests (HMAC)."},
		{name: "on_deploy", of: booleanShape{},
			doc: "Read all that exists at deploy. Default true for poll and with first_partition."},
	},
	cases: map[string]tagCases{
		"cron": {required: []string{"schedule"},
			optional: []string{"timezone", "start", "catchup", "first_partition", "lookback", "on_deploy"}},
		"poll":      {required: []string{"every"}, optional: []string{"first_partition", "lookback", "on_deploy"}},
		"webhook":   {required: []string{"path"}, optional: []string{"secret"}},
		"manual":    {optional: []string{"first_partition", "on_deploy"}},
		"timer":     {},
		"always_on": {},
	}}

var whereShape = tableShape{
	key: columnName,
	of:  listShape{of: scalarShape{}, min: 1, max: 1000, single: true},
	max: 32,
}

var inputShape = objectShape{what: "an input", fields: []field{
	{name: "from", of: fromShape, required: true},
	{name: "as", of: relationName, doc: "Relation name in SQL. Default: the job's or dataset's name."},
	{name: "where", of: whereShape,
		doc: "The rows to keep: for each column a value or a list of values. All columns must match."},
	{name: "map", of: choiceShape{want: "same, within, latest, slice or {window: ...}", options: []shape{
		oneOf("same", "within", "latest", "slice"),
		objectShape{what: "`map`", fields: []field{
			{name: "window", required: true, of: choiceShape{want: "a unit of time or {last: N}", options: []shape{
				timeUnit,
				objectShape{what: "`window`", fields: []field{{name: "last", of: whole(2, 1000), required: true}}},
			}}},
			{name: "require", of: oneOf("complete", "available"),
				doc: "complete (default): every partition of the window must exist."},
		}},
	}}, doc: "Which partitions of the input an output partition is made of. Default same."},
	{name: "refresh", of: booleanShape{}, doc: "map latest: a change of this input makes outputs stale."},
	{name: "read", of: oneOf("new", "all"), doc: "new: what the job has not read yet (default for append); all."},
}}

var partitionShape = choiceShape{
	want: "none, key, {time: UNIT}, {time: UNIT, column: NAME}, {range: SIZE, column: NAME} or {cursor: COLUMN}",
	options: []shape{
		textShape{enum: []string{"none", "key"}, instead: func(text string) string {
			if unit := unitMeant(text); unit != "" {
				return fmt.Sprintf("write { time: %s }", unit)
			}
			return ""
		}},
		objectShape{
			what:  "`partition_by`",
			oneOf: []string{"time", "range", "cursor"},
			needs: map[string]string{"timezone": "time", "range": "column"},
			apart: map[string]string{"column": "cursor"},
			fields: []field{
				{name: "time", of: timeUnit},
				{name: "timezone", of: timezone, doc: "IANA name. Default UTC."},
				{name: "range", of: whole(1, math.MaxInt64), doc: "Values of the column per partition."},
				{name: "column", of: columnName,
					doc: "range: the column of whole numbers. time: one task splits its rows by this column's dates."},
				{name: "cursor", of: columnName, doc: "A column that only grows."},
			},
		},
	},
}

var oneStorage = choiceShape{want: "parquet, postgres or {postgres: {indexes: [...]}}", options: []shape{
	oneOf("parquet", "postgres"),
	objectShape{what: "`storage`", fields: []field{{name: "postgres", of: postgresStorage, required: true}}},
}}

var postgresStorage = objectShape{what: "`postgres`", fields: []field{
	{name: "indexes", of: listOf(columnList, 0, 16), doc: "Columns, or lists of columns."},
}}

var storageShape = choiceShape{
	want:    oneStorage.want + ", or a list of them",
	options: append(oneStorage.options[:2:2], listOf(oneStorage, 0, MaxOutputs)),
}

var retryShape = objectShape{what: "`retry`", fields: []field{
	{name: "initial_seconds", of: numberShape{low: 0.001, high: 86400}, doc: "Default 1."},
	{name: "max_seconds", of: numberShape{low: 0.001, high: 7 * 86400}, doc: "Default 300."},
	{name: "multiplier", of: numberShape{low: 1, high: 100}, doc: "Default 2."},
}}

var checkKinds = []string{"not_null", "unique", "accepted_values", "row_count", "freshness", "relationships", "sql"}

// checkNeeds: a name cannot be derived from SQL.
var checkNeeds = map[string]string{"sql": "name"}

var checkShape = objectShape{what: "a check", oneOf: checkKinds, needs: checkNeeds, fields: []field{
	{name: "name", of: textShape{longest: 100}, doc: "Default: derived, such as not_null(iata)."},
	{name: "not_null", of: columnList},
	{name: "unique", of: columnList, doc: "Columns that are unique together."},
	{name: "accepted_values", of: objectShape{what: "`accepted_values`", fields: []field{
		{name: "column", of: columnName, required: true},
		{name: "values", of: listOf(scalarShape{}, 1, 1000), required: true},
	}}},
	{name: "row_count", of: objectShape{what: "`row_count`", fields: []field{
		{name: "min", of: whole(0, math.MaxInt64)},
		{name: "max", of: whole(0, math.MaxInt64)},
	}}},
	{name: "freshness", of: objectShape{what: "`freshness`", fields: []field{
		{name: "column", of: columnName, required: true},
		{name: "within", of: duration, required: true},
	}}, doc: "The newest value of a column is not older than this."},
	{name: "relationships", of: objectShape{what: "`relationships`", fields: []field{
		{name: "column", of: columnName, required: true},
		{name: "to", of: objectShape{what: "`to`", fields: []field{
			{name: "input", of: relationName, doc: "An input of the job, by its relation name.", required: true},
			{name: "column", of: columnName, required: true},
		}}, required: true},
	}}, doc: "Every value of a column is in a column of an input."},
	{name: "sql", of: textShape{longest: 100_000}, doc: "Rows are failures; the output is the relation `output`."},
	{name: "output", of: outputReference, doc: "Which output, by index or name; needed if there are several."},
	{name: "severity", of: checkSeverity, doc: "error (default) keeps the revision from readers; warn only reports."},
}}

var udfShape = objectShape{what: "`udf`", oneOf: []string{"folder", "bundle"}, fields: []field{
	{name: "folder", of: filePath, doc: "A folder beside the DAG file; it is sent with the deploy."},
	{name: "bundle", of: shortText, doc: "A bundle that the server has."},
	{name: "entrypoint", of: shortText, required: true},
}}

var dueShape = objectShape{what: "`due`", fields: []field{{name: "within", of: duration, required: true}}}

var publishShape = objectShape{what: "a published dataset", fields: []field{
	{name: "from", of: fromJob, required: true},
	{name: "description", of: sentence},
	{name: "owner", of: shortText},
	{name: "tags", of: listOf(textShape{longest: 60}, 0, 50)},
	{name: "columns", of: tableShape{key: columnName, of: sentence, max: 2000}, doc: "What the columns mean."},
	{name: "due", of: dueShape, doc: "When a partition is late, after its end."},
	{name: "retention", of: duration, doc: "How long partitions are kept."},
	{name: "takes_over", of: nameShape, doc: "The DAG that published the name before."},
}}

var notifyShape = objectShape{what: "a notification", oneOf: NotifyFormats, fields: []field{
	{name: "on", of: listOf(oneOf("dead", "late", "failed_deploy", "failed_check"), 1, 4), required: true},
	{name: "webhook", of: secretReference, doc: "A signed JSON body. The secret holds the URL."},
	{name: "slack", of: secretReference, doc: "A Slack message. The secret holds the URL of an incoming webhook."},
	{name: "teams", of: secretReference,
		doc: "A card in Microsoft Teams. The secret holds the URL of a Workflows webhook."},
	{name: "pagerduty", of: secretReference,
		doc: "A PagerDuty incident. The secret holds the integration key of an Events API v2 integration."},
	{name: "email", of: objectShape{what: "an e-mail", fields: []field{
		{name: "secret", of: secretName, doc: "The secret that holds smtp://USER:PASSWORD@HOST:PORT.", required: true},
		{name: "to", of: listOf(mailAddress, 1, 50), doc: "Who gets it.", required: true},
		{name: "from", of: mailAddress, doc: "The sender. Default: the user that the secret names."},
	}}, doc: "An e-mail."},
}}

var mailAddress = textShape{longest: 254, valid: validMailAddress}

// validMailAddress accepts a bare address: NAME@HOST.
func validMailAddress(text string) error {
	if a, err := mail.ParseAddress(text); err != nil || a.Address != text {
		return errors.New("an address is NAME@HOST, such as ops@example.com")
	}
	return nil
}

var durationPattern = late.Pattern(`^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$`)

// ParseDuration reads a Go duration that may also have days of 24 hours (d) and weeks (w): 90s, 1h30m, 30d.
func ParseDuration(text string) (time.Duration, error) {
	if !durationPattern.MatchString(text) {
		return 0, errors.New(durationRule)
	}

	var total float64
	for _, part := range durationPart.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(part[1], 64)
		if err != nil {
			return 0, err
		}
		total += n * float64(durationUnits[part[2]])
	}
	if total > float64(100*365*24*time.Hour) {
		return 0, errors.New("it is longer than a hundred years")
	}
	return time.Duration(total), nil
}

var (
	durationPart  = late.Pattern(`([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)`)
	durationUnits = map[string]time.Duration{
		"ms": time.Millisecond,
		"s":  time.Second,
		"m":  time.Minute,
		"h":  time.Hour,
		"d":  24 * time.Hour,
		"w":  7 * 24 * time.Hour,
	}
)

func validDuration(text string) error {
	d, err := ParseDuration(text)
	if err == nil && d < time.Second {
		err = errors.New("it must be one second or more")
	}
	return err
}

func validTimezone(name string) error {
	if name == "Local" {
		return errors.New("it differs from machine to machine; name a zone such as Europe/Berlin")
	}
	if _, err := time.LoadLocation(name); err != nil {
		return errors.New("it is not an IANA time zone such as Europe/Berlin or UTC")
	}
	return nil
}

func validIdleTimeout(text string) error {
	if text == "never" || text == "0" {
		return nil
	}
	if d, err := time.ParseDuration(text); err != nil || d < 0 {
		return errors.New("it must be never, 0 or a duration such as 5m")
	}
	return nil
}

// validSchedule allows five fields and the named schedules, without a time zone, which has a field of its own.
func validSchedule(text string) error {
	switch {
	case strings.Contains(text, "TZ="):
		return errors.New("the time zone belongs in `timezone`")
	case strings.HasPrefix(text, "@every"):
		return errors.New("use `kind: poll` with `every`")
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return fmt.Errorf("it must be five fields or @hourly, @daily, @weekly, @monthly, @yearly (%s)", err)
	}
	if schedule.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return errors.New("no date has that day, so it never fires")
	}
	return nil
}

func validInstant(text string) error {
	if _, err := time.Parse(time.DateOnly, text); err == nil {
		return nil
	}
	if _, err := time.Parse(time.RFC3339, text); err != nil {
		return errors.New("it must be a date such as 2001-01-31 or an instant such as 2001-01-31T05:00:00Z")
	}
	return nil
}

// validStateKey checks a template that must name something: otherwise all runs would share one state anyway.
func validStateKey(text string) error {
	if !keyTemplate.MatchString(text) {
		return errors.New("it must hold {partition} or {payload.FIELD}; without `state_key` all runs share one state")
	}
	return validTaskKey(text)
}

var keyTemplate = late.Pattern(`\{([^{}]*)\}`)

// validTaskKey checks a template over a task's partition and payload.
func validTaskKey(text string) error {
	for _, match := range keyTemplate.FindAllStringSubmatch(text, -1) {
		field, ofPayload := strings.CutPrefix(match[1], "payload.")
		if match[1] != "partition" && (!ofPayload || field == "") {
			return fmt.Errorf("%s must be {partition} or {payload.FIELD}", match[0])
		}
	}
	if strings.ContainsAny(keyTemplate.ReplaceAllString(text, ""), "{}") {
		return errors.New("a brace is not closed")
	}
	return nil
}

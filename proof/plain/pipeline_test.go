package plain_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// kind is what a job does.
type kind int

const (
	mapped   kind = iota // each row by itself
	summed               // a row for each key
	joined               // two inputs, partition by partition
	looked               // an input with all that another one has
	trailing             // a day with those before it
	monthly              // the days of a month
	daily                // the hours of a day
	totaled              // all segments of a cursor
	appended             // every row that ever was
	kinds
	taped = kinds // the source of a cursor
)

// job is one random job of a pipeline. Jobs at the beginning have a source instead of inputs.
type job struct {
	name           string
	kind           kind
	inputs         []int
	zone           string
	days           bool // its partitions are days
	direct         bool // each round changes a partition at most once, so that no reader ever sees half a round
	any            bool
	complete       bool
	last           int
	factor, offset int64
	whereKeys      []string
	whereNumbers   []float64
	storage        string
}

// source has a file for each day, or for each hour of some days.
type source struct {
	zone  string
	hours bool
}

// pipeline is a random DAG: sources, each with the base job that reads it, a tape, whose segments follow a cursor, and
// jobs over these.
type pipeline struct {
	sources []source
	jobs    []job // the first ones are those of the sources, and the tape
}

// The places of the hourly source and of the tape.
const hourly, tape = 2, 3

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"}

func anyPipeline(random *rand.Rand) (p pipeline) {
	coin := func() bool { return random.IntN(2) == 0 }
	zone := zones[random.IntN(len(zones))]
	p.sources = []source{{zone, false}, {zone, false}, {zone, true}}
	for i, s := range p.sources {
		p.jobs = append(p.jobs, job{name: fmt.Sprintf("base%d", i), zone: zone, days: !s.hours, direct: true})
	}
	p.jobs = append(p.jobs, job{name: "tape", kind: taped, zone: zone, direct: true})

	for i := range 2 + random.IntN(5) {
		j := job{name: fmt.Sprintf("job%d", i), kind: kind(random.IntN(int(kinds))), last: 2 + random.IntN(2),
			any: coin(), complete: coin(), factor: 1 + random.Int64N(3), offset: random.Int64N(4), storage: "parquet"}
		if random.IntN(3) == 0 {
			j.storage = "postgres"
		}
		if random.IntN(3) == 0 {
			j.whereKeys = []string{"a", "c"}
		}
		if random.IntN(4) == 0 {
			j.whereNumbers = []float64{1, 2, 2.5, 5}
		}
		j.inputs = p.choose(random, j.kind)
		first := p.jobs[j.inputs[0]]
		j.zone = zone
		switch j.kind {
		case monthly, totaled, appended:
		default:
			j.days = j.kind == daily || first.days
		}
		j.direct = first.direct && (j.kind == mapped || j.kind == summed)
		p.jobs = append(p.jobs, j)
	}
	return p
}

// choose returns inputs that a job of a kind can read. Only jobs of sources certainly have columns from the beginning,
// which a job needs to read an input that has nothing for a partition.
func (p pipeline) choose(random *rand.Rand, k kind) []int {
	var days, direct []int
	for i, j := range p.jobs {
		if j.days {
			days = append(days, i)
		}
		if j.direct {
			direct = append(direct, i)
		}
	}

	one := days[random.IntN(len(days))]
	switch k {
	case joined:
		return []int{0, 1}
	case looked:
		return []int{one, random.IntN(len(p.sources) + 1)} // the tape, too
	case daily:
		return []int{hourly}
	case totaled:
		return []int{tape}
	case appended:
		return []int{direct[random.IntN(len(direct))]}
	}
	return []int{one}
}

func (p pipeline) yaml() string {
	var b, publish strings.Builder
	b.WriteString("name: plain\njobs:\n")
	for i, s := range p.sources {
		unit, pattern, moment := "day", "{date}", "TIMESTAMP"
		if s.hours {
			unit, pattern, moment = "hour", "{date}T{hour}", "TIMESTAMP WITH TIME ZONE"
		}
		fmt.Fprintf(&b, `  - name: source%[1]d
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: %[3]s, timezone: %[2]s }
    config:
      path: s%[1]d
      pattern: "%[4]s.csv"
      format: csv
      header: true
      types: { k: VARCHAR, n: BIGINT, moment: %[5]s }
  - name: base%[1]d
    operator: sql
    inputs: [{ from: { job: source%[1]d }, as: i }]
    checks: [{ name: after_midnight, sql: "SELECT * FROM output WHERE h < 0 OR h >= 25 * 60" }]
    config:
      query: >-
        SELECT k, n, date_diff('minute', getvariable('start'), moment::TIMESTAMPTZ) AS h FROM i
`, i, s.zone, unit, pattern, moment)
	}
	b.WriteString(`  - name: tape
    operator: hook
    source: { kind: poll, every: 1h }
    partition_by: { cursor: n }
    config: {}
`)

	for i, j := range p.jobs {
		fmt.Fprintf(&publish, "  %s: { from: { job: %s } }\n", j.name, j.name)
		if i > tape {
			b.WriteString(p.job(j))
		}
	}
	return b.String() + "publish:\n" + publish.String()
}

// job writes one job, whose inputs are the relations i and o.
func (p pipeline) job(j job) string {
	const sums = "SELECT k, sum(n)::BIGINT AS n, max(h) AS h FROM %s GROUP BY k"
	const joins = "SELECT i.k, (i.n + o.n)::BIGINT AS n, i.h FROM i JOIN (%s) AS o ON i.k = o.k"
	mapping, query, more := "same", "", ""
	switch j.kind {
	case mapped:
		query = fmt.Sprintf("SELECT k, (n * %d + %d)::BIGINT AS n, h FROM i", j.factor, j.offset)
	case appended:
		query = fmt.Sprintf("SELECT k, (n * %d + %d)::BIGINT AS n, h FROM i", j.factor, j.offset)
		more = "    partition_by: none\n    execution_strategy: PerUpdate\n    update_strategy: append\n" +
			"    unique_key: [k, n, h]\n"
	case summed:
		query = fmt.Sprintf(sums, "i")
	case joined:
		query = fmt.Sprintf(joins, "FROM o")
		more = "    execution_strategy: PerPartition\n    trigger: all\n"
		if j.any {
			more = "    execution_strategy: PerPartition\n    trigger: any\n"
		}
	case looked:
		query = fmt.Sprintf(joins, fmt.Sprintf(sums, "o"))
	case trailing:
		query = fmt.Sprintf(sums, "i")
		mapping = fmt.Sprintf("{ window: { last: %d }, require: %s }", j.last, j.require())
	case totaled:
		query = fmt.Sprintf(sums, "i")
		more = "    partition_by: none\n    execution_strategy: PerUpdate\n    update_strategy: replace\n"
	case daily:
		query, mapping = fmt.Sprintf(sums, "i"), "{ window: day, require: available }"
	case monthly:
		query, mapping = fmt.Sprintf(sums, "i"), "{ window: month, require: available }"
	}

	text := fmt.Sprintf("  - name: %s\n    operator: sql\n    storage: %s\n%s    inputs:\n", j.name, j.storage, more)
	text += fmt.Sprintf("      - { from: { job: %s }, as: i, map: %s%s }\n", p.jobs[j.inputs[0]].name, mapping,
		j.where())
	switch j.kind {
	case joined:
		text += fmt.Sprintf("      - { from: { job: %s }, as: o }\n", p.jobs[j.inputs[1]].name)
	case looked:
		text += fmt.Sprintf("      - { from: { job: %s }, as: o, map: latest, refresh: true }\n",
			p.jobs[j.inputs[1]].name)
	}
	return text + fmt.Sprintf("    config: { query: %q }\n", query)
}

func (j job) require() string {
	if j.complete {
		return "complete"
	}
	return "available"
}

func (j job) where() string {
	var conditions []string
	if len(j.whereKeys) > 0 {
		conditions = append(conditions, "k: ["+strings.Join(j.whereKeys, ", ")+"]")
	}
	if len(j.whereNumbers) > 0 {
		conditions = append(conditions, "n: "+strings.ReplaceAll(fmt.Sprint(j.whereNumbers), " ", ", "))
	}
	if len(conditions) == 0 {
		return ""
	}
	return ", where: { " + strings.Join(conditions, ", ") + " }"
}

// state is what the evaluator has: by source and day or hour, the lines of the files that exist and those that were
// read last, which stay when a file goes; the tape, and its segments that were read; and every job's output.
type state struct {
	files, read []map[string][]line
	tape        []row
	segments    table
	outputs     []table
}

// evaluate reads the files and computes every job anew.
func (p pipeline) evaluate(s *state) {
	for source, files := range s.files {
		maps.Copy(s.read[source], files)
	}
	if begin := int64(len(s.segments.all())); begin < int64(len(s.tape)) {
		s.segments[fmt.Sprintf("%d-%d", begin, len(s.tape))] = s.tape[begin:]
	}
	before := slices.Clone(s.outputs)
	s.outputs = make([]table, len(p.jobs))
	for i, j := range p.jobs {
		switch {
		case i == tape:
			s.outputs[i] = s.segments
			continue
		case i < len(p.sources):
			s.outputs[i] = table{}
			for key, lines := range s.read[i] {
				s.outputs[i][key] = base(j.zone, key, lines)
			}
			continue
		}

		inputs := make([]table, len(j.inputs))
		for n, in := range j.inputs {
			inputs[n] = s.outputs[in]
		}
		var had table
		if i < len(before) {
			had = before[i]
		}
		s.outputs[i] = j.evaluate(inputs, had)
	}
}

//go:build soak

package kills_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ledgerDAG sums up each day by a factor that each deploy changes, and goes on in the server, elsewhere and in Python.
const ledgerDAG = `name: ledger
defaults: { max_attempts: 100, retry: { initial_seconds: 1, max_seconds: 3, multiplier: 1 } }
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: ., pattern: "{date}.csv", format: csv, types: { station: VARCHAR, celsius: BIGINT } }
  - name: daily
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT station, (sum(celsius) * %d)::BIGINT AS total, count(*) AS readings FROM landing GROUP BY station" }
    checks: [{ not_null: [station, total] }, { unique: [station] }]
  - name: shipped
    operator: sql
    runtime: elsewhere
    inputs: [{ from: { job: daily } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT station, total + 1 AS more FROM daily" }
  - name: scored
    operator: handler
    runtime: python
    inputs: [{ from: { job: daily } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { handler: score }
  - name: monthly
    operator: sql
    inputs: [{ from: { job: shipped }, map: { window: month } }, { from: { job: scored }, map: { window: month } }]
    partition_by: { time: month }
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT station, sum(more)::BIGINT AS more, (SELECT sum(score) FROM scored)::BIGINT AS score FROM shipped GROUP BY station" }
publish:
  days: { from: { job: daily } }
  shipments: { from: { job: shipped } }
  scores: { from: { job: scored } }
  months: { from: { job: monthly } }
`

var stations = []string{"harbour", "summit", "valley", "bridge"}

// reading is a row of a file.
type reading struct {
	station string
	celsius int64
}

// ledger is what the files say.
type ledger map[string][]reading // by day

// rewrite writes the file of a day anew. Whoever reads it meanwhile sees either of both.
func (l ledger) rewrite(t *testing.T, folder, day string, random *rand.Rand) {
	t.Helper()
	rows := []reading{}
	var text strings.Builder
	text.WriteString("station,celsius\n")
	for range 1 + random.IntN(200) {
		r := reading{stations[random.IntN(len(stations))], int64(random.IntN(1000) - 500)}
		rows = append(rows, r)
		fmt.Fprintf(&text, "%s,%d\n", r.station, r.celsius)
	}

	path := filepath.Join(folder, day+".csv")
	require.NoError(t, os.WriteFile(path+".new", []byte(text.String()), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
	l[day] = rows
}

// want returns the datasets that the files make with a factor, each as sorted lines of CSV.
func (l ledger) want(factor int64) map[string][]string {
	want := map[string][]string{}
	add := func(dataset string, values ...any) {
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = fmt.Sprint(v)
		}
		want[dataset] = append(want[dataset], strings.Join(texts, ","))
	}

	more, score := map[[2]string]int64{}, map[string]int64{} // by month and station, and by month
	for day, rows := range l {
		total, readings := map[string]int64{}, map[string]int64{}
		for _, r := range rows {
			total[r.station] += r.celsius * factor
			readings[r.station]++
		}
		for station, n := range readings {
			add("days", day, station, total[station], n)
			add("shipments", day, station, total[station]+1)
			add("scores", day, station, 2*total[station])
			more[[2]string{day[:7], station}] += total[station] + 1
			score[day[:7]] += 2 * total[station]
		}
	}
	for key, sum := range more {
		add("months", key[0], key[1], sum, score[key[0]])
	}
	for dataset := range want {
		slices.Sort(want[dataset])
	}
	return want
}

// columns are those of each dataset, in the order of want.
var columns = map[string]string{"days": "station, total, readings", "shipments": "station, more",
	"scores": "station, score", "months": "station, more, score"}

// got reads a dataset as want has it.
func (f *fleet) got(t *testing.T, url, dataset string) ([]string, error) {
	t.Helper()
	r := f.run(t, url, "query", "SELECT _partition, "+columns[dataset]+" FROM "+dataset, "--output", "csv")
	if r.Code != 0 {
		return nil, fmt.Errorf("query %s: %s", dataset, r.Err)
	}
	lines := strings.Split(strings.TrimSpace(r.Out), "\n")[1:]
	slices.Sort(lines)
	return lines, nil
}

var factorOf = regexp.MustCompile(`celsius\) \* (\d+)\)`)

// serving returns the factor of the version that serves; an error while another one is being built. One that is ready
// and was held, since the DAG was rolled back while it was built, waits for a person.
func (f *fleet) serving(t *testing.T, url string) (factor int64, err error) {
	t.Helper()
	var dag struct {
		Active, Building *struct {
			Version int
			Status  string
			Held    string `json:"held_because"`
		}
	}
	if err := get(t, url+"/v1/dags/ledger", f.token, &dag); err != nil {
		return 0, err
	}
	held := dag.Building != nil && dag.Building.Status == "Ready" && dag.Building.Held != ""
	if dag.Active == nil || dag.Building != nil && !held {
		return 0, fmt.Errorf("a version is being built")
	}

	var version struct{ YAML string }
	path := fmt.Sprint(url, "/v1/dags/ledger/versions/", dag.Active.Version)
	if err := get(t, path, f.token, &version); err != nil {
		return 0, err
	}
	return strconv.ParseInt(factorOf.FindStringSubmatch(version.YAML)[1], 10, 64)
}

// differs compares what the fleet serves with what it should, and says the first difference.
func (f *fleet) differs(t *testing.T, url string, l ledger) error {
	t.Helper()
	factor, err := f.serving(t, url)
	if err != nil {
		return err
	}
	for dataset, want := range l.want(factor) {
		got, err := f.got(t, url, dataset)
		if err != nil {
			return err
		}
		if !slices.Equal(want, got) {
			return fmt.Errorf("%s of factor %d: %s", dataset, factor, difference(want, got))
		}
	}
	return nil
}

// difference says what is missing and what is too much, of sorted lines.
func difference(want, got []string) string {
	lacks := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return slices.Contains(got, line) })
	more := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return slices.Contains(want, line) })
	first := func(lines []string) string { return cmp.Or(strings.Join(lines[:min(3, len(lines))], " "), "nothing") }
	return fmt.Sprintf("%d of %d lines are missing (%s), %d are too many (%s)", len(lacks), len(want), first(lacks),
		len(more), first(more))
}

// get asks the API; into may be nil.
func get(t *testing.T, url, token string, into any) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.200s", url, answer.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

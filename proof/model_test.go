package proof_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// model is the expected result of the property test's DAG, computed in plain Go: the files that exist and what the live
// version makes of them.
type model struct {
	files  map[string]int  // by partition: the one number in it
	active formula         // of the live version
	byNum  map[int]formula // of every version, by number
}

// formula is one definition of the DAG: what each step does with n, and the jobs and their names.
type formula struct {
	factor, offset int
	third          bool // a third job, published as well
	total          bool // one that joins all partitions
	crossed        bool // the names of two datasets are exchanged
}

func anyFormula(random *rand.Rand) formula {
	coin := func() bool { return random.IntN(2) == 0 }
	return formula{factor: 2 + random.IntN(2), offset: random.IntN(2), third: coin(), total: coin(),
		crossed: random.IntN(4) == 0}
}

func (f formula) yaml() string {
	// Short leases, so that the tasks of a killed dispatcher soon run elsewhere.
	text := chain("name: chain\n", "name: chain\ndefaults: { heartbeat_timeout_seconds: 5 }\n", "n * 2 AS n",
		fmt.Sprintf("n * %d AS n", f.factor), "sum(n) AS n", fmt.Sprintf("sum(n) + %d AS n", f.offset))
	if f.crossed {
		text = strings.NewReplacer("  doubled: { from:", "  summed: { from:", "  summed: { from:",
			"  doubled: { from:").Replace(text)
	}

	add := func(name, job string) {
		text = strings.Replace(text, "publish:\n", "  - name: "+name+"\n"+job+"publish:\n  "+name+": { from: { job: "+
			name+" } }\n", 1)
	}
	if f.third {
		add("also", `    operator: sql
    inputs: [{ from: { job: summed }, as: input }]
    execution_strategy: PerPartition
    config: { query: "SELECT n + 1 AS n FROM input" }
`)
	}

	if f.total {
		add("total", `    operator: sql
    inputs: [{ from: { job: doubled }, as: input }]
    partition_by: none
    config: { query: "SELECT sum(n) AS n FROM input" }
`)
	}
	return text
}

// want returns what readers should find in the end, by dataset.
func (m *model) want() map[string][]string {
	f := m.active
	doubled, summed := "doubled", "summed"
	if f.crossed {
		doubled, summed = summed, doubled
	}

	all := map[string]func(n int) int{
		"landed": func(n int) int { return n },
		doubled:  func(n int) int { return n * f.factor },
		summed:   func(n int) int { return n*f.factor + f.offset },
	}

	if f.third {
		all["also"] = func(n int) int { return n*f.factor + f.offset + 1 }
	}
	found := map[string][]string{}
	for name, of := range all {
		found[name] = []string{}
		for _, n := range m.files {
			found[name] = append(found[name], strconv.Itoa(of(n)))
		}
		slices.Sort(found[name])
	}

	if f.total {
		sum := 0
		for _, n := range m.files {
			sum += n * f.factor
		}
		found["total"] = []string{strconv.Itoa(sum)}
	}
	return found
}

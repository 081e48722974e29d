package registry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// What a check found is said as it is: one row, so many rows, or what is wrong with all of them.
func TestWhatAFailedCheckFound(t *testing.T) {
	t.Parallel()
	one, ten := int64(1), int64(10)
	counted := func(n string) registry.CheckResult {
		return registry.CheckResult{Failures: 1, Sample: []byte(`{"columns": ["row_count"], "rows": [[` + n + `]]}`)}
	}
	failed := func(rows int64) registry.CheckResult { return registry.CheckResult{Failures: rows} }
	for _, c := range []struct {
		want   string
		result registry.CheckResult
		check  dag.Check
	}{
		{"1 row", failed(1), dag.Check{Kind: "not_null"}},
		{"3 rows", failed(3), dag.Check{Kind: "sql"}},
		{"0 rows, fewer than 1", counted("0"), dag.Check{Kind: "row_count", Min: &one}},
		{"1 row, fewer than 10", counted("1"), dag.Check{Kind: "row_count", Min: &ten}},
		{"11 rows, more than 10", counted("11"), dag.Check{Kind: "row_count", Max: &ten}},
		{"0 rows, not between 1 and 10", counted("0"), dag.Check{Kind: "row_count", Min: &one, Max: &ten}},
		{"another number, fewer than 1", failed(1), dag.Check{Kind: "row_count", Min: &one}},
		{"nothing in the 48h0m0s before the check", failed(1), dag.Check{Kind: "freshness", Within: 48 * time.Hour}},
		{"no column", registry.CheckResult{Error: "no column"}, dag.Check{Kind: "row_count"}},
	} {
		require.Equal(t, c.want, c.result.Failed([]dag.Check{c.check}))
	}
}

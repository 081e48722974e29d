package operators_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
)

// What `query` refuses is refused in jobs and checks as well, before they are deployed.
func TestFunctionsThatShowTheServerAreRefusedInJobsAndChecks(t *testing.T) {
	t.Parallel()
	builtin, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	const file = `name: shop
jobs:
  - name: orders
    source: { kind: manual }
    operator: sql
    outputs: 1
    config: { query: "%s" }
    checks:
      - sql: "%s"
`
	parse := func(query, check string) dag.Problems {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(fmt.Sprintf(file, query, check))},
			builtin.Catalog(nil))
		return problems
	}
	const harmless = "SELECT upper('x') AS x"
	usual := len(parse(harmless, harmless))

	for _, call := range []string{"current_setting('allowed_paths')", "json_serialize_plan('SELECT 1')",
		"write_log('x')", "getenv('PATH')"} {
		name, _, _ := strings.Cut(call, "(")
		for place, problems := range map[string]dag.Problems{
			"line 7": parse("SELECT "+call, harmless),
			"line 9": parse(harmless, "SELECT "+call),
		} {
			require.Len(t, problems, usual+1, "%s, %s", call, place)
			text := problems.Pretty()
			require.Contains(t, text, "the function "+name+" is not allowed (line 1, column 8)", place)
		}
	}
}

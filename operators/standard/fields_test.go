package standard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

// What an operator says of a field by itself is reported together with what the schema says of the others.
func TestFaultsOfFieldsBesideThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	ops, err := standard.New(operators.Options{Engines: enginetest.Engines(), Threads: 1})
	require.NoError(t, err)
	catalog := ops.Catalog([]string{"dispatcher"})
	for config, want := range map[string][]string{
		`http_source    config: { url: "https://a.example/{day}", format: cvs }`: {"format", "there is no {day}"},
		`http_source    config: { url: "https://me:pw@a.example/", format: cvs }`: {"format",
			"it must be a URL with a host"},
		`http_source    config: { url: 7, format: cvs }`: {"url", "format"},
		`http_api    config: { url: "https://a.example/", headers: { A: "b\nc" }, max_pages: 0 }`: {"max_pages",
			"the value of A has a character"},
		`evm_range_ingest    config: { url: "https://a.example/", headers: { A: "b\nc" }, chain_id: 1 }`: {"end_block",
			"the value of A has a character"},
	} {
		operator, config, _ := strings.Cut(config, "    ")
		text := fmt.Sprintf("name: x\njobs:\n  - name: a\n    operator: %s\n    source: { kind: poll, every: 1h }\n"+
			"    %s\n", operator, config)
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text)}, catalog)
		require.Len(t, problems, len(want), "%s: %v", config, problems)
		all := fmt.Sprint(problems)
		for _, w := range want {
			require.Contains(t, all, w)
		}
	}
}

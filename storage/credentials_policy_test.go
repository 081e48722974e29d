package storage

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestSessionPolicies(t *testing.T) {
	t.Parallel()
	object := func(n int) string {
		return fmt.Sprintf("prod/acme/11111111-1111-1111-1111-111111111111/22222222-2222-2222-2222-222222222222/"+
			"2024-01-%02d/33333333-3333-3333-3333-333333333333-1/00000.parquet", n)
	}
	many := func(from, to int) (keys []string) {
		for n := from; n < to; n++ {
			keys = append(keys, object(n))
		}
		return keys
	}

	const write = "prod/.uploads/44444444-4444-4444-4444-444444444444/55555555-5555-5555-5555-555555555555/1/"
	for name, test := range map[string]struct {
		scope  policyScope
		inputs [][]string
		reads  int
	}{
		"reads_and_writes": {policyScope{partition: "aws", bucket: "acme", write: write},
			[][]string{many(1, 3), many(3, 4)}, 3},
		"plain_puts": {policyScope{partition: "aws-cn", bucket: "acme", write: write, plainPuts: true}, nil, 0},
		"reads_only": {policyScope{partition: "aws", bucket: "acme"}, [][]string{many(1, 2), nil, many(1, 2)}, 1},
		"nothing":    {policyScope{partition: "aws", bucket: "acme"}, nil, 0},
		// The second input does not fit and is left out as a whole; the third one does.
		"too_much": {policyScope{partition: "aws", bucket: "acme", write: write},
			[][]string{many(1, 3), many(3, 30), many(30, 32)}, 4},
	} {
		policy, reads := test.scope.fit(test.inputs, mostPolicy)
		require.Len(t, reads, test.reads, name)
		require.LessOrEqual(t, len(policy), mostPolicy, name)
		var pretty bytes.Buffer
		require.NoError(t, json.Indent(&pretty, []byte(policy+"\n"), "", "  "))
		golden := filepath.Join("testdata", "policy_"+name+".json")
		if *update {
			require.NoError(t, os.MkdirAll("testdata", 0o750))
			require.NoError(t, os.WriteFile(golden, pretty.Bytes(), 0o600))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(want), pretty.String(), name)
	}
}

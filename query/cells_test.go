package query_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/query"
)

func TestRowsStayAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	const rows = `"rows":[[9007199254740993,1.10,0.5,-8,{"z":12345678901234567890.12345,"a":1},[1e400],"x",null,true]]`
	const columns = `"columns":[{"name":"n","type":"BIGINT"}]`
	for name, test := range map[string]struct {
		text string
		into any
	}{
		"answer":  {`{` + columns + `,` + rows + `,"truncated":false,"datasets":[]}`, new(query.Answer)},
		"preview": {`{"dataset":"d",` + columns + `,` + rows + `}`, new(query.Rows)},
	} {
		require.NoError(t, json.Unmarshal([]byte(test.text), test.into), name)
		again, err := json.Marshal(test.into)
		require.NoError(t, err)
		require.Equal(t, test.text, string(again), name)
	}
}

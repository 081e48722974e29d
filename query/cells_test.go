package query_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/storage"
)

func TestRowsStayAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	const rows = `"rows":[[9007199254740993,1.10,0.5,-8,{"z":12345678901234567890.12345,"a":1},[1e400],"x",null,true]]`
	const columns = `"columns":[{"name":"n","type":"BIGINT"}]`
	for name, test := range map[string]struct {
		text string
		into any
	}{
		"answer":  {`{` + columns + `,` + rows + `,"truncated":false,"datasets":[],"bytes":9,"duration_ms":1}`, new(query.Answer)},
		"preview": {`{"dataset":"d",` + columns + `,` + rows + `}`, new(query.Rows)},
	} {
		require.NoError(t, json.Unmarshal([]byte(test.text), test.into), name)
		again, err := json.Marshal(test.into)
		require.NoError(t, err)
		require.Equal(t, test.text, string(again), name)
	}
}

func TestCSV(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, query.WriteCSV(&b, query.Answer{
		Columns: []storage.Column{{Name: "station"}, {Name: "highest, °C"}},
		Rows:    [][]any{{"harbour \"north\"", 5.25}, {nil, []any{"a", float64(1)}}},
	}))
	require.Equal(t, "station,\"highest, °C\"\n\"harbour \"\"north\"\"\",5.25\n,\"[\"\"a\"\",1]\"\n", b.String())
}

func TestCellsOfFloats(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		"1e+300": 1e300, "-1e+300": json.Number("-1E300"), "1e-300": 1e-300, "0": 0.0, "0.5": 0.5,
		"100000": json.Number("1e5"), "123456789012345680000": 123456789012345678901.0,
	} {
		require.Equal(t, want, query.Text(value))
	}
}

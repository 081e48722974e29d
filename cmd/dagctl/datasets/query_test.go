package datasets

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/storage"
)

func TestCSV(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, writeCSV(&b, query.Answer{
		Columns: []storage.Column{{Name: "station"}, {Name: "highest, °C"}},
		Rows:    [][]any{{"harbour \"north\"", 5.25}, {nil, []any{"a", float64(1)}}},
	}))
	require.Equal(t, "station,\"highest, °C\"\n\"harbour \"\"north\"\"\",5.25\n,\"[\"\"a\"\",1]\"\n", b.String())
}

func TestPartitionRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"2026-01-01":             {"2026-01-01", "2026-01-01"},
		"2026-01-01..2026-01-31": {"2026-01-01", "2026-01-31"},
		"19000000..":             {"19000000", ""},
		"":                       {"", ""},
	} {
		from, to := partitionRange(text)
		require.Equal(t, want, [2]string{from, to}, text)
	}
}

func TestCellsOfFloats(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		"1e+300": 1e300, "-1e+300": json.Number("-1E300"), "1e-300": 1e-300, "0": 0.0, "0.5": 0.5,
		"100000": json.Number("1e5"), "123456789012345680000": 123456789012345678901.0,
	} {
		require.Equal(t, want, cell(value))
	}
}

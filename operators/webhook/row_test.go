package webhook

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// A key stays what it is when its column gets another type, or the job another time zone.
func TestKeysAreCanonical(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{`1`, `1.0`, `1.00`}, {`2.5`, `2.500`}, {`-0.10`, `-0.1`}, {`1e300`}, {`100`}, {`"1.0"`},
		{`"2026-01-01 01:00:00+01"`, `"2026-01-01 00:00:00+00"`, `"2026-01-01 05:45:00+05:45"`},
		{`"2026-01-01 00:00:00.25+00"`}, {`"infinity"`}, {`true`}, {`{"a":1.0}`},
	} {
		keys := map[string]bool{}
		for _, value := range same {
			row, err := readRow(1, []byte(`{"k":`+value+`}`), map[string]bool{"k": value[0] == '"' && len(value) > 6})
			require.NoError(t, err)
			key, err := row.Key([]string{"k"})
			require.NoError(t, err)
			keys[key] = true
		}
		require.Len(t, keys, 1, "%v", same)
	}

	// Text is not read as anything.
	row, err := readRow(1, []byte(`{"a":"1.0","b":"2026-01-01 01:00:00+01"}`), nil)
	require.NoError(t, err)
	key, err := row.Key([]string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, `["1.0","2026-01-01 01:00:00+01"]`, key)
}

// Numbers that JSON does not have are sent as text, and text stays.
func TestNumbersThatJSONDoesNotHave(t *testing.T) {
	t.Parallel()
	row, err := readRow(1, []byte(`{"a":NaN,"b":[Infinity,-Infinity],"c":"\"NaN\\","NaN":1}`), nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"a":"NaN","b":["Infinity","-Infinity"],"c":"\"NaN\\","NaN":1}`, string(row.Text))
	require.True(t, json.Valid(row.Text))
	_, err = readRow(2, []byte(`{"a":nan}`), nil)
	require.Error(t, err)
}

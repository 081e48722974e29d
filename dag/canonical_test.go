package dag

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// decoded returns what canonicalJSON must return, by way of decoding.
func decoded(t require.TestingT, v any) string {
	text, err := json.Marshal(v)
	require.NoError(t, err)
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var generic any
	require.NoError(t, decoder.Decode(&generic))
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(generic)) // maps are written with sorted keys
	return strings.TrimSuffix(b.String(), "\n")
}

func TestCanonicalJSON(t *testing.T) {
	t.Parallel()
	type inner struct {
		Z json.Number
		A []any
	}

	for _, v := range []any{
		nil, true, "", "a \"quoted\" \\ \u2028 <&>", 1.5, -3, []int{}, map[string]any{}, [][]int{{}, {1, 2}},
		struct {
			B inner
			A map[string]any `json:"a"`
		}{inner{"9007199254740993", []any{nil, false, map[string]int{"b": 1, "a": 2},
			[]any{}}}, map[string]any{"}": "]", ",": `"`, "": nil}},
	} {
		text, err := canonicalJSON(v)
		require.NoError(t, err)
		require.Equal(t, decoded(t, v), string(text))
	}

	_, err := canonicalJSON(func() {})
	require.Error(t, err)
}

func FuzzCanonicalJSON(f *testing.F) {
	f.Add(`{"b": [1, {"d": "\\\"", "c": {}}], "a": null}`)
	f.Fuzz(func(t *testing.T, text string) {
		var v any
		if json.Unmarshal([]byte(text), &v) != nil {
			return
		}
		canonical, err := canonicalJSON(v)
		require.NoError(t, err)
		require.JSONEq(t, decoded(t, v), string(canonical))
	})
}

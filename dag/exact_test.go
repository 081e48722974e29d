package dag

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// numbered is a document with a number in each of the places where a document has numbers of any kind.
func numbered(t *testing.T, number string) *Document {
	t.Helper()
	doc, problems := Parse(File{Text: []byte(fmt.Sprintf(`
name: numbers
jobs:
  - { name: up, operator: command, max_attempts: 3, retry: { initial_seconds: 1, multiplier: 2 }, source: { kind: manual } }
  - name: down
    operator: command
    max_attempts: 3
    retry: { initial_seconds: 1, multiplier: 2 }
    inputs: [{ from: { job: up }, where: { n: [%[1]s, 7] } }]
    config: { number: %[1]s, deep: [{ at: %[1]s }] }
    checks: [{ accepted_values: { column: n, values: [%[1]s] } }]
`, number))}, testCatalog())
	require.Empty(t, problems.Error())
	return doc
}

func TestNumbersOfADocumentKeepTheirDigits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]json.Number{"9007199254740993": "9007199254740993", "1.0": "1", "1": "1",
		"0.1000000000000000055511151231257827": "0.1000000000000000055511151231257827", "1_000": "1000", "0x1F": "31",
		"340282366920938463463374607431768211455": "340282366920938463463374607431768211455", "1e300": "1e+300",
		"12345678901234567890.5": "12345678901234567890.5"} {
		doc := numbered(t, text)
		down := doc.Jobs[1]
		require.Equal(t, Values{want, json.Number("7")}, down.Inputs[0].Where[0].Values)
		require.Equal(t, Values{want}, down.Checks[0].Values)
		require.Equal(t, Config{"number": want, "deep": []any{map[string]any{"at": want}}}, down.Config)

		// What is stored and read again is the same document.
		var again Job
		stored, err := json.Marshal(down)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(stored, &again))
		require.Equal(t, down.Inputs[0].Where, again.Inputs[0].Where)
		require.Equal(t, down.Config, again.Config)
		require.Equal(t, down.Checks[0].Hash(), again.Checks[0].Hash())

		// PostgreSQL writes numbers without exponents.
		stored = []byte(strings.ReplaceAll(string(stored), "1e+300", "1"+strings.Repeat("0", 300)))
		require.NoError(t, json.Unmarshal(stored, &again))
		require.Equal(t, down.Config, again.Config)
	}
}

func TestNumbersThatDifferHaveOtherHashes(t *testing.T) {
	t.Parallel()
	hash := func(text string) string { return Hash(numbered(t, text), nil, nil) }
	require.NotEqual(t, hash("9007199254740993"), hash("9007199254740992"))
	require.NotEqual(t, hash("0.1"), hash("0.1000000000000000055511151231257827"))
	require.Equal(t, hash("1"), hash("1.0"), "equal numbers compare equally, so nothing has to be rebuilt")
	require.Equal(t, hash("1e3"), hash("1000"))
	require.NotEqual(t, hash("1"), hash(`"1"`))

	// From before numbers were exact.
	require.Equal(t, "3312fd1c590a6af62912a2d8ab48f7d723aaa2b267cf11d03f36766fe39c1e60", hash("1.50"))
	require.Equal(t, "f31f20229a4bba5c1050563649b7be7fd8a5099cd58e5fecbc75df86ea53c783", hash("-42"))
	require.Equal(t, "45f14ffbcae153e7f79e5f93c4dac1f2be9592a6d0dc7a404fa91c5e53cd512b", hash("2.5e-9"))
}

package inside

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSamplesCanBeStored(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`["plain", "\n", "\u00e9"]`:         `["plain", "\n", "\u00e9"]`,
		`["a\u0000b"]`:                      `["a\ufffdb"]`,
		`["\\u0000", "\\\u0000"]`:           `["\\u0000", "\\\ufffd"]`,
		`["\ud83d\ude00", "\uD83D\uDE00"]`:  `["\ud83d\ude00", "\uD83D\uDE00"]`,
		`["\ud83d", "\ude00", "\ud83d\n"]`:  `["\ufffd", "\ufffd", "\ufffd\n"]`,
		`["\ude00\ud83d", "\ud83d\ud83d"]`:  `["\ufffd\ufffd", "\ufffd\ufffd"]`,
		`["\u0000\u0000\\", "\u0000"]`:      `["\ufffd\ufffd\\", "\ufffd"]`,
		`["\ud83d\\u0000", "\ud83d\u0000"]`: `["\ufffd\\u0000", "\ufffd\ufffd"]`,
	} {
		got := storable(json.RawMessage(text))
		require.Equal(t, want, string(got))
		require.True(t, json.Valid(got))
	}
}

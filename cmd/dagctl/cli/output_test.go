package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableAlignsAndYAMLKeepsOrder(t *testing.T) {
	t.Parallel()
	out, err := yamlFromJSON([]byte(`{"b": "1", "a": [{"x": null, "on": true}], "s": "yes"}`))
	require.NoError(t, err)
	require.Equal(t, "b: \"1\"\na:\n    - x: null\n      \"on\": true\ns: \"yes\"\n", string(out))
}

func TestArgumentsForShells(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/srv/ann/.dagctl/worker-token": "/srv/ann/.dagctl/worker-token",
		"/my data/token":                "'/my data/token'",
		"od d/é dags":                   "'od d/é dags'",
		"-x":                            "./-x",
		"it's":                          `'it'\''s'`,
		"$(rm -rf .)":                   "'$(rm -rf .)'",
	} {
		require.Equal(t, want, Argument(path))
	}
}

// A character of two columns counts as two, so that the columns after it stay below each other.
func TestTableAlignsWideCharacters(t *testing.T) {
	table := Table{Header: []string{"NAME", "ROWS"}}
	table.Add("日本語 🚀", "1")
	table.Add("größe", "12")
	var b strings.Builder
	table.Write(&b)
	require.Equal(t, "NAME       ROWS\n日本語 🚀     1\ngröße        12\n", b.String())
	require.Equal(t, "日本…", OneLine("日本語です", 6))
	require.Equal(t, "e\u0301", OneLine("e\u0301", 1))
}

// Flags and what a selector makes an emoji take two columns.
func TestTableAlignsFlagsAndEmoji(t *testing.T) {
	t.Parallel()
	for text, width := range map[string]int{
		"🇩🇪": 2, "🇩🇪🇫🇷": 4, "❤️": 2, "❤": 1, "☎️x": 3, "1️⃣": 2, "👩‍👩‍👧": 2, "🏴󠁧󠁢󠁥󠁮󠁧󠁿": 2, "🇩": 1, "नि": 1, "é": 1,
	} {
		require.Equal(t, width, Width(text), text)
		require.Equal(t, text, Whole(text), text)
	}
	require.Equal(t, "🇩🇪…", OneLine("🇩🇪🇫🇷🇬🇧", 4))
	require.Equal(t, "🇩🇪…", OneLine("🇩🇪🇫🇷🇬🇧", 3))
}

// What turns the direction of text, or is not seen, does not reach a terminal.
func TestFormatControlsAreReplaced(t *testing.T) {
	t.Parallel()
	for _, control := range []string{"\u202e", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c", "\u200b",
		"\u2060", "\ufeff", "\u00ad", "\u200d", "\u200c", "\U000e0041", "\u2028", "\u0085", "\x1b", "\ufff9"} {
		require.Equal(t, "a b", Whole("a"+control+"b"), "%+q", control)
		require.Equal(t, "a b", OneLine("a"+control+"b", 10), "%+q", control)
	}
	require.Equal(t, "می\u200cخواهم", Whole("می\u200cخواهم"), "which Persian is written with")
}

// What people copy into commands is whole, also on a narrow terminal.
func TestIdentifiersAreWhole(t *testing.T) {
	t.Parallel()
	id, key := "0190c0de-0000-7000-8000-000000000001", strings.Repeat("k", 90)
	table := Table{Header: []string{"TASK OF IT", "PARTITION", "WHY"}}
	table.Add(id, key, strings.Repeat("words ", 20))
	out := screen{width: 60}
	table.Write(&out)
	require.Contains(t, out.String(), id+"  "+key+"  words w…")
	require.Equal(t, key, Cell(key))
	require.Equal(t, 60, Width(Cell(strings.Repeat("a b ", 30))))
}

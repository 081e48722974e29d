package literal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/literal"
)

func TestEscapesThatNoDatabaseStores(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":"b"}`:                "",
		`"\\u0000"`:                "",
		`"\\\\ud800"`:              "",
		`"\u00e9 \ud83d\ude00 \n"`: "",
		`"\uD83D\uDE00"`:           "",
		`"\u0000"`:                 "holds the character U+0000, which no text may",
		`"\\\u0000"`:               "holds the character U+0000, which no text may",
		`{"\ud800":1}`:             `holds \ud800, half of a surrogate pair without the other one, which is no character`,
		`"\ud800\u0041"`:           `holds \ud800, half of a surrogate pair without the other one, which is no character`,
		`"\ud800\\udc00"`:          `holds \ud800, half of a surrogate pair without the other one, which is no character`,
		`["\udc00\ud800"]`:         `holds \udc00, half of a surrogate pair without the other one, which is no character`,
		`"\ud83d\ude00\udbff"`:     `holds \udbff, half of a surrogate pair without the other one, which is no character`,
		`"\ud83d`:                  `holds \ud83d, half of a surrogate pair without the other one, which is no character`,
		`"\u00`:                    "",
		`"\`:                       "",
	} {
		if err := literal.Escapes([]byte(text)); want == "" {
			require.NoError(t, err, text)
		} else {
			require.EqualError(t, err, want, text)
		}
	}
}

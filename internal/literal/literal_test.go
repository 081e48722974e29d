package literal_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
)

func TestNumberIsCanonical(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1": "1", "1.0": "1", "+1": "1", "1e0": "1", "-1.50": "-1.5", ".5": "0.5", "5.": "5", "-0": "0", "-0.0": "0",
		"007": "7", "1e3": "1000", "1E-3": "0.001", "0.000001": "0.000001",
		"0.0000001": "1e-7", "1.5e-10": "1.5e-10",
		"9007199254740993": "9007199254740993", "1e22": "10000000000000000000000",
		"1e39": "1" + strings.Repeat("0", 39),
		"1e40": "1e+40", "1.25e300": "1.25e+300", "0e1000": "0",
		"340282366920938463463374607431768211455": "340282366920938463463374607431768211455",
		"0.1000000000000000055511151231257827":    "0.1000000000000000055511151231257827",
	} {
		got, err := literal.Number(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got.String(), text)
		again, err := literal.Number(want)
		require.NoError(t, err)
		require.Equal(t, got, again)
	}

	for text, why := range map[string]string{
		"": "not a number", "-": "not a number", ".": "not a number", "1e": "not a number", "0x10": "not a number",
		"1.2.3": "not a number", "e5": "not a number", "nan": "not a number", "1e40000000": "exponent",
		"1e-99999999999999999999": "exponent", strings.Repeat("9", 2000): "digits", "1e1001": "exponent",
	} {
		_, err := literal.Number(text)
		require.ErrorContains(t, err, why, text)
	}

	for text, want := range map[string]string{"0x10": "16", "0o17": "15", "-0b101": "-5", "1_000": "1000",
		"18446744073709551616": "18446744073709551616"} {
		got, err := literal.Whole(text)
		require.NoError(t, err)
		require.Equal(t, want, got.String())
	}
}

// Numbers that a float64 holds have the text that they had when documents held float64s, so no hash has changed.
func TestNumberIsWrittenAsJSONWritesIt(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		f := math.Float64frombits(random.Uint64())
		if random.IntN(2) == 0 {
			f = math.Trunc(random.NormFloat64()*1e6) / math.Pow10(random.IntN(9))
		}
		if math.IsNaN(f) || math.IsInf(f, 0) || f == 0 || math.Abs(f) >= 1e21 && math.Abs(f) < 1e40 {
			continue
		}
		want, err := json.Marshal(f)
		require.NoError(t, err)
		for _, text := range []string{fmt.Sprint(f), fmt.Sprintf("%e", f), string(want)} {
			if text == fmt.Sprintf("%e", f) && text != strconv.FormatFloat(f, 'e', -1, 64) {
				continue // it has only six digits
			}
			got, err := literal.Number(text)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String())
		}

		exact, ok := new(big.Rat).SetString(string(want))
		require.True(t, ok)
		number, err := literal.Number(string(want))
		require.NoError(t, err)
		back, ok := new(big.Rat).SetString(number.String())
		require.True(t, ok)
		require.Zero(t, exact.Cmp(back))
	}
}

func TestNumbersOfAText(t *testing.T) {
	t.Parallel()
	require.NoError(t, literal.Numbers([]byte(`{"a": [1, -2.5e3], "1e99999": "1e99999 \" 1e99999"}`)))
	require.NoError(t, literal.Numbers([]byte(`- not 1.2.3 json`)))
	err := literal.Numbers([]byte("{\n  \"a\": 1e40000000}"))
	require.ErrorContains(t, err, "line 2, column 8: the number 1e40000000 is refused: its exponent")
	require.ErrorContains(t, literal.Numbers([]byte("[1, 0."+strings.Repeat("3", 5000)+"]")), "line 1, column 5")

	v, err := literal.Decode([]byte(`{"a": [9007199254740993, 1.0], "b": null}`))
	require.NoError(t, err)
	require.Equal(t, map[string]any{"a": []any{json.Number("9007199254740993"), json.Number("1")}, "b": nil}, v)
	_, err = literal.Decode([]byte(`1 2`))
	require.Error(t, err)
	_, err = literal.Decode([]byte(`[1e4000]`))
	require.Error(t, err)
}

func TestNamesOfAText(t *testing.T) {
	t.Parallel()
	for _, sound := range []string{`{"a": {"a": 1}, "b": [{"a": 1}, {"a": "\"a\": 2"}]}`, `{"a": `, `[1 2]`, `{"a": "\ud800"}`} {
		require.NoError(t, literal.Names([]byte(sound)), sound)
	}
	for text, want := range map[string]string{
		"{\"a\": 1,\n  \"b\": [{\"x\": 1, \"x\": 2}]}": `line 2, column 18: the field "x" appears twice`,
		`{"a": 1, "\u0061": 2}`:                        `line 1, column 10: the field "\u0061" appears twice`,
	} {
		require.ErrorContains(t, literal.Names([]byte(text)), want)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	n := func(text string) json.Number { return json.Number(text) }
	const instant = "TIMESTAMP WITH TIME ZONE"
	for _, test := range []struct {
		column string
		v      any
		want   string // "never", "null", a text that is cast, or an error after a !
	}{
		{"BIGINT", n("2"), "2"}, {"BIGINT", n("2.0"), "2"}, {"BIGINT", n("1.5"), "never"}, {"BIGINT", nil, "null"},
		{"BIGINT", n("9007199254740993"), "9007199254740993"}, {"BIGINT", n("9223372036854775808"), "never"},
		{"BIGINT", "2", "2"}, {"BIGINT", "02", "!whole number"}, {"BIGINT", "abc", `!the text "abc"`},
		{"BIGINT", true, "!equals true"}, {"BIGINT", 1.0, "1"}, {"BIGINT", int64(7), "7"}, {"BIGINT", "-0", "!-0"},
		{"TINYINT", n("-128"), "-128"}, {"TINYINT", n("128"), "never"}, {"UTINYINT", n("255"), "255"},
		{"UTINYINT", n("-1"), "never"}, {"UBIGINT", n("18446744073709551615"), "18446744073709551615"},
		{"HUGEINT", n("170141183460469231731687303715884105728"), "never"},
		{"BIGNUM", n("1e50"), "1" + strings.Repeat("0", 50)},

		{"DECIMAL(2,1)", n("1.26"), "never"}, {"DECIMAL(2,1)", n("1.3"), "1.3"}, {"DECIMAL(2,1)", n("10"), "never"},
		{"DECIMAL(2,1)", "1.26", "!without rounding"}, {"DECIMAL(2,1)", "1.30", "1.3"},
		{"DECIMAL(38,0)", n("12345678901234567890123456789012345678"), "12345678901234567890123456789012345678"},
		{"DECIMAL(4,4)", n("0.0001"), "0.0001"}, {"DECIMAL(4,4)", n("1"), "never"}, {"DECIMAL(4,4)", n("0"), "0"},

		{"DOUBLE", n("0.1"), "0.1"}, {"DOUBLE", n("9007199254740993"), "never"}, {"DOUBLE", n("1e300"), "1e+300"},
		{"DOUBLE", n("0.30000000000000004"), "0.30000000000000004"}, {"DOUBLE", "nan", "nan"},
		{"DOUBLE", n("10"), "10"},
		{"DOUBLE", "0.1", "0.1"}, {"DOUBLE", "x", "!x"}, {"FLOAT", n("0.1"), "0.1"},
		{"FLOAT", n("16777217"), "never"},
		{"FLOAT", n("1e39"), "never"}, {"DOUBLE", true, "!true"}, {"DOUBLE", n("-0"), "0"},

		{"BOOLEAN", true, "true"}, {"BOOLEAN", "false", "false"}, {"BOOLEAN", "yes", "!true or false"},
		{"BOOLEAN", n("1"), "!equals 1"},
		{"VARCHAR", "' OR 1=1", "' OR 1=1"}, {"VARCHAR", n("5"), "!quote it"}, {"VARCHAR", true, "!quote it"},
		{"ENUM('a', 'b')", "c", "c"},

		{"DATE", "2024-02-29", "2024-02-29"}, {"DATE", "2023-02-29", "!write a date"}, {"DATE", "2024-2-9", "!write"},
		{"DATE", "2024-01-31 00:00:00", "!write a date"}, {"DATE", n("20240131"), "!write a date"},
		{"TIME", "05:30:00.25", "05:30:00.25"}, {"TIME", "25:00:00", "!time"}, {"TIME", "05:30", "!time"},
		{"TIMESTAMP", "2024-01-31T05:30:00", "2024-01-31 05:30:00"},
		{"TIMESTAMP", "2024-01-31", "!without an offset"},
		{"TIMESTAMP", "2024-01-31 05:30:00Z", "!without an offset"},
		{"TIMESTAMP_S", "2024-01-31 05:30:00.5", "!0 digits"},
		{"TIMESTAMP_NS", "2024-01-31 05:30:00.123456789", "2024-01-31 05:30:00.123456789"},
		{instant, "2024-01-31T05:30:00+09:00", "2024-01-30 20:30:00+00"},
		{instant, "2024-01-31 05:30:00.5-0330", "2024-01-31 09:00:00.5+00"},
		{instant, "2024-01-31 05:30:00+09", "2024-01-30 20:30:00+00"}, {instant, "2024-01-31 05:30:00Z",
			"2024-01-31 05:30:00+00"},
		{instant, "2024-01-31 05:30:00", "!an offset"}, {instant, "2024-01-31", "!an offset"},
		{"UUID", "2C5EA4C0-4067-11e9-8bad-9b1deb4d3b7d", "2C5EA4C0-4067-11e9-8bad-9b1deb4d3b7d"},
		{"UUID", "2c5ea4c0406711e98bad9b1deb4d3b7d", "!like"},
		{"STRUCT(a INTEGER)", "x", "!cannot be compared"}, {"BLOB", "x", "!in SQL"}, {"JSON", nil, "null"},
	} {
		c, err := literal.Compare("c", test.column, test.v)
		if why, fails := strings.CutPrefix(test.want, "!"); fails {
			require.True(t, fault.Is(err, fault.Invalid), "%s %v", test.column, test.v)
			require.Contains(t, fault.Text(err), why)
			require.Contains(t, err.Error(), `column "c" is `+test.column)
			continue
		}

		require.NoError(t, err, "%s %v", test.column, test.v)
		got := c.Value
		switch {
		case c.Null:
			got = "null"
		case c.Never:
			got = "never"
		}
		require.Equal(t, test.want, got, "%s %v", test.column, test.v)
	}
}

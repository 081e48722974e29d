package textfile_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"

	"github.com/dagctl/dagctl/operators/textfile"
)

func utf16(t *testing.T, text string, order unicode.Endianness, bom unicode.BOMPolicy) string {
	t.Helper()
	out, err := unicode.UTF16(order, bom).NewEncoder().String(text)
	require.NoError(t, err)
	return out
}

// Each option with the content that it is for: exactly these columns and rows, or an error with its line.
// noText is what is said of a value with bytes that are no text.
const noText = "is not UTF-8, or has bytes that its `encoding` does not have: name the file's encoding, for example " +
	"`encoding: windows-1252`"

func TestOptions(t *testing.T) {
	t.Parallel()
	little, big, bom := unicode.LittleEndian, unicode.BigEndian, unicode.UseBOM
	latin, err := charmap.Windows1252.NewEncoder().String("name,n\ncafé €,1\n")
	require.NoError(t, err)
	latinLine, err := charmap.Windows1252.NewEncoder().String(`{"name": "café €"}`)
	require.NoError(t, err)
	csv := func(change func(*textfile.Declaration)) textfile.Declaration {
		d := textfile.Declaration{Format: "csv"}
		change(&d)
		return d
	}
	encoded := func(format, encoding string) textfile.Declaration {
		return textfile.Declaration{Format: format, Encoding: encoding}
	}
	typed := func(d textfile.Declaration, column, name string) textfile.Declaration {
		d.Types = map[string]string{column: name}
		return d
	}
	none, single, yes, no := "", "'", true, false

	for name, c := range map[string]struct {
		declared           textfile.Declaration
		text               string
		columns, rows, bad []string
		fault              string
	}{
		"utf-16 with its mark, little": {declared: encoded("csv", "utf-16"),
			text:    utf16(t, "name,n\ncafé,1\n", little, bom),
			columns: []string{"name VARCHAR", "n BIGINT"}, rows: []string{"café|1"}},
		"utf-16 with its mark, big": {declared: encoded("csv", "utf-16"), text: utf16(t, "name,n\ncafé,1\n", big, bom),
			columns: []string{"name VARCHAR", "n BIGINT"}, rows: []string{"café|1"}},
		"utf-16 without a mark": {declared: encoded("csv", "utf-16be"),
			text:    utf16(t, "name\n猫\n", big, unicode.IgnoreBOM),
			columns: []string{"name VARCHAR"}, rows: []string{"猫"}},
		"utf-16 in ndjson": {declared: encoded("ndjson", "utf-16"), text: utf16(t, `{"a": "猫"}`, little, bom),
			columns: []string{"a VARCHAR"}, rows: []string{"猫"}},
		"utf-16 in json": {declared: encoded("json", "utf-16"), text: utf16(t, `[{"a": "猫"}]`, big, bom),
			columns: []string{"a VARCHAR"}, rows: []string{"猫"}},
		"utf-16 that nobody declared": {declared: encoded("csv", ""), text: utf16(t, "a\n1\n", little, bom),
			fault: "a is UTF-16: say so with `encoding: utf-16`"},
		"utf-16 that nobody declared, in ndjson": {declared: encoded("ndjson", ""),
			text: utf16(t, `{"a": 1}`, big, bom), fault: "a is UTF-16: say so with `encoding: utf-16`"},
		"a line that does not fit in utf-16": {declared: typed(encoded("csv", "utf-16"), "n", "BIGINT"),
			text:    utf16(t, "n\n1\nx\n", little, bom),
			columns: []string{"n BIGINT"}, rows: []string{"1"}, bad: []string{`a line 3, column n: "x" is no BIGINT`}},
		"windows-1252": {declared: encoded("csv", "windows-1252"), text: latin,
			columns: []string{"name VARCHAR", "n BIGINT"}, rows: []string{"café €|1"}},
		"windows-1252 in ndjson": {declared: encoded("ndjson", "windows-1252"), text: latinLine,
			columns: []string{"name VARCHAR"}, rows: []string{"café €"}},
		"windows-1252 in json": {declared: encoded("json", "windows-1252"), text: "[" + latinLine + "]",
			columns: []string{"name VARCHAR"}, rows: []string{"café €"}},
		"bytes that windows-1252 does not have": {declared: encoded("csv", "windows-1252"),
			text: "a,b\n1,x\x81y\n2,\x9d\n3,\x80\n", columns: []string{"a BIGINT", "b VARCHAR"}, rows: []string{"3|€"},
			bad: []string{`a line 2, column b: "x\xffy" ` + noText, `a line 3, column b: "\xff" ` + noText}},
		"latin1 is not windows-1252": {declared: encoded("csv", "latin1"), text: "a\nx\x85y\xe9\n",
			columns: []string{"a VARCHAR"}, rows: []string{"x\u0085yé"}},
		"bytes that us-ascii does not have": {declared: encoded("csv", "us-ascii"), text: "a\nx\n\xe9\n",
			columns: []string{"a VARCHAR"}, rows: []string{"x"}, bad: []string{`a line 3, column a: "\xff" ` + noText}},
		"a name that only browsers know": {declared: encoded("csv", "x-sjis"), text: "a\n\x83e\n",
			columns: []string{"a VARCHAR"}, rows: []string{"テ"}},
		"lines that end with a delimiter": {declared: encoded("csv", ""), text: "a,b,\n1,2,\n3,4,\n",
			columns: []string{"a BIGINT", "b BIGINT", "column2 VARCHAR"}, rows: []string{"1|2|NULL", "3|4|NULL"}},
		"half a character in shift_jis": {declared: encoded("csv", "shift_jis"), text: "a,b\n1,ok\n2,\x81\n",
			columns: []string{"a BIGINT", "b VARCHAR"}, rows: []string{"1|ok"},
			bad: []string{`a line 3, column b: "\xff" ` + noText}},
		"a byte that gbk does not have, in ndjson": {declared: encoded("ndjson", "gbk"),
			text: "{\"a\": \"\xff\"}\n{\"a\": \"\xc4\xe3\"}\n", columns: []string{"a VARCHAR"}, rows: []string{"你"},
			bad: []string{`a line 1: "{\"a\": \"\xff\"}" is no JSON: invalid UTF-8 within "/a" after offset 7`}},
		"half a pair in utf-16": {declared: encoded("csv", "utf-16le"),
			text:    "a\x00\n\x00\x00\xd8\n\x00\xfd\xff\n\x00\x3d\xd8\x00\xde\n\x00x\x00\x00\xdc\n\x00",
			columns: []string{"a VARCHAR"}, rows: []string{"\ufffd", "😀"},
			bad: []string{`a line 2, column a: "\xff" ` + noText, `a line 5, column a: "x\xff" ` + noText}},
		"utf-16 that is cut off": {declared: encoded("csv", "utf-16"), text: "\xfe\xff\x00a\x00\n\x00b\x00\n\x00",
			columns: []string{"a VARCHAR"}, rows: []string{"b"}, bad: []string{`a line 3, column a: "\xff" ` + noText}},
		"a mark in csv": {declared: encoded("csv", ""), text: "\xEF\xBB\xBFa,b\n1,2\n",
			columns: []string{"a BIGINT", "b BIGINT"}, rows: []string{"1|2"}},
		"a mark before a quote": {declared: encoded("csv", ""), text: "\xEF\xBB\xBF\"a\",b\n1,2\n",
			columns: []string{"a BIGINT", "b BIGINT"}, rows: []string{"1|2"}},
		"a mark in ndjson": {declared: encoded("ndjson", ""), text: "\xEF\xBB\xBF{\"a\": 1}\n",
			columns: []string{"a BIGINT"}, rows: []string{"1"}},
		"a mark in json": {declared: encoded("json", ""), text: "\xEF\xBB\xBF[{\"a\": 1}]",
			columns: []string{"a BIGINT"}, rows: []string{"1"}},

		"dates": {declared: csv(func(d *textfile.Declaration) { d.DateFormat = "%d/%m/%Y" }),
			text: "d\n01/02/2026\n31/12/2025\n", columns: []string{"d DATE"},
			rows: []string{"2026-02-01", "2025-12-31"}},
		"a date of another format": {
			declared: typed(csv(func(d *textfile.Declaration) { d.DateFormat = "%d/%m/%Y" }), "d", "DATE"),
			text:     "d\n01/02/2026\n2026-02-01\n", columns: []string{"d DATE"}, rows: []string{"2026-02-01"},
			bad: []string{`a line 3, column d: "2026-02-01" is no DATE`}},
		"times": {declared: csv(func(d *textfile.Declaration) { d.TimestampFormat = "%d.%m.%Y %H:%M" }),
			text: "t\n01.02.2026 13:05\n", columns: []string{"t TIMESTAMP"}, rows: []string{"2026-02-01 13:05:00"}},
		"a time of another format": {
			declared: typed(csv(func(d *textfile.Declaration) { d.TimestampFormat = "%d.%m.%Y %H:%M" }), "t",
				"TIMESTAMP"),
			text: "t\n2026-02-01 13:05\n01.02.2026 13:05\n", columns: []string{"t TIMESTAMP"},
			rows: []string{"2026-02-01 13:05:00"},
			bad:  []string{`a line 2, column t: "2026-02-01 13:05" is no TIMESTAMP`}},
		"days that do not exist": {
			declared: typed(csv(func(d *textfile.Declaration) { d.DateFormat = "%d/%m/%Y" }), "d", "DATE"),
			text:     "d\n31/02/2025\n29/02/2025\n1/3/2025\n29/02/2024\n31/04/2026\n03/03/2025\n",
			columns:  []string{"d DATE"},
			rows:     []string{"2025-03-01", "2024-02-29", "2025-03-03"},
			bad: []string{`a line 2, column d: "31/02/2025" is no DATE`, `a line 3, column d: "29/02/2025" is no DATE`,
				`a line 6, column d: "31/04/2026" is no DATE`}},
		"days of years that do not exist": {
			declared: typed(csv(func(d *textfile.Declaration) { d.DateFormat = "%j %Y" }), "d", "DATE"),
			text:     "d\n366 2025\n366 2024\n", columns: []string{"d DATE"}, rows: []string{"2024-12-31"},
			bad: []string{`a line 2, column d: "366 2025" is no DATE`}},
		"times that do not exist": {
			declared: typed(csv(func(d *textfile.Declaration) { d.TimestampFormat = "%d-%b-%Y %H:%M:%S.%f%z" }), "t",
				"TIMESTAMP WITH TIME ZONE"),
			text:    "t\n30-Feb-2025 10:00:00.5+0530\n1-mar-2025 10:00:00.05+05:30\n15-Mar-2025 10:59:60.0Z\n",
			columns: []string{"t TIMESTAMP WITH TIME ZONE"}, rows: []string{"2025-03-01 04:30:00.05+00"},
			bad: []string{`a line 2, column t: "30-Feb-2025 10:00:00.5+0530" is no TIMESTAMP WITH TIME ZONE`,
				`a line 4, column t: "15-Mar-2025 10:59:60.0Z" is no TIMESTAMP WITH TIME ZONE`}},
		"a day that does not exist is text": {
			declared: csv(func(d *textfile.Declaration) { d.DateFormat = "%d/%m/%Y" }),
			text:     "d\n31/02/2025\n", columns: []string{"d VARCHAR"}, rows: []string{"31/02/2025"}},
		"numbers that a DOUBLE gives back": {declared: typed(encoded("csv", ""), "a", "DOUBLE"),
			text: "a\n0.10000000000000000000\n0.30000000000000004\n0.1000000000000000055511151231257827\n" +
				"4.9406564584124654e-324\n1.7976931348623157e308\n123456789.12345679\n9007199254740994.0\n0.0e-999\n",
			columns: []string{"a DOUBLE"},
			rows: []string{"0.1", "0.30000000000000004", "0.1", "5e-324", "1.7976931348623157e+308",
				"123456789.12345679", "9007199254740994.0", "0.0"}},
		"numbers that a DOUBLE does not give back": {declared: typed(encoded("csv", ""), "a", "DOUBLE"),
			text:    "a\n9007199254740993.0\n12345678901234567890.123456789\n1e-400\n123456789.123456789\n0.5\n",
			columns: []string{"a DOUBLE"}, rows: []string{"0.5"},
			bad: []string{`a line 2, column a: "9007199254740993.0" is not held exactly by DOUBLE`,
				`a line 3, column a: "12345678901234567890.123456789" is not held exactly by DOUBLE`,
				`a line 4, column a: "1e-400" is not held exactly by DOUBLE`,
				`a line 5, column a: "123456789.123456789" is not held exactly by DOUBLE`}},
		"numbers that a FLOAT does not give back": {declared: typed(encoded("csv", ""), "a", "FLOAT"),
			text: "a\n16777217.0\n0.1\n3.1415927\n1e-50\n", columns: []string{"a FLOAT"},
			rows: []string{"0.1", "3.1415927"},
			bad: []string{`a line 2, column a: "16777217.0" is not held exactly by FLOAT`,
				`a line 5, column a: "1e-50" is not held exactly by FLOAT`}},
		"numbers that no DOUBLE gives back are text": {declared: encoded("csv", ""),
			text: "a\n12345678901234567890.123456789\n", columns: []string{"a VARCHAR"},
			rows: []string{"12345678901234567890.123456789"}},
		"numbers that no DOUBLE gives back in ndjson": {declared: textfile.Declaration{Format: "ndjson"},
			text: `{"a": 9007199254740993.0}`, columns: []string{"a JSON"}, rows: []string{"9007199254740993.0"}},
		"dates in ndjson": {declared: textfile.Declaration{Format: "ndjson", DateFormat: "%d/%m/%Y"},
			text: `{"d": "01/02/2026"}`, columns: []string{"d DATE"}, rows: []string{"2026-02-01"}},

		"a decimal comma": {declared: csv(func(d *textfile.Declaration) { d.DecimalSeparator = "," }),
			text: "a;b\n1,5;2\n-0,25;3\n", columns: []string{"a DOUBLE", "b BIGINT"},
			rows: []string{"1.5|2", "-0.25|3"}},
		"a decimal point where a comma is": {
			declared: typed(csv(func(d *textfile.Declaration) { d.DecimalSeparator, d.Delimiter = ",", ";" }), "a",
				"DOUBLE"),
			text: "a;b\n1,5;2\n1.5;3\n", columns: []string{"a DOUBLE", "b BIGINT"}, rows: []string{"1.5|2"},
			bad: []string{`a line 3, column a: "1.5" is no DOUBLE`}},

		"comments": {declared: csv(func(d *textfile.Declaration) { d.Comment = "#" }),
			text: "# made by hand\na,b\n1,x #5\n#2,y\n3,z\n", columns: []string{"a BIGINT", "b VARCHAR"},
			rows: []string{"1|x #5", "3|z"}},
		"comments count as lines": {
			declared: typed(csv(func(d *textfile.Declaration) { d.Comment = "//" }), "a", "BIGINT"),
			text:     "// one\na,b\n// two\nx,1\n2,2\n", columns: []string{"a BIGINT", "b BIGINT"},
			rows: []string{"2|2"},
			bad:  []string{`a line 4, column a: "x" is no BIGINT`}},
		"skipped lines": {declared: csv(func(d *textfile.Declaration) { d.SkipLines = 2 }),
			text: "Report;x\n\na,b\n1,2\n", columns: []string{"a BIGINT", "b BIGINT"}, rows: []string{"1|2"}},
		"skipped lines count": {
			declared: typed(csv(func(d *textfile.Declaration) { d.SkipLines = 1 }), "a", "BIGINT"),
			text:     "Report\na,b\nx,2\n", columns: []string{"a BIGINT", "b BIGINT"},
			bad: []string{`a line 3, column a: "x" is no BIGINT`}},

		"a text of JSON is quoted once": {
			declared: typed(textfile.Declaration{Format: "ndjson"}, "n", "BIGINT"),
			text:     "{\"n\":1}\n{\"n\":\"seven\"}\n{\"n\":\"a\\nb\"}\n",
			columns:  []string{"n BIGINT"}, rows: []string{"1"},
			bad: []string{`a line 2, column n: "seven" is no BIGINT`, `a line 3, column n: "a\nb" is no BIGINT`}},

		"another quote": {declared: csv(func(d *textfile.Declaration) { d.Quote = &single }),
			text: "a,b\n'x,''y''',\"2\"\n", columns: []string{"a VARCHAR", "b VARCHAR"}, rows: []string{`x,'y'|"2"`}},
		"no quotes": {declared: csv(func(d *textfile.Declaration) { d.Quote = &none }),
			text: "a,b\n\"x,1\n5\" pipe,2\n", columns: []string{"a VARCHAR", "b BIGINT"}, rows: []string{`"x|1`, `5" pipe|2`}},
		"a quote that does not end": {declared: csv(func(d *textfile.Declaration) { d.Delimiter = "," }),
			text: "a,b\n1,2\n3,\"4\n", fault: "a: line 3 begins a quoted value that never ends"},

		"lines that end with CR alone": {declared: csv(func(d *textfile.Declaration) { d.Delimiter = "," }),
			text: "a,b\r1,2\r3,4\r", fault: "a: line 1 goes on behind a CR: end lines with LF or CRLF"},

		"a header of numbers": {declared: csv(func(d *textfile.Declaration) { d.Header = &yes }),
			text: "2025,2026\n1,2\n", columns: []string{"2025 BIGINT", "2026 BIGINT"}, rows: []string{"1|2"}},
		"no header": {declared: csv(func(d *textfile.Declaration) { d.Header = &no }),
			text: "a,b\nc,d\n", columns: []string{"column0 VARCHAR", "column1 VARCHAR"}, rows: []string{"a|b", "c|d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, c.declared.Check())
			out, err := convert(t, textfile.Job{Declaration: c.declared}, c.text)
			if c.fault != "" {
				require.EqualError(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.columns, out.columns)
			require.Equal(t, c.rows, out.rows)
			require.Equal(t, c.bad, out.bad)
		})
	}
}

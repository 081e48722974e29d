package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/textfile"
)

// parsed reads an answer.
func parsed(t *testing.T, text string, d document) (page, []string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.json")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	var rows []string
	d.row = func(row []byte) error {
		rows = append(rows, string(row))
		return nil
	}
	p, err := d.readPage(file)
	return p, rows, err
}

// Whatever an answer has beside its rows, these are found, and what it says of the next page.
func TestDocumentsOfAnyShape(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "data", "é\"\\"}
	var value func(r *rand.Rand, depth int) any
	value = func(r *rand.Rand, depth int) any {
		switch n := r.IntN(7); {
		case n < 2 && depth > 0:
			list := make([]any, r.IntN(3))
			for i := range list {
				list[i] = value(r, depth-1)
			}
			return list
		case n < 5 && depth > 0:
			object := map[string]any{}
			for range r.IntN(4) {
				object[names[r.IntN(len(names))]] = value(r, depth-1)
			}
			return object
		case n == 5:
			return json.Number("12345678901234567890.10")
		}
		return []any{nil, true, "", "x]}\n"}[r.IntN(4)]
	}

	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		object := func() map[string]any {
			o, _ := value(r, 3).(map[string]any)
			if o == nil {
				o = map[string]any{}
			}
			return o
		}
		want := []string{}
		list := make([]any, r.IntN(4))
		for i := range list {
			row := object()
			text, err := json.Marshal(row)
			require.NoError(t, err)
			list[i], want = row, append(want, string(text))
		}

		root, inner := object(), object()
		inner["rows"], inner["next"], root["data"], root["more"] = list, "to\u00e9", inner, true
		text, err := json.Marshal(root)
		require.NoError(t, err)
		var pretty bytes.Buffer
		require.NoError(t, json.Indent(&pretty, text, "", "\t"))

		p, rows, err := parsed(t, pretty.String(), document{records: "data.rows", next: "data.next", more: "more"})
		require.NoError(t, err, pretty.String())
		require.Equal(t, "to\u00e9", p.next)
		require.True(t, *p.more)
		require.Len(t, rows, len(want))
		for i := range want {
			require.JSONEq(t, want[i], rows[i])
		}
	}
}

// A document that is cut anywhere is refused, and never read as a shorter one.
func TestCutDocumentsAreRefused(t *testing.T) {
	t.Parallel()
	const whole = `{"data": {"rows": [{"a": 1}, {"a": "x"}], "next": "n"}, "rest": [1, {"b": null}]}`
	d := document{records: "data.rows", next: "data.next"}
	_, rows, err := parsed(t, whole, d)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	for n := range len(whole) {
		_, _, err := parsed(t, whole[:n], d)
		require.ErrorContains(t, err, "is no JSON", whole[:n])
	}
}

// No more than a row is held in memory, whatever the answer has beside rows.
func TestLongRowsAreRefusedAndLongRestsSkipped(t *testing.T) {
	t.Parallel()
	d := document{records: "rows"}
	_, _, err := parsed(t, fmt.Sprintf(`{"rows": [{"a": %q}]}`, strings.Repeat("x", 3*textfile.MaxRow)), d)
	require.ErrorContains(t, err, "has a row of more than 32 MiB")
	rest := strings.Repeat(`"0123456789abcdef0123456789abcdef", `, 3*textfile.MaxRow/36)
	_, rows, err := parsed(t, `{"rest": [`+rest+`0], "rows": [{"a": 1}]}`, d)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

func TestWhatAnswersSayOfTheNextPage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"r": [], "p": {"n": "x"}}`:                  "x",
		`{"r": [], "p": {"n": 12345678901234567890}}`: "12345678901234567890",
		`{"r": [], "p": {"n": null}}`:                 "",
		`{"r": [], "p": {"n": false}}`:                "",
		`{"r": [], "p": null}`:                        "",
		`{"r": [], "p": [{"n": "x"}]}`:                "",
		`{"p": {"n": "x"}, "r": null}`:                "x",
	} {
		p, _, err := parsed(t, text, document{records: "r", next: "p.n", more: "m"})
		require.NoError(t, err, text)
		require.Equal(t, want, p.next, text)
		require.Nil(t, p.more, text)
	}
	for text, says := range map[string]string{
		`{"r": [], "p": {"n": {}}}`: `has at "p.n" no text and no number`,
		`{"r": [], "m": 1}`:         `has at "m" no boolean`,
		`{"r": [], "r": []}`:        `has two lists at "r"`,
	} {
		_, _, err := parsed(t, text, document{records: "r", next: "p.n", more: "m"})
		require.ErrorContains(t, err, says)
	}
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	for other, want := range map[string]bool{"https://API.example.org:443/x": true, "https://api.example.org": true,
		"http://api.example.org/": false, "https://api.example.org:8443/": false, "https://example.org/": false} {
		a, err := url.Parse(other)
		require.NoError(t, err)
		b, err := url.Parse("https://api.example.org/")
		require.NoError(t, err)
		require.Equal(t, want, sameOrigin(a, b), other)
	}
}

func TestLinkHeaders(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`<https://x/?a=1,2;b>; rel="next"`:                     "https://x/?a=1,2;b",
		`<a>; rel=prev, <b>; rel=next`:                         "b",
		`<a>;rel="prev next";title="x"`:                        "a",
		`<a>; title="; rel=next, <x>"; rel=last,<b>; REL=NEXT`: "b",
		`<a>; title="a \" , <c>; rel=next"; rel=last`:          "",
		`<a>; rel=nextish`:                                     "",
		`<a>`:                                                  "",
		`a; rel=next`:                                          "",
		`<a; rel=next`:                                         "",
		``:                                                     "",
	} {
		require.Equal(t, want, nextLink(http.Header{"Link": {header}}), header)
	}
}

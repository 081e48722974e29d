package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	values := map[string]Value{"a": New("a", "hunter2", nil), "b": New("b", "hunter2-longer", nil),
		"c": New("c", "abc", nil), "d": New("d", "first\nsecond", nil), "e": New("e", "r2-longer-yet", nil)}
	r := NewRedactor(values)
	for text, want := range map[string]string{
		"hunter2-longer and hunter2, abc: second": "[secret] and [secret], abc: [secret]",
		"hunter2hunter2":              "[secret][secret]",
		"hunter2-longer-yet!":         "[secret]!", // two that overlap
		"616263 YWJj %61%62%63":       "616263 YWJj %61%62%63",
		"hunter":                      "hunter",
		"Basic dXNlcjpodW50ZXIy, bye": "Basic dXNlcj[secret], bye", // user:hunter2
		"Zmlyc3QKc2Vjb25k":            "[secret]",
		`{\"k\": \"\u0068unter2\"}`:   `{\"k\": \"[secret]\"}`,
		"&#104;unter2&amp;":           "[secret]&amp;",
		"":                            "",
	} {
		require.Equal(t, want, r.Redact(text))
		require.Equal(t, want, Redact(text, values))
	}
	require.Equal(t, "hunter2", NewRedactor(nil).Redact("hunter2"))
	require.Equal(t, "hunter2", (*Redactor)(nil).Redact("hunter2"))
}

// encoders are the encodings in which programs print a value.
var encoders = map[string]func(text string) string{
	"plain":          func(text string) string { return text },
	"query":          url.QueryEscape,
	"path":           url.PathEscape,
	"lower query":    func(text string) string { return lowerEscapes(url.QueryEscape(text)) },
	"all escaped":    allEscaped,
	"JSON":           quotedJSON,
	"JSON twice":     func(text string) string { return quotedJSON(quotedJSON(text)) },
	"ASCII":          strconv.QuoteToASCII,
	"Go":             strconv.Quote,
	"Go of query":    func(text string) string { return strconv.Quote(url.QueryEscape(text)) },
	"HTML":           html.EscapeString,
	"JSON of HTML":   func(text string) string { return quotedJSON(html.EscapeString(text)) },
	"hex":            func(text string) string { return hex.EncodeToString([]byte(text)) },
	"upper hex":      func(text string) string { return strings.ToUpper(hex.EncodeToString([]byte(text))) },
	"base64":         encode64(base64.StdEncoding),
	"raw base64":     encode64(base64.RawStdEncoding),
	"URL base64":     encode64(base64.URLEncoding),
	"raw URL":        encode64(base64.RawURLEncoding),
	"escaped base64": func(text string) string { return url.QueryEscape(encode64(base64.StdEncoding)(text)) },
}

func encode64(e *base64.Encoding) func(string) string {
	return func(text string) string { return e.EncodeToString([]byte(text)) }
}

func quotedJSON(text string) string {
	out, _ := json.Marshal(text) // a string always encodes
	return string(out)
}

func lowerEscapes(text string) string {
	out := []byte(text)
	for i := range out {
		if out[i] == '%' {
			copy(out[i:], strings.ToLower(text[i:i+3]))
		}
	}
	return string(out)
}

func allEscaped(text string) (out string) {
	for _, c := range []byte(text) {
		out += fmt.Sprintf("%%%02X", c)
	}
	return out
}

// printable are the runes of random values and texts: those that encodings change are frequent.
var printable = []rune(`abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 +/%&=<>"'\-_.~:;@#?!$,` +
	"+/%&=<>\"'\\\t\n éß漢😀")

func randomText(rng *rand.Rand, n int) string {
	out := make([]rune, n)
	for i := range out {
		out[i] = printable[rng.IntN(len(printable))]
	}
	return string(out)
}

// A value that a text has between two others is replaced in every encoding, and nothing else is.
func TestNoEncodingOfAValueRemains(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 10_000 {
		value := randomText(rng, shortest+rng.IntN(40))
		before, after := randomText(rng, rng.IntN(12)), randomText(rng, rng.IntN(12))
		r := NewRedactor(map[string]Value{"v": New("v", value, nil)})

		for name, encode := range encoders {
			text := encode(before + value + after)
			clean := r.Redact(text)
			require.Contains(t, clean, mask, "%d: %s of %q in %q", n, name, value, text)
			require.Equal(t, clean, r.Redact(clean), "%d: %s of %q in %q: nothing remains", n, name, value, text)
			require.NotContains(t, clean, encode(value), "%d: %s of %q in %q", n, name, value, text)
		}
	}
}

// A text without the value stays as it is. The value is long enough not to be there by accident.
func TestATextWithoutTheValueStays(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(9, 10))
	for n := 0; n < 10_000; {
		value := randomText(rng, 40)
		if slices.ContainsFunc(strings.Fields(value), func(word string) bool { return len(word) < 10 }) {
			continue // its words are looked for as well
		}
		n++
		r := NewRedactor(map[string]Value{"v": New("v", value, nil)})
		plain := randomText(rng, 40)
		for name, encode := range encoders {
			require.Equal(t, encode(plain), r.Redact(encode(plain)), "%s without %q", name, value)
		}
	}
}

// Whatever encloses a value stays as it is, apart from the base64 digits that hold bits of the value.
func TestWhatEnclosesAValueStays(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		var secret [24]byte
		for i := range secret {
			secret[i] = byte(rng.Uint32())
		}
		value := string(secret[:4+rng.IntN(20)])
		r := NewRedactor(map[string]Value{"v": New("v", value, nil)})
		require.Equal(t, "<"+mask+">", r.Redact("<"+hex.EncodeToString([]byte(value))+">"))
		require.Equal(t, `"k": `+mask+`, "`, r.Redact(`"k": `+url.QueryEscape(value)+`, "`))

		before := strings.Repeat("x", rng.IntN(7))
		whole := base64.StdEncoding.EncodeToString([]byte(before + value))
		require.Equal(t, whole[:len(before)*8/6]+mask, r.Redact(whole))
		require.Equal(t, "k="+mask+" end", r.Redact("k="+base64.RawURLEncoding.EncodeToString([]byte(value))+" end"))
	}
}

// Long base64 is wrapped, and a log has the lines one by one.
func TestLinesOfWrappedBase64(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for _, width := range []int{76, 64} {
		value := randomText(rng, 300)
		r := NewRedactor(map[string]Value{"v": New("v", value, nil)})
		for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString([]byte(value))), width) {
			require.Equal(t, mask, r.Redact(string(line)))
		}
	}
}

func BenchmarkRedactor(b *testing.B) {
	rng := rand.New(rand.NewPCG(7, 8))
	values := map[string]Value{}
	for i := range 20 {
		name := fmt.Sprint("s", i)
		values[name] = New(name, base64.StdEncoding.EncodeToString([]byte(randomText(rng, 24))), nil)
	}
	r := NewRedactor(values)
	plain := strings.Repeat("2026-01-02 loaded 1000 rows of orders in 12 ms, ", 4)

	for name, line := range map[string]string{"plain": plain, "with a secret": plain + values["s3"].text,
		"escaped": quotedJSON(`{"url": "https://example.com/a%20b?c=d&amp;e=f", "text": ` + quotedJSON(plain) + `}`)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = r.Redact(line)
			}
		})
	}
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			_ = NewRedactor(values)
		}
	})
}

package secret

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

const awkward = "Zq7/kP+x9=Wm&t\"u'‹é>%Rv"

func values(texts ...string) map[string]Value {
	all := map[string]Value{}
	for _, text := range texts {
		all[text] = New(text, text, nil)
	}
	return all
}

// streamed returns what is left of a text that is written in pieces of random lengths.
func streamed(rng *rand.Rand, r *Redactor, text string, most int) string {
	var out strings.Builder
	s := r.Stream(func(text string) { out.WriteString(text) })
	for len(text) > 0 {
		n := min(len(text), 1+rng.IntN(most))
		_, _ = s.Write([]byte(text[:n]))
		text = text[n:]
	}
	s.End()
	return out.String()
}

func TestNoSeamHidesAValue(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for n := range 40 {
		value := strings.ReplaceAll(randomText(rng, 8+rng.IntN(40)), "\n", "n")
		r := NewRedactor(values(value))
		filler := strings.Repeat("y", rng.IntN(600)) + randomText(rng, rng.IntN(300))
		for name, encode := range encoders {
			text := filler + encode(value) + randomText(rng, rng.IntN(300)) + encode("x"+value)
			got := streamed(rng, r, text, 1+rng.IntN(700))
			require.Equal(t, r.Redact(text), got, "%d: %s of %q in %q", n, name, value, text)
		}
	}
}

func TestAValueOfManyLinesIsKeptTogether(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	value := "first line\nx\nthe third\r\nlast"
	r := NewRedactor(values(value))
	for range 500 {
		require.Equal(t, "a\n[secret]\nb\n", streamed(rng, r, "a\n"+value+"\nb\n", 1+rng.IntN(20)))
	}
}

// What is written arrives at the end of its line, not with the end of the program.
func TestLinesArriveAtOnce(t *testing.T) {
	t.Parallel()
	var got string
	s := NewRedactor(values(awkward)).Stream(func(text string) { got += text })
	_, _ = s.Write([]byte("loading\n"))
	require.Equal(t, "loading\n", got)
	_, _ = s.Write([]byte("with " + awkward[:9] + "\n"))
	require.Equal(t, "loading\nwith ", got, "the value may go on")
	_, _ = s.Write([]byte("no\n"))
	require.Equal(t, "loading\nwith "+awkward[:9]+"\nno\n", got)
}

// A text that consists of nothing but values takes no memory without bound.
func TestAnEndlessValueIsBounded(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := NewRedactor(values("aaaa")).Stream(func(text string) { out.WriteString(text) })
	for range 30 {
		_, _ = s.Write([]byte(strings.Repeat("a", 64<<10)))
		require.Less(t, len(s.held), 2*mostHeld)
	}
	_, _ = s.Write([]byte("!\n"))
	s.End()
	require.Equal(t, "[secret]!\n", out.String())
}

// Control characters are left out by who stores or shows a text, so they hide nothing.
func TestControlCharactersHideNothing(t *testing.T) {
	t.Parallel()
	r := NewRedactor(values(awkward))
	var little, big []byte
	for _, unit := range utf16.Encode([]rune(awkward)) {
		little = append(little, byte(unit), byte(unit>>8))
		big = append(big, byte(unit>>8), byte(unit))
	}
	for name, text := range map[string]string{
		"NUL": awkward[:5] + "\x00" + awkward[5:], "CR": awkward[:7] + "\r" + awkward[7:],
		"line break": awkward[:7] + "\n" + awkward[7:], "ESC": awkward[:3] + "\x1b\x7f\u0085" + awkward[3:],
		"UTF-16-LE": string(little), "UTF-16-BE": string(big),
		"UTF-16-LE as text": strings.ToValidUTF8(string(little), "\uFFFD"),
		"escaped":           quotedJSON(awkward[:5] + "\x00" + awkward[5:]),
	} {
		clean := withoutControls(r.Redact("<" + text + ">\n")).text
		require.Contains(t, clean, mask, name)
		require.NotContains(t, clean, awkward[:4], name)
		require.NotContains(t, clean, "Rv", name)
	}
	require.Equal(t, "a\r\nb\x00c\n", r.Redact("a\r\nb\x00c\n"), "other texts keep theirs")
}

// Who cuts a text does so between any two bytes of a value; what is left of it is no less secret.
func TestTheBeginningOfAValueBeforeACut(t *testing.T) {
	t.Parallel()
	r := NewRedactor(values(awkward))
	for _, encode := range encoders {
		encoded := encode(awkward)
		for n := 24; n < len(encoded); n++ {
			require.Contains(t, r.Redact("so: "+encoded[:n]+"…: a bad row"), "so: ")
			require.NotContains(t, r.Redact("so: "+encoded[:n]+"…: a bad row"), encoded[:n])
			require.NotContains(t, r.RedactCut("so: "+encoded[:n], n), encoded[:n])
		}
	}
	require.Equal(t, "so: "+awkward[:9], r.RedactCut("so: "+awkward[:9], 1000), "it was not cut")
	require.Equal(t, "so: "+awkward[:3]+"…", r.Redact("so: "+awkward[:3]+"…"))
}

func TestHoldsLooksForWholeValues(t *testing.T) {
	t.Parallel()
	r := NewRedactor(values("sales of\nAugust", "abcd"))
	for text, want := range map[string]bool{
		"sales": false, "sales of": false, "August": false, `{"a": "sales of\nAugust"}`: true,
		"c2FsZXMgb2YKQXVndXN0": true, "xabcdx": true, "": false,
	} {
		require.Equal(t, want, r.Holds(text), text)
	}
	require.False(t, (*Redactor)(nil).Holds("abcd"))
}

func TestAValueOverSeveralLines(t *testing.T) {
	t.Parallel()
	r := NewRedactor(values(awkward, "one\nx\ntwenty"))
	filler := strings.Repeat("y", 30)
	require.Equal(t, []string{"a", filler + mask, mask + ".", "b"},
		r.RedactLines([]string{"a", filler + awkward[:9], awkward[9:] + ".", "b"}, 100))
	require.Equal(t, []string{"", mask, mask, mask, "", "x"},
		r.RedactLines([]string{"", "one", "x", "twenty", "", "x"}, 100))
	require.Equal(t, []string{filler + mask}, r.RedactLines([]string{filler + awkward[:9]}, 39))
	require.Equal(t, []string{filler + awkward[:9]}, r.RedactLines([]string{filler + awkward[:9]}, 50))
	require.Equal(t, []string{"a", ""}, (*Redactor)(nil).RedactLines([]string{"a", ""}, 1))
}

package secret

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
)

// shortest is the length in bytes of the shortest text that a Redactor looks for. Shorter ones occur by accident. A
// value that is shorter is not looked for in other encodings either.
const shortest = 4

// Redactor removes values from texts such as a program's output: as they are, their words, and what common encodings
// make of them. Base64 in both alphabets, with or without padding and wherever the value stands in what was encoded,
// and hex are computed once. Escapes, of which there are many spellings, are undone in the text instead: those of URLs,
// of JSON and Go strings and of HTML, also one within another (see view). It is safe for concurrent use.
type Redactor struct {
	found [1 << 16 / 64]uint64 // hashes of the heads of patterns, so that most of a text costs one look
	heads map[uint32][]pattern
	known map[pattern]bool
}

// pattern is a text to look for. It is at least shortest bytes long; its head is the first of them.
type pattern struct {
	text string
	// Base64 digits before and behind the text belong to it, because they hold bits of the value.
	before, after bool
}

// NewRedactor returns a Redactor of values, and of the texts that they had before. It costs some 20 times their length
// in memory, so keep it for a task.
func NewRedactor(values map[string]Value) *Redactor {
	r := &Redactor{heads: map[uint32][]pattern{}, known: map[pattern]bool{}}
	for _, v := range values {
		r.add(v.text)
		r.add(v.previous)
	}
	return r
}

// Redact removes the values from a text, once. Where there are many texts, keep a Redactor.
func Redact(text string, values map[string]Value) string { return NewRedactor(values).Redact(text) }

// add makes the patterns of a value: also of its lines, because programs print line by line, and of its words as such.
func (r *Redactor) add(value string) {
	if len(value) < shortest {
		return
	}
	for _, word := range strings.Fields(value) {
		r.look(pattern{text: word})
	}

	r.encode(value)
	if trimmed := strings.TrimSpace(value); trimmed != value {
		r.encode(trimmed)
	}
	if strings.Contains(value, "\n") {
		for line := range strings.Lines(value) {
			r.encode(strings.TrimSpace(line))
		}
	}

	// Programs wrap long base64: 57 bytes make a line of 76 digits, 48 bytes one of 64.
	for _, width := range []int{57, 48} {
		for chunk := range slices.Chunk([]byte(value), width) {
			if len(value) > width && len(chunk) >= shortest {
				r.base64(string(chunk), 0)
			}
		}
	}
}

// encode makes the patterns of a text in all encodings.
func (r *Redactor) encode(text string) {
	if len(text) < shortest {
		return
	}
	r.look(pattern{text: text})

	digits := hex.EncodeToString([]byte(text))
	r.look(pattern{text: digits})
	r.look(pattern{text: strings.ToUpper(digits)})
	for offset := range 3 {
		r.base64(text, offset)
	}
}

// base64 makes the patterns of a text in base64 behind offset other bytes. Only the digits that hold nothing but bits
// of the text are certain; the digits around them hold some as well.
func (r *Redactor) base64(text string, offset int) {
	first, end := (offset*8+5)/6, (offset+len(text))*8/6
	padded := append(make([]byte, offset), text...)
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		r.look(pattern{alphabet.EncodeToString(padded)[first:end], offset > 0, (offset+len(text))%3 > 0})
	}
}

// look adds a pattern, unless it is there.
func (r *Redactor) look(p pattern) {
	if len(p.text) < shortest || r.known[p] {
		return
	}
	r.known[p] = true
	head := binary.LittleEndian.Uint32([]byte(p.text))
	r.heads[head] = append(r.heads[head], p)
	r.found[bucket(head)/64] |= 1 << (bucket(head) % 64)
}

// bucket hashes a head to 16 bits.
func bucket(head uint32) uint32 { return head * 2654435761 >> 16 }

// span is a part of a text, [start, end).
type span struct{ start, end int }

// Redact returns the text with [secret] in place of whatever shows a value. Values that overlap are replaced together,
// so that no end of a longer one remains.
func (r *Redactor) Redact(text string) string {
	if r == nil || len(r.heads) == 0 {
		return text
	}
	spans := r.search(text, escapesWithin)
	if len(spans) == 0 {
		return text
	}

	slices.SortFunc(spans, func(a, b span) int { return a.start - b.start })
	var out strings.Builder
	done := 0
	for i := 0; i < len(spans); {
		s := spans[i]
		for i++; i < len(spans) && spans[i].start < s.end; i++ {
			s.end = max(s.end, spans[i].end)
		}
		out.WriteString(text[done:s.start])
		out.WriteString(mask)
		done = s.end
	}

	out.WriteString(text[done:])
	return out.String()
}

// search returns what shows a value in a text, and in what remains when up to depth escapes within each other are
// undone.
func (r *Redactor) search(text string, depth int) []span {
	spans := r.scan(text)
	if depth == 0 {
		return spans
	}
	for _, e := range escapes {
		v, ok := e.undo(text)
		if !ok {
			continue
		}
		for _, s := range r.search(v.text, depth-1) {
			spans = append(spans, v.origin(s))
		}
	}
	return spans
}

// scan returns where the patterns occur in a text.
func (r *Redactor) scan(text string) (spans []span) {
	for i := 0; i+shortest <= len(text); i++ {
		head := uint32(text[i]) | uint32(text[i+1])<<8 | uint32(text[i+2])<<16 | uint32(text[i+3])<<24
		if b := bucket(head); r.found[b/64]>>(b%64)&1 == 0 {
			continue
		}
		for _, p := range r.heads[head] {
			if strings.HasPrefix(text[i:], p.text) {
				spans = append(spans, p.widen(text, span{i, i + len(p.text)}))
			}
		}
	}
	return spans
}

// widen returns where a pattern was found, with the digits around it that hold bits of the value.
func (p pattern) widen(text string, s span) span {
	if p.before && s.start > 0 && isBase64(text[s.start-1]) {
		s.start--
	}
	if p.after && s.end < len(text) && isBase64(text[s.end]) {
		s.end++
	}
	if p.after {
		for n := 0; n < 2 && s.end < len(text) && text[s.end] == '='; n++ {
			s.end++
		}
	}
	return s
}

func isBase64(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("+/-_", c) >= 0
}

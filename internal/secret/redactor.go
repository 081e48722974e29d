package secret

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
)

// shortest is the length in bytes of the shortest text that a Redactor looks for. Shorter ones occur by accident. A
// value that is shorter is not looked for in other encodings either.
const shortest = 4

// Redactor removes values from texts such as a program's output: as they are, their words, and what common encodings
// make of them. Base64 in both alphabets, with or without padding and wherever the value stands in what was encoded,
// and hex are computed once. Escapes, of which there are many spellings, are undone in the text instead: those of URLs,
// of JSON and Go strings and of HTML, also one within another (see view). Control characters within a value do not hide
// it, because those who store or show a text leave them out. It is safe for concurrent use.
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
	part          bool // a piece of the value, such as a word: it occurs by accident, too
}

// NewRedactor returns a Redactor of values, and of the texts that they had before; nil, which finds nothing, if there
// are none. It costs some 20 times their length in memory, so keep it for a task.
func NewRedactor(values map[string]Value) *Redactor {
	if len(values) == 0 {
		return nil
	}
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
	r.encode(value, false)
	if trimmed := strings.TrimSpace(value); trimmed != value {
		r.encode(trimmed, false)
	}
	r.look(pattern{text: withoutControls(value).text})
	r.wide(value)

	for _, word := range strings.Fields(value) {
		r.look(pattern{text: word, part: true})
	}
	if strings.Contains(value, "\n") {
		for line := range strings.Lines(value) {
			r.encode(strings.TrimSpace(line), true)
		}
	}

	// Programs wrap long base64: 57 bytes make a line of 76 digits, 48 bytes one of 64.
	for _, width := range []int{57, 48} {
		for chunk := range slices.Chunk([]byte(value), width) {
			if len(value) > width && len(chunk) >= shortest {
				r.base64(string(chunk), 0, true)
			}
		}
	}
}

// encode makes the patterns of a text in all encodings.
func (r *Redactor) encode(text string, part bool) {
	if len(text) < shortest {
		return
	}
	r.look(pattern{text: text, part: part})

	digits := hex.EncodeToString([]byte(text))
	r.look(pattern{text: digits, part: part})
	r.look(pattern{text: strings.ToUpper(digits), part: part})
	for offset := range 3 {
		r.base64(text, offset, part)
	}
}

// wide makes the patterns of a text in UTF-16, without the control characters that this makes of many bytes: as its
// bytes, and as what is left of these in a text that must be UTF-8.
func (r *Redactor) wide(text string) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		var encoded []byte
		for _, unit := range utf16.Encode([]rune(text)) {
			encoded = order.AppendUint16(encoded, unit)
		}
		for _, shown := range []string{
			string(encoded), strings.ToValidUTF8(string(encoded), "\uFFFD"), string([]rune(string(encoded))),
		} {
			r.look(pattern{text: withoutControls(shown).text})
		}
	}
}

// base64 makes the patterns of a text in base64 behind offset other bytes. Only the digits that hold nothing but bits
// of the text are certain; the digits around them hold some as well.
func (r *Redactor) base64(text string, offset int, part bool) {
	first, end := (offset*8+5)/6, (offset+len(text))*8/6
	padded := append(make([]byte, offset), text...)
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		r.look(pattern{alphabet.EncodeToString(padded)[first:end], offset > 0, (offset+len(text))%3 > 0, part})
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
type span struct {
	start, end int
	whole      bool // it shows a whole value
	open       bool // it shows the beginning of something, and the text ends
}

// cutMark is what those who cut a text put at its end.
const cutMark = "…"

// Redact returns the text with [secret] in place of whatever shows a value. Values that overlap are replaced together,
// so that no end of a longer one remains. Where the text was cut, as a … says, the beginning of a value is one, too.
func (r *Redactor) Redact(text string) string { return r.redact(text, false) }

// RedactCut is Redact for a text that somebody may have cut to so many bytes or characters, without a mark.
func (r *Redactor) RedactCut(text string, most int) string { return r.redact(text, len(text) >= most) }

// RedactLines is Redact for lines that follow each other, which somebody may have cut to so many bytes or characters or
// split there: what shows a value over several of them is replaced in each.
func (r *Redactor) RedactLines(lines []string, most int) []string {
	if r.finds() == 0 {
		return lines
	}
	text := strings.Join(lines, "\n")
	spans := r.spans(text, false)
	begin := 0
	for _, line := range lines {
		if len(line) >= most {
			last := line[strings.LastIndex(line, cutMark)+1:] // a part of the mark shows nothing
			for _, s := range r.opened(last) {
				at := begin + len(line) - len(last)
				spans = append(spans, span{start: at + s.start, end: at + s.end})
			}
		}
		begin += len(line) + 1
	}

	spans, begin = merged(spans), 0
	clean := make([]string, len(lines))
	for i, line := range lines {
		clean[i] = replaced(line, begin, spans)
		begin += len(line) + 1
	}
	return clean
}

func (r *Redactor) redact(text string, cut bool) string {
	if r.finds() == 0 {
		return text
	}
	return replaced(text, 0, merged(r.spans(text, cut)))
}

// spans returns what shows a value in a text, and the beginnings of values where it was cut: before each mark, and, if
// cut, at its end.
func (r *Redactor) spans(text string, cut bool) []span {
	spans := r.search(text, escapesWithin, false)
	for begin := 0; ; {
		before, after, marked := strings.Cut(text[begin:], cutMark)
		if marked || cut {
			for _, s := range r.opened(before) {
				spans = append(spans, span{start: begin + s.start, end: begin + s.end})
			}
		}
		if !marked {
			return spans
		}
		begin = len(text) - len(after)
	}
}

// replaced returns a part of a text, which begins at a place in it, with [secret] in place of spans of the text. They
// are merged.
func replaced(part string, begin int, spans []span) string {
	first, _ := slices.BinarySearchFunc(spans, begin, func(s span, at int) int { return s.end - at })
	var out strings.Builder
	done := 0
	for _, s := range spans[first:] {
		start, end := max(s.start-begin, 0), min(s.end-begin, len(part))
		if start >= len(part) {
			break
		}
		if end > start {
			out.WriteString(part[done:start])
			out.WriteString(mask)
			done = end
		}
	}

	if done == 0 {
		return part
	}
	out.WriteString(part[done:])
	return out.String()
}

// Holds reports whether a text shows a whole value, in any of the encodings. A word or a line of one does not count.
func (r *Redactor) Holds(text string) bool {
	return r.finds() > 0 && slices.ContainsFunc(r.search(text, escapesWithin, false), func(s span) bool {
		return s.whole
	})
}

// finds returns how many heads of patterns there are.
func (r *Redactor) finds() int {
	if r == nil {
		return 0
	}
	return len(r.heads)
}

// merged returns spans in order, those that overlap as one.
func merged(spans []span) (all []span) {
	slices.SortFunc(spans, func(a, b span) int { return a.start - b.start })
	for _, s := range spans {
		if last := len(all) - 1; last >= 0 && s.start < all[last].end {
			all[last].end, all[last].open = max(all[last].end, s.end), all[last].open || s.open
			continue
		}
		all = append(all, s)
	}
	return all
}

// opened returns where what shows a value may begin that goes on behind the text.
func (r *Redactor) opened(text string) []span {
	return slices.DeleteFunc(r.search(text, escapesWithin, true), func(s span) bool { return !s.open })
}

// search returns what shows a value in a text, and in what remains when up to depth escapes within each other are
// undone and control characters are left out. cut says that the text may go on, so that a beginning counts.
func (r *Redactor) search(text string, depth int, cut bool) []span {
	spans := r.scan(text, cut)
	if v := withoutControls(text); len(v.text) < len(text) {
		for _, s := range r.search(v.text, depth, cut) {
			spans = append(spans, v.origin(s))
		}
	}
	if depth == 0 {
		return spans
	}

	for _, e := range escapes {
		v, ok := e.undo(text, cut)
		if !ok {
			continue
		}
		for _, s := range r.search(v.text, depth-1, cut) {
			spans = append(spans, v.origin(s))
		}
	}
	return spans
}

// scan returns where the patterns occur in a text.
func (r *Redactor) scan(text string, cut bool) (spans []span) {
	for i := 0; i+shortest <= len(text); i++ {
		head := uint32(text[i]) | uint32(text[i+1])<<8 | uint32(text[i+2])<<16 | uint32(text[i+3])<<24
		if b := bucket(head); r.found[b/64]>>(b%64)&1 == 0 {
			continue
		}
		for _, p := range r.heads[head] {
			switch {
			case strings.HasPrefix(text[i:], p.text):
				spans = append(spans, p.widen(text, span{start: i, end: i + len(p.text), whole: !p.part}))
			case cut && strings.HasPrefix(p.text, text[i:]):
				spans = append(spans, p.widen(text, span{start: i, end: len(text), open: true}))
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

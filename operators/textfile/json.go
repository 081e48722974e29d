package textfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonValue is a value of JSON with its numbers as they are written.
type jsonValue struct {
	kind  byte   // that of jsontext: n, t, f, ", 0, { or [
	text  []byte // of a string, or of a number as it is written
	raw   []byte // the value as the file has it
	names []string
	parts []jsonValue
}

// readValue reads the next value of a decoder that refuses what is not JSON by RFC 8259, names that come twice, and
// text that is not Unicode.
func readValue(d *jsontext.Decoder) (jsonValue, error) {
	raw, err := d.ReadValue()
	if err != nil {
		return jsonValue{}, err
	}
	return parseValue(bytes.Clone(raw))
}

// maxNesting is how deep values may be nested.
const maxNesting = 500

// parseValue returns the value of a valid text of JSON, of which it keeps parts.
func parseValue(text []byte) (jsonValue, error) {
	var p valueParser
	return p.next(text)
}

// valueParser takes a text of JSON apart that jsontext has found to be valid, so it checks nothing but the depth.
type valueParser struct {
	text []byte
	at   int

	width int               // members of the last object at the top
	names map[string]string // those seen, which are the same in all rows
}

// next takes another text apart.
func (p *valueParser) next(text []byte) (jsonValue, error) {
	p.text, p.at = text, 0
	v, err := p.value(0)
	p.width = len(v.parts)
	return v, err
}

// maxNames is how many names are kept.
const maxNames = 1000

func (p *valueParser) name(text []byte) string {
	if name, ok := p.names[string(text)]; ok {
		return name
	}
	name := string(text)
	if p.names == nil {
		p.names = map[string]string{}
	}
	if len(p.names) < maxNames {
		p.names[name] = name
	}
	return name
}

func (p *valueParser) value(depth int) (v jsonValue, err error) {
	if depth > maxNesting {
		return v, fmt.Errorf("it is nested deeper than %d levels", maxNesting)
	}
	p.space()
	begin := p.at

	switch v.kind = p.text[begin]; v.kind {
	case '"':
		v.text, err = p.string()
	case '[', '{':
		err = p.parts(&v, depth)
	case 'n', 't':
		p.at += len("null")
	case 'f':
		p.at += len("false")
	case 'N', 'I', '-':
		v.kind = '0'
		if n := notFiniteAt(p.text[begin:]); n > 0 {
			p.at += n
			v.text = p.text[begin:p.at:p.at]
			break
		}
		fallthrough
	default:
		v.kind = '0'
		for p.at < len(p.text) && isNumeric[p.text[p.at]] {
			p.at++
		}
		v.text = p.text[begin:p.at:p.at]
	}
	v.raw = p.text[begin:p.at:p.at]
	return v, err
}

// parts reads the elements of a list or the members of an object.
func (p *valueParser) parts(v *jsonValue, depth int) error {
	if depth == 0 && p.width > 0 {
		v.names, v.parts = make([]string, 0, p.width), make([]jsonValue, 0, p.width)
	}
	for p.at++; ; p.at++ { // behind the bracket, or behind a comma
		p.space()
		if c := p.text[p.at]; c == ']' || c == '}' { // of an empty one
			break
		}
		if v.kind == '{' {
			name, err := p.string()
			if err != nil {
				return err
			}
			v.names = append(v.names, p.name(name))
			p.space()
			p.at++ // the colon
		}

		part, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		v.parts = append(v.parts, part)
		p.space()
		if p.text[p.at] != ',' {
			break
		}
	}
	p.at++
	return nil
}

// string reads a string. One without escapes is not copied.
func (p *valueParser) string() ([]byte, error) {
	begin := p.at
	for p.at++; p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			p.at++
		}
	}
	p.at++
	whole := p.text[begin:p.at:p.at]
	inner := whole[1 : len(whole)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil
	}
	return jsontext.AppendUnquote(nil, whole)
}

func (p *valueParser) space() {
	for p.at < len(p.text) && isSpace[p.text[p.at]] {
		p.at++
	}
}

// The bytes of numbers, and those between the tokens of JSON.
var (
	isNumeric = bytesOf("+-.0123456789Ee")
	isSpace   = bytesOf(" \t\r\n")
)

func bytesOf(text string) (set [256]bool) {
	for i := range len(text) {
		set[text[i]] = true
	}
	return set
}

// compactJSON returns a JSON value without space around its parts.
func compactJSON(text []byte) ([]byte, bool) {
	value := jsontext.Value(bytes.Clone(text))
	err := value.Compact()
	return value, err == nil && len(value) > 0
}

// record is a row of a JSON file.
type record struct {
	line int64
	text []byte // NDJSON: the line
	jsonValue
}

// eachLine calls with for each record of a file of NDJSON: a line each. bad is called for lines that are none.
func eachLine(in io.Reader, with func(record) error, bad func(row, string) error) error {
	lines := newCSVReader(in, dialect{})
	var values valueParser
	for {
		lines.buf = lines.buf[:0]
		end, err := lines.readLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text := bytes.TrimSpace(lines.buf[:end])
		if len(text) == 0 {
			continue
		}

		v, err := values.lineValue(text)
		switch {
		case err != nil:
			err = bad(row{line: lines.line, text: text}, "is no JSON: "+jsonFault(err))
		case v.kind != '{':
			err = bad(row{line: lines.line, text: text}, "is no JSON object")
		default:
			err = with(record{lines.line, text, v})
		}
		if err != nil {
			return err
		}
	}
}

// lineValue returns the value of a line. It is valid as long as the line is.
func (p *valueParser) lineValue(text []byte) (jsonValue, error) {
	if jsontext.Value(text).IsValid() || jsontext.Value(finite(text)).IsValid() {
		return p.next(text)
	}

	decoder := jsontext.NewDecoder(bytes.NewReader(text)) // it says what is wrong
	_, err := decoder.ReadValue()
	if err == nil {
		err = errors.New("the line has more than one value")
	}
	return jsonValue{}, err
}

// document reads the rows of a JSON document.
type document struct {
	*jsontext.Decoder
	lines *lineCounter
	path  string // of the list of rows; empty: the document itself
	found bool   // the path led to a list
	with  func(record) error
}

// eachRecord calls with for each object of a JSON document: of the list at the path, or of the document itself if it is
// a list. A document that is one object, or several behind each other, has those.
func eachRecord(in io.Reader, path string, with func(record) error) error {
	lines := &lineCounter{in: in}
	d := document{Decoder: jsontext.NewDecoder(lines), lines: lines, path: path, with: with}
	for {
		err := d.next()
		switch {
		case errors.Is(err, io.EOF):
			if path != "" && !d.found && d.InputOffset() > 0 {
				return fmt.Errorf("has no list at %q", path)
			}
			return nil
		case err != nil:
			return syntax(err)
		}
	}
}

// next reads a value at the top of the document.
func (d *document) next() error {
	switch kind := d.PeekKind(); {
	case d.path != "" && kind == '{':
		return atPath(d.Decoder, strings.Split(d.path, "."), d.list)
	case kind == '[' && d.path == "":
		return d.list()
	case kind == '{':
		return d.record()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if d.path != "" {
		return fmt.Errorf("has no list at %q", d.path)
	}
	return errors.New("has a value that is no object and no list of objects")
}

func (d *document) record() error {
	v, err := readValue(d.Decoder)
	if err != nil {
		return errors.New("is no JSON: " + jsonFault(err))
	}
	line := d.lines.lineAt(d.InputOffset() - int64(len(v.raw)))
	if v.kind != '{' {
		return fmt.Errorf("has at line %d a row that is no object", line)
	}
	return d.with(record{line, v.raw, v})
}

func (d *document) list() error {
	if d.PeekKind() != '[' {
		return fmt.Errorf("has at %q no list of rows", d.path)
	}
	d.found = true
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != ']' && d.PeekKind() != 0 {
		if err := d.record(); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

func syntax(err error) error {
	var s *jsontext.SyntacticError
	if errors.As(err, &s) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("is no JSON: " + jsonFault(err))
	}
	return err
}

// atPath calls list at a path of names in an object, and reads to the end of the object.
func atPath(d *jsontext.Decoder, path []string, list func() error) error {
	if _, err := d.ReadToken(); err != nil {
		return err
	}

	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		switch {
		case name.String() != path[0]:
			err = d.SkipValue()
		case len(path) == 1:
			err = list()
		case d.PeekKind() == '{':
			err = atPath(d, path[1:], list)
		default:
			err = d.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// jsonFault returns what is wrong without the name of the library.
func jsonFault(err error) string {
	text := strings.TrimPrefix(err.Error(), "jsontext: ")
	if errors.Is(err, io.ErrUnexpectedEOF) {
		text = "it ends too early"
	}
	return text
}

// lineCounter knows at which bytes lines begin.
type lineCounter struct {
	in     io.Reader
	read   int64
	breaks []int64 // offsets behind the line feeds that are not counted yet
	passed int64   // line feeds before those
}

func (c *lineCounter) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	for i := 0; i < n; {
		at := bytes.IndexByte(p[i:n], '\n')
		if at < 0 {
			break
		}
		i += at + 1
		c.breaks = append(c.breaks, c.read+int64(i))
	}
	c.read += int64(n)
	return n, err
}

// lineAt returns the line of a byte. Offsets must not decrease.
func (c *lineCounter) lineAt(offset int64) int64 {
	n := 0
	for n < len(c.breaks) && c.breaks[n] <= offset {
		n++
	}
	c.passed += int64(n)
	c.breaks = c.breaks[n:]
	return c.passed + 1
}

// fromJSON returns a value of JSON as one of a type, exactly.
func (f formats) fromJSON(v jsonValue, t Type) (value, error) {
	if v.kind == 'n' {
		return null, nil
	}
	switch t.Kind {
	case JSON:
		text, ok := compactJSON(v.raw)
		if !ok {
			return null, fmt.Errorf("is no JSON")
		}
		return value{text: text}, nil
	case List:
		return f.listFromJSON(v, t)
	case Struct:
		return f.structFromJSON(v, t)
	case Text:
		if v.kind == '{' || v.kind == '[' {
			text, _ := compactJSON(v.raw)
			return value{text: text}, nil
		}
	}

	return f.scalarFromJSON(v, t)
}

func (f formats) scalarFromJSON(v jsonValue, t Type) (value, error) {
	switch v.kind {
	case '"':
		return f.parse(v.text, t)
	case '0':
		if t.Kind == Bool || t.Kind >= Date && t.Kind <= UUID {
			return null, fmt.Errorf("is a number, not a %s", t)
		}
		f.point = '.'
		return f.parse(v.text, t)
	case 't', 'f':
		if t.Kind != Bool && t.Kind != Text {
			return null, fmt.Errorf("is a truth value, not a %s", t)
		}
		return f.parse(v.raw, t)
	}
	return null, fmt.Errorf("is no %s", t)
}

func (f formats) listFromJSON(v jsonValue, t Type) (out value, err error) {
	if v.kind != '[' {
		return null, errors.New("is no list")
	}
	out.parts = make([]value, len(v.parts))
	for i, part := range v.parts {
		if out.parts[i], err = f.fromJSON(part, *t.Elem); err != nil {
			return null, fmt.Errorf("[%d] %w", i, err)
		}
	}
	return out, nil
}

func (f formats) structFromJSON(v jsonValue, t Type) (out value, err error) {
	if v.kind != '{' {
		return null, errors.New("is no object")
	}
	out.parts = make([]value, len(t.Fields))
	for i := range out.parts {
		out.parts[i] = null
	}

	for i, name := range v.names {
		at := slices.IndexFunc(t.Fields, func(f Field) bool { return f.Name == name })
		if at < 0 {
			return null, fmt.Errorf("has a field %q, which the column's type does not have", name)
		}
		if out.parts[at], err = f.fromJSON(v.parts[i], t.Fields[at].Type); err != nil {
			return null, fmt.Errorf(".%s %w", name, err)
		}
	}
	return out, nil
}

package textfile

import (
	"bytes"
	"math"
	"slices"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// kinds is a set of the types that a text may be a value of, from the narrowest to the widest.
type kinds uint16

const (
	isBool kinds = 1 << iota
	isBigint
	isHuge
	isDouble
	isDate
	isTime
	isTimestamp
	isInstant

	numeric  = isBigint | isHuge | isDouble
	temporal = isDate | isTime | isTimestamp | isInstant
	anyKind  = isBool | numeric | temporal
)

// preferred is what a column of several possible types becomes: the narrowest.
var preferred = []struct {
	kinds
	t Type
}{
	{isBool, Type{Kind: Bool}}, {isBigint, Type{Kind: Int, Bits: 64}}, {isHuge, huge},
	{isDouble, Type{Kind: Float, Bits: 64}}, {isDate, Type{Kind: Date}}, {isTime, Type{Kind: Time}},
	{isTimestamp, Type{Kind: Timestamp}}, {isInstant, Type{Kind: Instant}},
}

func (k kinds) best() Type {
	for _, p := range preferred {
		if k&p.kinds != 0 {
			return p.t
		}
	}
	return Type{Kind: Text}
}

// kindsOf returns the types that a text is written like. What a type would change is not like it: 007 is no number, and
// 9007199254740993 no DOUBLE.
func (f formats) kindsOf(text []byte) kinds {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return 0
	}
	if c := text[0]; !isDigit(c) && c != '-' && c != f.point && f.date == "" && f.time == "" {
		if sqltext.Same(string(text), "true") || sqltext.Same(string(text), "false") {
			return isBool
		}
		return 0
	}

	if n, ok := parseNumber(text, f.point); ok {
		return n.kinds(text, f.point)
	}
	return f.dateKinds(text) | f.timeKinds(text)
}

// dateKinds returns what a text may be that is written like a date.
func (f formats) dateKinds(text []byte) kinds {
	m, ok := f.moment(text, Type{Kind: Date})
	isDay := ok && m.date && !m.zone && m.micros == 0
	switch {
	case !isDay || m.time && f.date == "":
		return 0
	case f.time == "":
		return isDate | isTimestamp
	}
	return isDate
}

// timeKinds returns what a text may be that is written like a time, with or without a date.
func (f formats) timeKinds(text []byte) kinds {
	m, ok := f.moment(text, Type{Kind: Timestamp})
	switch {
	case !ok:
		return 0
	case m.date && m.zone:
		return isInstant
	case m.date:
		return isTimestamp
	case !m.zone:
		return isTime
	}
	return 0
}

// kinds returns the types that hold a number as it is written.
func (n number) kinds(text []byte, point byte) (found kinds) {
	if n.leading {
		return 0
	}

	if n.whole {
		if _, _, ok := n.integer(64, false); ok {
			found |= isBigint
		}
		if len(n.digits) <= int(huge.Precision) {
			found |= isHuge
		}
		if n.negative && len(n.digits) == 0 { // -0 is a DOUBLE only
			found = 0
		}
	}
	if f, ok := n.float(text, point, 64); ok && !math.IsInf(f, 0) {
		found |= isDouble
	}
	return found
}

// shape gathers what the values of a column, or of a part of it, are like.
type shape struct {
	seen   bool // a value that is not NULL
	empty  bool // an empty text in quotes, which some programs write for NULL
	kinds  kinds
	text   bool // strings of JSON
	number bool
	truth  bool
	list   *shape
	fields []*fieldShape // of objects
	object bool
}

type fieldShape struct {
	name string
	shape
}

func (s *shape) add(k kinds) {
	if !s.seen {
		s.seen, s.kinds = true, anyKind
	}
	s.kinds &= k
}

// maxFields is how many fields the objects of a column may have to become a STRUCT.
const maxFields = 200

// typ returns the type that holds all values of the shape exactly.
func (s *shape) typ() Type {
	if !s.seen && s.empty {
		return Type{Kind: Text}
	}
	if !s.seen {
		return Type{Kind: Open}
	}

	classes := 0
	for _, is := range []bool{s.text, s.number, s.truth, s.list != nil, s.object} {
		if is {
			classes++
		}
	}
	switch {
	case classes > 1:
		return Type{Kind: JSON}
	case s.list != nil:
		elem := s.list.typ()
		return Type{Kind: List, Elem: &elem}
	case s.object:
		return s.structType()
	case s.text && s.kinds&temporal == 0:
		return Type{Kind: Text}
	}
	return s.kinds.best()
}

// structType returns the type of objects: JSON where they have no fields, very many, or some that DuckDB takes for one.
func (s *shape) structType() Type {
	if len(s.fields) == 0 || len(s.fields) > maxFields {
		return Type{Kind: JSON}
	}
	t := Type{Kind: Struct}
	for _, f := range s.fields {
		if slices.ContainsFunc(t.Fields, func(have Field) bool { return sqltext.Same(have.Name, f.name) }) {
			return Type{Kind: JSON}
		}
		t.Fields = append(t.Fields, Field{f.name, f.typ()})
	}
	return t
}

// listDepth is how deep inferred lists are at most: DuckDB takes twice as long for each further one around them.
const listDepth = 10

// addJSON adds a value of JSON. What is nested deeper than types can be is JSON, and so are lists below listDepth.
func (s *shape) addJSON(v jsonValue, f formats, depth int) {
	if depth == maxDepth || depth >= listDepth && v.kind == '[' {
		s.add(0)
		s.text, s.truth = true, true
		return
	}
	switch v.kind {
	case '"':
		s.text = true
		s.add(f.kindsOf(v.text) & temporal)
	case '0':
		s.number = true
		if notFiniteAt(v.text) > 0 {
			s.add(isDouble)
			break
		}
		n, _ := parseNumber(v.text, '.')
		s.add(n.kinds(v.text, '.'))
		if s.kinds == 0 { // numbers that no type holds exactly: their text does
			s.text = true
		}
	case 't', 'f':
		s.truth = true
		s.add(isBool)
	case '[':
		s.add(0)
		if s.list == nil {
			s.list = &shape{}
		}
		for _, e := range v.parts {
			s.list.addJSON(e, f, depth+1)
		}
	case '{':
		s.add(0)
		s.object = true
		for i, e := range v.parts {
			s.field(v.names[i]).addJSON(e, f, depth+1)
		}
	}
}

// field returns the shape of a field. Of more fields than a STRUCT has, nothing is gathered.
func (s *shape) field(name string) *shape {
	if len(s.fields) > maxFields {
		return &shape{}
	}
	for _, f := range s.fields {
		if f.name == name {
			return &f.shape
		}
	}
	f := &fieldShape{name: name}
	s.fields = append(s.fields, f)
	return &f.shape
}

// looksLikeNames reports whether a first row names the columns: none of its values is written like a number or a time,
// and none is empty but maybe the first, which some programs leave empty above the numbers of the rows, and the last
// ones, where each line ends with a delimiter.
func looksLikeNames(first []field, f formats) bool {
	empty := func(v field) bool { return len(bytes.TrimSpace(v.text)) == 0 }
	for len(first) > 1 && empty(first[len(first)-1]) {
		first = first[:len(first)-1]
	}
	for i, v := range first {
		if empty(v) && i > 0 || f.kindsOf(bytes.TrimSpace(v.text)) != 0 {
			return false
		}
	}
	return true
}

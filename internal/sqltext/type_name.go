package sqltext

import (
	"strings"

	"github.com/dagctl/dagctl/internal/late"
)

// typeToken matches a token of a type's name at the beginning of a text: a word, a quoted name, a number, or one of the
// signs between them.
var typeToken = late.Pattern(`^\s*([A-Za-z_][A-Za-z0-9_]*|"[^"]+"|[0-9]{1,9}|[(),\[\]])`)

// maxTypeDepth bounds how deep types may be nested.
const maxTypeDepth = 20

// IsType reports whether a text is written as one DuckDB type and nothing else, so that it may stand in a statement
// behind AS. Whether DuckDB has a type of that name shows when the statement runs.
func IsType(text string) bool {
	var p typeParser
	text = strings.TrimSpace(text)
	for text != "" {
		m := typeToken.FindStringSubmatch(text)
		if m == nil {
			return false
		}
		p.tokens, text = append(p.tokens, m[1]), text[len(m[0]):]
	}
	return p.one(0) && len(p.tokens) == 0
}

// typeParser reads a type from its tokens.
type typeParser struct{ tokens []string }

// accept takes the next token if it is one of some; words in any case.
func (p *typeParser) accept(some ...string) bool {
	for _, s := range some {
		if len(p.tokens) > 0 && strings.EqualFold(p.tokens[0], s) {
			p.tokens = p.tokens[1:]
			return true
		}
	}
	return false
}

// take takes the next token if its first character is one that ok accepts.
func (p *typeParser) take(ok func(first byte) bool) bool {
	if len(p.tokens) == 0 || !ok(p.tokens[0][0]) {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func isWord(c byte) bool  { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isName(c byte) bool  { return c == '"' || isWord(c) }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// one reads a type with its brackets: INTEGER, DECIMAL(10, 2), STRUCT(a INTEGER, b VARCHAR[]), MAP(VARCHAR, DATE)[3].
func (p *typeParser) one(depth int) bool {
	if depth > maxTypeDepth {
		return false
	}
	var ok bool
	switch {
	case p.accept("STRUCT", "ROW", "UNION"):
		ok = p.list(func() bool { return p.take(isName) && p.one(depth+1) })
	case p.accept("MAP"):
		ok = p.list(func() bool { return p.one(depth + 1) })
	default:
		ok = p.scalar()
	}

	for ok && p.accept("[") {
		p.take(isDigit)
		ok = p.accept("]")
	}
	return ok
}

// scalar reads a type without parts of other types, such as TIMESTAMP WITH TIME ZONE.
func (p *typeParser) scalar() bool {
	if !p.take(isWord) {
		return false
	}
	p.accept("PRECISION", "VARYING")
	if len(p.tokens) > 0 && p.tokens[0] == "(" && !p.list(func() bool { return p.take(isDigit) }) {
		return false
	}
	if p.accept("WITH", "WITHOUT") {
		return p.accept("TIME") && p.accept("ZONE")
	}
	return true
}

// list reads parts between parentheses, with commas between them.
func (p *typeParser) list(part func() bool) bool {
	if !p.accept("(") {
		return false
	}
	for {
		if !part() {
			return false
		}
		if !p.accept(",") {
			return p.accept(")")
		}
	}
}

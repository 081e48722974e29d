package duck

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// definition is a CREATE MACRO statement in a file.
type definition struct {
	begin  int // where CREATE stands
	name   string
	at     int // where the name stands
	params []definedParam
	table  bool
	body   part
}

type definedParam struct {
	name      string
	at        int
	byDefault part // the zero part: none
}

// part is a part of a text, by offsets.
type part struct{ from, to int }

// token is a word, a quoted name, a text or a sign.
type token struct {
	part
	text string
}

var (
	wordToken = late.Pattern(`^[\pL_][\pL\pN_$]*`)
	tagToken  = late.Pattern(`^\$([\pL_][\pL\pN_]*)?\$`)
	macroName = late.Pattern(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
)

// tokensOf splits a text, without white space and comments. What is not closed is an error.
func tokensOf(all string) (tokens []token, err error) {
	for at := 0; at < len(all); {
		rest, from := all[at:], at
		open := func(what string) error {
			return fault.New(fault.Invalid, "%s is not closed%s", what, placeAt(all, from))
		}
		switch {
		case strings.ContainsRune(" \t\r\n\f\v", rune(rest[0])):
			at++
			continue
		case strings.HasPrefix(rest, "--"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return tokens, nil
			}
			at += n
			continue
		case strings.HasPrefix(rest, "/*"):
			n := commentLength(rest)
			if n < 0 {
				return tokens, open("a comment")
			}
			at += n
			continue
		}

		n := len(wordToken.FindString(rest))
		switch {
		case n == 1 && (rest[0] == 'e' || rest[0] == 'E') && strings.HasPrefix(rest[1:], "'"):
			n = 1 + quotedLength(rest[1:], true)
		case n > 0:
		case rest[0] == '\'' || rest[0] == '"':
			n = quotedLength(rest, false)
		case tagToken.MatchString(rest):
			tag := tagToken.FindString(rest)
			end := strings.Index(rest[len(tag):], tag)
			n = len(tag) + end + len(tag)
			if end < 0 {
				n = 0
			}
		case strings.HasPrefix(rest, ":="):
			n = 2
		default:
			n = 1
		}
		if n <= 1 && strings.ContainsAny(rest[:1], "'\"$eE") && (rest[0] == '\'' || rest[0] == '"' || n == 0) {
			return tokens, open("a quote")
		}
		at += n
		tokens = append(tokens, token{part{from, at}, all[from:at]})
	}
	return tokens, nil
}

// commentLength returns the length of a comment that a text begins with, with comments inside; -1: it is not closed.
func commentLength(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth, i = depth+1, i+1
		case "*/":
			depth, i = depth-1, i+1
		}
		if depth == 0 {
			return i + 1
		}
	}
	return -1
}

// quotedLength returns the length of a quoted text that another one begins with; 0: it is not closed.
func quotedLength(text string, escapes bool) int {
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case text[i] == text[0] && i+1 < len(text) && text[i+1] == text[0]:
			i++
		case text[i] == text[0]:
			return i + 1
		}
	}
	return 0
}

// definitionsIn returns the CREATE MACRO statements of a file. Another statement ends them with an error.
func definitionsIn(file string) (list []definition, err error) {
	tokens, err := tokensOf(file)
	if err != nil {
		return nil, err
	}

	for len(tokens) > 0 {
		end := slices.IndexFunc(tokens, func(t token) bool { return t.text == ";" })
		if end < 0 {
			end = len(tokens)
		}
		if end > 0 {
			d, err := definitionOf(file, tokens[:end])
			if err != nil {
				return list, err
			}
			list = append(list, d)
		}
		tokens = tokens[min(end+1, len(tokens)):]
	}
	return list, nil
}

// definitionOf reads one statement.
func definitionOf(file string, tokens []token) (d definition, err error) {
	r := tokenReader{file, tokens}
	first := tokens[0]
	if !r.word("create") || r.word("or") && !r.word("replace") || !r.word("macro") {
		return d, fault.New(fault.Invalid, "a file of macros has CREATE MACRO statements only%s",
			placeAt(file, first.from)).WithHint("write CREATE MACRO name(parameter) AS expression;")
	}

	name := r.take()
	d.begin, d.name, d.at = first.from, name.text, name.from
	if !macroName.MatchString(d.name) {
		return d, r.wrong(name, "the name of a macro has only letters, digits and _")
	}
	if t := r.take(); t.text != "(" {
		return d, r.wrong(t, "behind the name of macro "+d.name+" stand its parameters in brackets")
	}
	if d.params, err = r.params(); err != nil {
		return d, err
	}
	if t := r.peek(); !r.word("as") {
		return d, r.wrong(t, "behind the parameters of macro "+d.name+" stands AS")
	}
	d.table = r.word("table")
	if len(r.rest) == 0 {
		return d, r.wrong(r.peek(), "macro "+d.name+" has no body")
	}
	d.body = part{r.rest[0].from, r.rest[len(r.rest)-1].to}
	return d, nil
}

// tokenReader reads the tokens of a statement.
type tokenReader struct {
	file string
	rest []token
}

func (r *tokenReader) peek() token {
	if len(r.rest) == 0 {
		return token{part{len(r.file), len(r.file)}, ""}
	}
	return r.rest[0]
}

func (r *tokenReader) take() token {
	t := r.peek()
	r.rest = r.rest[min(1, len(r.rest)):]
	return t
}

// word takes the next token if it is a word, in any case.
func (r *tokenReader) word(word string) bool {
	if !strings.EqualFold(r.peek().text, word) {
		return false
	}
	r.take()
	return true
}

func (r *tokenReader) wrong(t token, rule string) error {
	return fault.New(fault.Invalid, "%s%s", rule, placeAt(r.file, t.from)).
		WithHint("write CREATE MACRO name(parameter, other := default) AS expression;")
}

// params reads parameters, up to and with the closing bracket.
func (r *tokenReader) params() (list []definedParam, err error) {
	if r.peek().text == ")" {
		r.take()
		return nil, nil
	}

	for {
		name := r.take()
		if !macroName.MatchString(name.text) {
			return nil, r.wrong(name, "the name of a parameter has only letters, digits and _")
		}
		p := definedParam{name: name.text, at: name.from}
		if r.peek().text == ":=" {
			r.take()
			if p.byDefault = r.expression(); p.byDefault.to == 0 {
				return nil, r.wrong(r.peek(), "parameter "+name.text+" has no default behind :=")
			}
		}

		list = append(list, p)
		switch t := r.take(); t.text {
		case ",":
		case ")":
			return list, nil
		default:
			return nil, r.wrong(t, "a parameter is a name, or a name with := and its default")
		}
	}
}

// expression takes the tokens up to the next comma or the closing bracket.
func (r *tokenReader) expression() (taken part) {
	depth := 0
	for len(r.rest) > 0 {
		t := r.peek()
		switch {
		case depth == 0 && (t.text == "," || t.text == ")"):
			return taken
		case strings.Contains("([{", t.text):
			depth++
		case strings.Contains(")]}", t.text):
			depth--
		}
		if taken.to == 0 {
			taken.from = t.from
		}
		taken.to = r.take().to
	}
	return taken
}

// placeAt returns an offset in a text as a place for people.
func placeAt(all string, offset int) string { return lineOf(all, json.Number(fmt.Sprint(offset))) }

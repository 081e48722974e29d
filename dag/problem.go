package dag

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/spelling"
)

// Code identifies the rule that a problem breaks. Codes are stable: programs may rely on them.
type Code string

// The codes.
const (
	CodeSyntax    Code = "syntax"    // not YAML, or YAML that is not allowed here (tags, anchors)
	CodeLimit     Code = "limit"     // beyond a documented limit
	CodeUnknown   Code = "unknown"   // a field that does not exist
	CodeDuplicate Code = "duplicate" // the same field, name or output twice
	CodeMissing   Code = "missing"   // a required field is absent
	CodeType      Code = "type"      // text where a number is wanted, null, and the like
	CodeValue     Code = "value"     // the right type, but not an allowed value
	CodeVariable  Code = "variable"  // ${var.name}: undeclared, or without a value
	CodeReference Code = "reference" // a job, output, input or operator that does not exist
	CodeCycle     Code = "cycle"     // jobs that wait for each other
	CodeFile      Code = "file"      // a file that the document names cannot be used
	CodeConfig    Code = "config"    // the operator refuses its config
	CodeMapping   Code = "mapping"   // partitions of an input do not lead to partitions of the output
	CodeConflict  Code = "conflict"  // two fields that exclude each other, or one that does not apply
)

// Problem is one fault of a DAG file, with its position.
type Problem struct {
	Position
	Code       Code
	Message    string
	Suggestion string // what to do instead; may be empty
	Source     string // the offending line, as it stands in the file
	Width      int    // columns that the caret underlines, at least 1
	unseen     error  // as in ConfigError
}

// Problems holds all faults of a DAG file, in the order of the file.
type Problems []Problem

// Error returns one line for each problem: file:line:column: message (suggestion).
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s", p.Position, p.Message)
		if p.Suggestion != "" {
			fmt.Fprintf(&b, " (%s)", p.Suggestion)
		}
	}
	return b.String()
}

// Pretty formats the problems for people: each with its line, a caret and the suggestion, then their number.
func (ps Problems) Pretty() string {
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintf(&b, "%s: %s [%s]\n", p.Position, p.Message, p.Code)
		margin := len(fmt.Sprint(p.Line))
		if line, column, width := p.excerpt(); line != "" {
			fmt.Fprintf(&b, "  %d | %s\n", p.Line, line)
			fmt.Fprintf(&b, "  %*s | %s%s\n", margin, "", strings.Repeat(" ", column), strings.Repeat("^", width))
		}
		if p.Suggestion != "" {
			fmt.Fprintf(&b, "  %*s = %s\n", margin, "", p.Suggestion)
		}
		b.WriteByte('\n')
	}

	switch len(ps) {
	case 0:
	case 1:
		b.WriteString("1 problem\n")
	default:
		fmt.Fprintf(&b, "%d problems\n", len(ps))
	}
	return b.String()
}

// excerpt returns the part of the line to show, and the column and width of the caret in it. It cuts long lines around
// the fault, and replaces tabs and what a terminal would interpret with spaces.
func (p Problem) excerpt() (line string, column, width int) {
	const widest = 120
	runes := []rune(p.Source)
	for i, r := range runes {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			runes[i] = ' '
		}
	}

	column = min(max(p.Column-1, 0), len(runes))
	if from := column - widest/2; len(runes) > widest && from > 0 {
		runes, column = runes[from:], column-from
	}
	runes = runes[:min(len(runes), widest)]
	width = min(max(p.Width, 1), max(len(runes)-column, 1))
	return strings.TrimRight(string(runes), " "), column, width
}

// MarshalJSON returns the form that `--output json` prints.
func (p Problem) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		File       string `json:"file"`
		Line       int    `json:"line"`
		Column     int    `json:"column"`
		Code       Code   `json:"code"`
		Message    string `json:"message"`
		Suggestion string `json:"suggestion,omitempty"`
		Source     string `json:"source,omitempty"`
	}{p.File, p.Line, p.Column, p.Code, p.Message, p.Suggestion, p.Source})
}

// Fault returns the problems as a classified error, or nil if there are none.
func (ps Problems) Fault() *fault.Error {
	if len(ps) == 0 {
		return nil
	}
	message := "the DAG file has 1 problem"
	if len(ps) > 1 {
		message = fmt.Sprintf("the DAG file has %d problems", len(ps))
	}
	err := fault.New(fault.Invalid, "%s", message)
	for _, p := range ps {
		err.Problems = append(err.Problems, fault.Problem{
			Location: p.Position.String(), Message: p.Message, Suggestion: p.Suggestion, Code: string(p.Code),
		})
	}
	return err
}

// Unseen returns why nobody could look at some part of the file; nil: all problems are those of the file.
func (ps Problems) Unseen() error {
	for _, p := range ps {
		if p.unseen != nil {
			return p.unseen
		}
	}
	return nil
}

// String returns file:line:column, which editors understand.
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// report collects the problems of one file.
type report struct {
	file     string
	lines    []string
	problems Problems
	expanded int                   // bytes that variables have added
	original map[*yaml.Node]string // the text in the file of scalars in which ${var.name} was replaced
}

// splitLines splits a text into lines at what YAML counts as the end of one.
func splitLines(text string) []string {
	lines := make([]string, 0, strings.Count(text, "\n")+1)
	for {
		i := strings.IndexAny(text, "\r\n\u0085\u2028\u2029")
		if i < 0 {
			return append(lines, text)
		}
		lines = append(lines, text[:i])
		_, size := utf8.DecodeRuneInString(text[i:])
		if strings.HasPrefix(text[i:], "\r\n") {
			size = 2
		}
		text = text[i+size:]
	}
}

func newReport(file string, text []byte) *report {
	return &report{file: file, lines: splitLines(string(text)), original: map[*yaml.Node]string{}}
}

// at records a problem at a line and column. Until the next call, a suggestion can be added to the result.
func (r *report) at(line, column, width int, code Code, format string, args ...any) *Problem {
	if line > max(len(r.lines), 1) {
		line, column = len(r.lines), 1 // YAML counts an empty line after the last line break
	}
	p := Problem{
		Position: Position{r.file, max(line, 1), max(column, 1)},
		Code:     code,
		Message:  fmt.Sprintf(format, args...),
		Width:    width,
	}
	if p.Line <= len(r.lines) {
		p.Source = r.lines[p.Line-1]
	}
	r.problems = append(r.problems, p)
	return &r.problems[len(r.problems)-1]
}

// suggest sets what to do instead.
func (p *Problem) suggest(format string, args ...any) { p.Suggestion = fmt.Sprintf(format, args...) }

// nearest suggests the candidate that word was probably meant to be or, if there are only a few, lists them all.
func (p *Problem) nearest(word string, candidates []string) {
	if best := spelling.Nearest(word, candidates); best != "" {
		p.suggest("did you mean %q?", best)
	} else if len(candidates) > 0 && len(candidates) <= 8 {
		p.suggest("use one of: %s", strings.Join(candidates, ", "))
	}
}

// sorted returns up to MaxProblems problems in the order of the file, without duplicates.
func (r *report) sorted() Problems {
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})

	ps := slices.CompactFunc(r.problems, func(a, b Problem) bool {
		return a.Position == b.Position && a.Message == b.Message
	})
	if len(ps) > MaxProblems {
		last := ps[MaxProblems]
		last.Code, last.Suggestion = CodeLimit, ""
		last.Message = fmt.Sprintf("and %d more problems from here on", len(ps)-MaxProblems)
		ps = append(ps[:MaxProblems:MaxProblems], last)
	}
	return ps
}

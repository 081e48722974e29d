package lsp

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/relations"
)

// The kinds of completions that editors have pictures for.
const (
	kindFunction = 3
	kindField    = 5
	kindModule   = 9
	kindProperty = 10
	kindValue    = 12
)

type completion struct {
	Label  string `json:"label"`
	Kind   int    `json:"kind"`
	Detail string `json:"detail,omitempty"`
	Doc    string `json:"documentation,omitempty"`
	Insert string `json:"insertText,omitempty"`
}

// complete returns what may stand at the cursor.
func (p *place) complete() []completion {
	list := []completion{}
	last := ""
	if len(p.path) > 0 {
		last = p.path[len(p.path)-1]
	}

	switch {
	case p.sql:
		list = p.columnsAndRelations()
	case last == "job" && p.doc != nil:
		for _, job := range p.doc.Jobs {
			if len(job.Outputs) > 0 {
				list = append(list, completion{Label: job.Name, Kind: kindModule, Detail: job.Operator,
					Doc: job.Description})
			}
		}
	case p.namesDataset():
		for _, name := range slices.Sorted(maps.Keys(p.others)) {
			d := p.others[name]
			list = append(list, completion{Label: name, Kind: kindModule, Detail: "of DAG " + d.doc.Name,
				Doc: d.Description})
		}
	case p.namesColumns() && p.job != nil:
		for _, columns := range p.outputs(p.job.Name) {
			for _, c := range columns {
				list = append(list, completion{Label: c.Name, Kind: kindField, Detail: c.Type})
			}
		}
	default:
		for _, value := range values(p.node(p.path)) {
			list = append(list, completion{Label: value, Kind: kindValue})
		}
		for _, name := range slices.Sorted(maps.Keys(p.fields(p.path))) {
			said, _ := p.fields(p.path)[name].(map[string]any)
			doc, _ := said["description"].(string)
			list = append(list, completion{Label: name, Kind: kindProperty, Doc: doc, Insert: name + ": "})
		}
	}
	return list
}

// namesColumns reports whether the field at the cursor lists columns of the output.
func (p *place) namesColumns() bool {
	return slices.ContainsFunc([]string{"not_null", "unique", "unique_key", "column"}, func(name string) bool {
		return len(p.path) > 0 && p.path[len(p.path)-1] == name
	})
}

// columns returns the columns of an input, as far as they are known.
func (p *place) columns(in dag.Input) []dag.Column {
	if in.Dataset != "" {
		return p.others[in.Dataset].columns()
	}
	if outputs := p.outputs(in.Job); in.Output < len(outputs) {
		return outputs[in.Output]
	}
	return nil
}

// columns returns the columns of a dataset, as far as they are known.
func (d published) columns() []dag.Column {
	if d.doc == nil {
		return nil
	}
	if outputs := d.doc.Columns[d.Job]; d.Output < len(outputs) {
		return outputs[d.Output]
	}
	return nil
}

// outputs returns the columns of a job's outputs, as far as they are known.
func (p *place) outputs(job string) [][]dag.Column {
	if p.doc == nil {
		return nil
	}
	return p.doc.Columns[job]
}

var afterDot = late.Pattern(`"?([\pL_][\pL\pN_]*)"?\."?[\pL\pN_]*$`)

// rowPartition is the column that no star shows: the key of the partition that a row of an input is in.
var rowPartition = dag.Column{Name: relations.Partition, Type: "VARCHAR"}

// columnsAndRelations returns what a statement may name: after a dot only the columns of that relation.
func (p *place) columnsAndRelations() []completion {
	list := []completion{}
	if p.job == nil {
		return list
	}
	of := ""
	if found := afterDot.FindStringSubmatch(p.before); found != nil {
		of = p.relation(found[1])
	}

	add := func(name string, columns []dag.Column) {
		if of != "" && !strings.EqualFold(of, name) {
			return
		}
		for _, c := range columns {
			list = append(list, completion{Label: c.Name, Kind: kindField, Insert: quoted(c.Name),
				Detail: strings.TrimSpace(c.Type + " of " + name)})
		}
	}
	for _, in := range p.job.Inputs {
		if of == "" {
			list = append(list, completion{Label: in.As, Kind: kindModule, Detail: in.Source(), Insert: quoted(in.As)})
		}
		columns := p.columns(in)
		if !slices.ContainsFunc(columns, isRowPartition) {
			columns = append(slices.Clone(columns), rowPartition)
		}
		add(in.As, columns)
	}
	if of == "" && p.doc != nil {
		for _, name := range p.doc.Macros {
			list = append(list, completion{Label: name, Kind: kindFunction, Detail: "macro", Insert: quoted(name)})
		}
	}
	if p.path[len(p.path)-1] == "sql" {
		for _, columns := range p.outputs(p.job.Name) {
			add("output", columns)
		}
	}
	return list
}

func isRowPartition(c dag.Column) bool { return strings.EqualFold(c.Name, rowPartition.Name) }

// relation returns the input that a name in a statement stands for, which may be an alias.
func (p *place) relation(name string) string {
	for _, in := range p.job.Inputs {
		alias := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(in.As) + `"?\s+(?:AS\s+)?"?` +
			regexp.QuoteMeta(name) + `\b`)
		if strings.EqualFold(in.As, name) || slices.ContainsFunc(p.lines, alias.MatchString) {
			return in.As
		}
	}
	return name
}

var plainName = late.Pattern(`^[a-z_][a-z0-9_]*$`)

// reserved are those words that name columns often and need quotes.
var reserved = []string{"all", "and", "any", "as", "asc", "at", "case", "cast", "check", "collate", "column",
	"constraint", "create", "default", "desc", "distinct", "do", "else", "end", "except", "false", "fetch", "for",
	"foreign", "from", "group", "having", "in", "intersect", "into", "lambda", "limit", "not", "null", "offset", "on",
	"only", "or", "order", "pivot", "primary", "qualify", "references", "select", "show", "some", "summarize",
	"table", "then", "to", "true", "union", "unique", "unpivot", "using", "when", "where", "window", "with"}

// quoted returns a name as a statement has it.
func quoted(name string) string {
	if plainName.MatchString(name) && !slices.Contains(reserved, name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// fields returns the schema of the fields that may stand at a path.
func (p *place) fields(path []string) map[string]any { return properties(inside(p.node(path))) }

// node returns the schema of what stands at a path; nil: it has none.
func (p *place) node(path []string) map[string]any {
	node := p.schema
	for i, name := range path {
		node = inside(node)
		next, _ := properties(node)[name].(map[string]any)
		if i == 1 && name == "config" && path[0] == "jobs" {
			next = p.config(node)
		}
		if next == nil { // a name of the user's own: a publication, a variable
			next, _ = node["additionalProperties"].(map[string]any)
		}
		if next == nil {
			return nil
		}
		node = next
	}
	return node
}

// values returns the texts that a schema allows, as far as it lists them.
func values(node map[string]any) (texts []string) {
	list, _ := node["enum"].([]any)
	for _, value := range list {
		if text, ok := value.(string); ok {
			texts = append(texts, text)
		}
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		alternatives, _ := node[key].([]any)
		for _, alternative := range alternatives {
			of, _ := alternative.(map[string]any)
			texts = append(texts, values(of)...)
		}
	}
	return texts
}

// config returns the schema of the config of the operator that the job has.
func (p *place) config(job map[string]any) map[string]any {
	conditions, _ := job["allOf"].([]any)
	operator := p.operator()
	for _, c := range conditions {
		if text := fmt.Sprint(c.(map[string]any)["if"]); strings.Contains(text, "const:"+operator+"]") {
			then, _ := c.(map[string]any)["then"].(map[string]any)
			config, _ := properties(then)["config"].(map[string]any)
			return config
		}
	}
	return nil
}

func properties(node map[string]any) map[string]any {
	p, _ := node["properties"].(map[string]any)
	return p
}

// inside returns the schema of the entries of a list, and of alternatives that with fields.
func inside(node map[string]any) map[string]any {
	if items, ok := node["items"].(map[string]any); ok {
		return inside(items)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		list, _ := node[key].([]any)
		for _, alternative := range list {
			if of := inside(alternative.(map[string]any)); properties(of) != nil {
				return of
			}
		}
	}
	return node
}

// hover returns what is known of the word at the cursor.
func (p *place) hover() any {
	says := p.describe()
	if says == "" {
		return nil
	}
	return map[string]any{"contents": map[string]any{"kind": "markdown", "value": says}}
}

func (p *place) describe() string {
	if p.word == "" {
		return ""
	}
	if p.sql && p.job != nil {
		for _, in := range p.job.Inputs {
			if strings.EqualFold(in.As, p.word) && in.Job != "" {
				return p.describeJob(in.Job, in.Output)
			}
			if strings.EqualFold(in.As, p.word) {
				return p.others[in.Dataset].describe()
			}
		}
		for _, c := range p.columnsAndRelations() {
			if strings.EqualFold(c.Label, p.word) {
				return fmt.Sprintf("**%s** %s", c.Label, c.Detail)
			}
		}
		return ""
	}

	if d, ok := p.others[p.word]; ok && p.namesDataset() {
		return d.describe()
	}
	if p.doc != nil {
		if _, ok := p.doc.Job(p.word); ok {
			return p.describeJob(p.word, -1)
		}
	}
	for _, path := range [][]string{p.path, p.path[:max(0, len(p.path)-1)]} {
		field, _ := p.fields(path)[p.word].(map[string]any)
		if says, _ := field["description"].(string); says != "" {
			return fmt.Sprintf("**%s**: %s", p.word, says)
		}
	}
	return ""
}

// describeJob returns what a job is and writes. Of output -1 it shows all.
func (p *place) describeJob(name string, output int) string {
	job, ok := p.doc.Job(name)
	if !ok {
		return ""
	}
	says := fmt.Sprintf("**%s**, operator %s", job.Name, job.Operator)
	if job.Description != "" {
		says += "\n\n" + job.Description
	}

	for o, columns := range p.outputs(name) {
		if output < 0 || o == output {
			says += table(columns)
		}
	}
	return says
}

// describe returns what a dataset is and which columns it has; empty: nobody knows it.
func (d published) describe() string {
	if d.doc == nil {
		return ""
	}
	says := fmt.Sprintf("**%s**, published by DAG %s from job %s", d.Name, d.doc.Name, d.Job)
	if d.Description != "" {
		says += "\n\n" + d.Description
	}
	return says + table(d.columns())
}

// table returns columns for people; empty: they are not known.
func table(columns []dag.Column) string {
	if columns == nil {
		return ""
	}
	says := "\n\n| column | type |\n| --- | --- |"
	for _, c := range columns {
		says += fmt.Sprintf("\n| %s | %s |", c.Name, c.Type)
	}
	return says
}

// namesDataset reports whether the field at the cursor names a dataset of another DAG.
func (p *place) namesDataset() bool { return len(p.path) > 0 && p.path[len(p.path)-1] == "dataset" }

// definition returns where the word at the cursor is defined: a job in this file, a dataset in that of its DAG.
func (p *place) definition(uri string) any {
	name, dataset := p.word, ""
	if p.namesDataset() {
		dataset = p.word
	}
	if p.sql && p.job != nil {
		for _, in := range p.job.Inputs {
			if strings.EqualFold(in.As, p.word) {
				name, dataset = in.Job, in.Dataset
			}
		}
	}
	if d, ok := p.others[dataset]; ok {
		at := spanOf(d.lines, d.Position.Line, d.Position.Column, utf8.RuneCountInString(d.Name))
		return map[string]any{"uri": uriOf(d.path), "range": at}
	}

	if at := p.macro(uri); p.sql && at != nil {
		return at
	}

	for n, line := range p.lines {
		if found := nameField.FindStringSubmatchIndex(line); found != nil && line[found[2]:found[3]] == name {
			at := func(byte int) position { return position{n, utf16Column(line, len([]rune(line[:byte])))} }
			return map[string]any{"uri": uri, "range": span{at(found[2]), at(found[3])}}
		}
	}
	return nil
}

var macroDefined = late.Pattern(`(?i)\bmacro\s+"?(\w+)`)

// macro returns where the macro is defined that the word at the cursor names; nil: it names none.
func (p *place) macro(uri string) any {
	path, ok := pathOf(uri)
	if !ok || p.doc == nil {
		return nil
	}
	named := func(name string) bool { return strings.EqualFold(name, p.word) }
	if !slices.ContainsFunc(p.doc.Macros, named) {
		return nil
	}

	for _, file := range slices.Sorted(maps.Keys(p.doc.Files)) {
		lines := linesOf(string(p.doc.Files[file]))
		for n, line := range lines {
			if found := macroDefined.FindStringSubmatchIndex(line); found != nil && named(line[found[2]:found[3]]) {
				column := utf8.RuneCountInString(line[:found[2]]) + 1
				return map[string]any{"uri": uriOf(filepath.Join(filepath.Dir(path), filepath.FromSlash(file))),
					"range": spanOf(lines, n+1, column, utf8.RuneCountInString(p.word))}
			}
		}
	}
	return nil
}

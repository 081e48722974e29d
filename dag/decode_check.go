package dag

import (
	"cmp"
	"fmt"
	"strings"
)

// checks decodes a job's checks, and reports those that share a name.
func (d *decoder) checks(list value, j *Job) {
	names := map[string]bool{}
	for i, v := range list.items() {
		if len(j.Outputs) == 0 {
			d.node(v.node, CodeConflict, "a check needs an output, and the job has none")
			return
		}

		c, ok := d.check(v, j)
		if !ok {
			continue
		}
		if names[c.Name] {
			d.node(v.node, CodeDuplicate, "there are two checks %q", c.Name).suggest("give one a `name`")
		}
		names[c.Name] = true
		c.Index = i
		j.Checks = append(j.Checks, c)
	}
}

func (d *decoder) check(v value, j *Job) (Check, bool) {
	c := Check{Severity: cmp.Or(v.get("severity").text(), "error")}
	for _, kind := range checkKinds {
		if v.has(kind) {
			c.Kind = kind
			break
		}
	}

	output, ok := d.outputIndex(j, v.get("output"), v.node)
	if c.Kind == "" || !ok {
		return c, false
	}
	c.Output = output

	rule := v.get(c.Kind)
	switch c.Kind {
	case "not_null", "unique":
		c.Columns = rule.texts()
		d.distinct(rule, "column")
	case "accepted_values":
		c.Columns = rule.get("column").texts()
		c.Values = rule.get("values").scalars()
	case "row_count":
		d.rowCount(rule, &c)
	case "freshness":
		c.Columns = rule.get("column").texts()
		c.Within = rule.get("within").duration()
	case "relationships":
		c.Columns = rule.get("column").texts()
		to := rule.get("to")
		c.To = &CheckRelation{Input: to.get("input").text(), Column: to.get("column").text()}
	case "sql":
		if c.SQL, ok = d.macros.inCheck(d, rule); !ok {
			return c, false
		}
		if d.cat.Statement != nil && c.SQL != "" {
			if err := d.cat.Statement(j, c.SQL); err != nil {
				p := d.statementFault(rule.node, err.Message, true)
				p.nearest(err.Unknown, err.Known)
				d.macros.suggest(p)
				p.unseen = err.Unseen
			}
		}
	}

	c.Name = cmp.Or(v.get("name").text(), derivedName(c, j))
	return c, true
}

func (d *decoder) rowCount(rule value, c *Check) {
	for name, bound := range map[string]**int64{"min": &c.Min, "max": &c.Max} {
		if rule.has(name) {
			n := rule.get(name).integer()
			*bound = &n
		}
	}
	switch {
	case !rule.present() || rule.node.Content == nil && rule.scalar():
	case c.Min == nil && c.Max == nil:
		d.node(rule.node, CodeMissing, "`row_count` needs `min`, `max` or both")
	case c.Min != nil && c.Max != nil && *c.Min > *c.Max:
		d.node(rule.node, CodeValue, "`row_count` has a min of %d above its max of %d", *c.Min, *c.Max)
	}
}

// derivedName returns the name of a check that states none: not_null(iata), or not_null(iata)@delays if the job has
// several outputs.
func derivedName(c Check, j *Job) string {
	name := c.Kind
	if len(c.Columns) > 0 {
		name = fmt.Sprintf("%s(%s)", c.Kind, strings.Join(c.Columns, ","))
	}
	if len(j.Outputs) > 1 {
		name += "@" + j.Outputs[c.Output]
	}
	return name
}

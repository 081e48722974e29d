package parquetexport

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// layout is a compiled `path`: the names of folders in one another, each a list of texts and placeholders.
type layout [][]string

var (
	layoutPart = late.Pattern(`\{[^{}]*\}|[^{}]+|[{}]`)
	plainText  = late.Pattern(`^[A-Za-z0-9._=-]+$`)
	anyDigit   = late.Pattern(`\d`)
)

// timeParts are the placeholders for parts of keys of time.
var timeParts = []string{"{year}", "{quarter}", "{month}", "{day}", "{hour}", "{minute}"}

// placeholders are what a `path` may have in braces.
var placeholders = slices.Concat([]string{"{partition}"}, timeParts, []string{"{dag}", "{job}"})

// partsOf returns the placeholders that together are the key of a partition, in its order.
func partsOf(by dag.Partitioning) []string {
	if by.Kind != dag.ByTime {
		return nil
	}
	switch by.Unit.Named() {
	case dag.Year:
		return []string{"{year}"}
	case dag.Quarter:
		return []string{"{year}", "{quarter}"}
	case dag.Month:
		return []string{"{year}", "{month}"}
	case dag.Day:
		return []string{"{year}", "{month}", "{day}"}
	case dag.Hour:
		return []string{"{year}", "{month}", "{day}", "{hour}"}
	case dag.Minute:
		return []string{"{year}", "{month}", "{day}", "{hour}", "{minute}"}
	}
	return nil // weeks
}

func parseLayout(path string) (l layout, err error) {
	for _, name := range strings.Split(path, "/") {
		switch {
		case name == "":
			return nil, errors.New("it must be the names of folders, with one slash between two of them")
		case strings.ContainsAny(name[:1], "._"):
			return nil, fmt.Errorf("readers skip names such as %q, which begin with a dot or an underscore", name)
		}
		parts := layoutPart.FindAllString(name, -1)
		for _, part := range parts {
			switch {
			case slices.Contains(placeholders, part):
			case strings.ContainsAny(part, "{}"):
				return nil, fmt.Errorf("there is no placeholder %s; there are %s", part,
					strings.Join(placeholders, ", "))
			case !plainText.MatchString(part):
				return nil, fmt.Errorf("%q has other characters than letters of ASCII, digits and . _ = -", part)
			}
		}
		l = append(l, parts)
	}
	return l, nil
}

func (l layout) has(placeholder string) bool {
	return slices.ContainsFunc(l, func(name []string) bool { return slices.Contains(name, placeholder) })
}

// partitions returns an error if two partitions would have the same folder, or a partition lacks what a placeholder
// stands for.
func (l layout) partitions(by dag.Partitioning) error {
	of := partsOf(by)
	for _, placeholder := range timeParts {
		if l.has(placeholder) && !slices.Contains(of, placeholder) {
			return fmt.Errorf("%s have no %s", by, placeholder)
		}
	}

	switch whole := by.Kind == dag.Unpartitioned; {
	case whole && l.has("{partition}"):
		return errors.New("the job has no partitions, so there is nothing for {partition}")
	case whole || l.has("{partition}"):
		return nil
	}
	if of == nil || slices.ContainsFunc(of, func(part string) bool { return !l.has(part) }) {
		needed := "{partition}"
		if of != nil {
			needed += ", or all of " + strings.Join(of, ", ")
		}
		return fmt.Errorf("%s would overwrite each other: it needs %s", by, needed)
	}
	return nil
}

// mostName is the most bytes of a name in file systems.
const mostName = 255

// folder returns the folder of a partition, its names separated by slashes.
func (l layout) folder(by dag.Partitioning, key, dagName, job string) (string, error) {
	values := map[string]string{"{partition}": escape(key), "{dag}": escape(dagName), "{job}": escape(job)}
	if of := partsOf(by); of != nil {
		for i, digits := range strings.FieldsFunc(key, func(r rune) bool { return r < '0' || r > '9' }) {
			values[of[i]] = digits
		}
	}

	names := l.names(values)
	for _, name := range names {
		if len(name) > mostName {
			return "", fault.New(fault.Invalid, "partition %q: its folder has a name of %d bytes, and %d are the most",
				key, len(name), mostName).WithHint("make partitions with shorter keys")
		}
	}
	return strings.Join(names, "/"), nil
}

// names returns the names of the folders, with escaped values in place of placeholders.
func (l layout) names(values map[string]string) []string {
	names := make([]string, len(l))
	for i, parts := range l {
		var name strings.Builder
		for _, part := range parts {
			if slices.Contains(placeholders, part) {
				part = values[part]
			}
			name.WriteString(part)
		}
		if names[i] = name.String(); strings.ContainsAny(names[i][:1], "._") { // readers skip such names
			names[i] = fmt.Sprintf("%%%02X%s", names[i][0], names[i][1:])
		}
	}
	return names
}

// anyFolder returns the names of the folders of all partitions, as a dag.Target has them.
func (l layout) anyFolder(by dag.Partitioning, dagName, job string) []string {
	digits := func(pattern string) string { return strings.ReplaceAll(pattern, "#", dag.AnyDigit) }
	values := map[string]string{"{dag}": escape(dagName), "{job}": escape(job), "{partition}": dag.AnyText}
	for i, placeholder := range timeParts {
		values[placeholder] = digits([]string{"####", "#", "##", "##", "##", "##"}[i])
	}
	switch {
	case by.Kind == dag.ByTime:
		key := by.Unit.KeyOf(time.Date(2001, 1, 31, 5, 0, 0, 0, time.UTC)) // all keys have its form
		values["{partition}"] = strings.ReplaceAll(anyDigit.ReplaceAllString(key, dag.AnyDigit), ":", escape(":"))
	case by.Kind == dag.ByRange:
		values["{partition}"] = dag.AnyDigit + dag.AnyText + "-" + dag.AnyDigit + dag.AnyText
	}
	return l.names(values)
}

// special are the characters that Hive escapes in the names of folders, and so do those who read and write such
// folders. Others than these and those that cannot be printed stay as they are.
const special = "\"#%'*/:=?\\{[]^"

// escape returns a value as Hive writes it into the name of a folder.
func escape(value string) string {
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; c < ' ' || c == 0x7f || strings.IndexByte(special, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// keys returns the names of the columns that readers take from the path: KEY of KEY=VALUE.
func (l layout) keys() (keys []string) {
	for _, parts := range l {
		if key, _, ok := strings.Cut(strings.Join(parts, ""), "="); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// clash refuses a column that readers would take from the path and from the file, with different values or types.
func (l layout) clash(columns []dag.Column) *dag.ConfigError {
	for _, key := range l.keys() {
		for _, c := range columns {
			if sqltext.Same(key, c.Name) {
				return &dag.ConfigError{Key: "path", Message: fmt.Sprintf("column %q is in the rows, and `path` has "+
					"%s=: readers could take only one of them; name the part of the path otherwise, or leave the "+
					"column out in a sql job before", c.Name, key)}
			}
		}
	}
	return nil
}

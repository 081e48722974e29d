package operators

import (
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/plural"
)

// NamePattern is a compiled `pattern`, which says which files a source reads and to which partition each belongs.
type NamePattern struct {
	pattern
	text string
}

// CompileNamePattern compiles a pattern, which is not empty.
func CompileNamePattern(text string) (NamePattern, error) {
	p, err := compilePattern(text)
	if err == nil && text == "" {
		err = fmt.Errorf("it is empty")
	}
	return NamePattern{p, text}, err
}

// LeftOut counts what a source finds and cannot give to a partition. It goes on with the rest.
type LeftOut struct {
	count int
	first error
}

// Add adds one, and why it is left out.
func (l *LeftOut) Add(why error) {
	if l.count++; l.first == nil {
		l.first = why
	}
}

// Text says how many there are, and why the first one is left out; it is empty if there are none.
func (l *LeftOut) Text() string {
	if l.count == 0 {
		return ""
	}
	why := strings.ToValidUTF8(fault.Text(l.first), "\uFFFD") // names are any bytes
	return plural.Or(l.count, "file is", "files are") + " left out: " + why
}

// Fixed returns what all names that the pattern matches begin with.
func (p NamePattern) Fixed() string {
	fixed := ""
	for _, part := range patternPart.FindAllString(p.text, -1) {
		if part == "*" || part == "?" || placeholders[part] != "" {
			break
		}
		fixed += part
	}
	return fixed
}

// Partitions returns an error if the pattern could never give a file to a partition.
func (p NamePattern) Partitions(by dag.Partitioning) error {
	_, err := exampleOf(p.text).partition(by)
	return err
}

// PartitionOf returns the partition of a file; ok is false if the pattern does not match its name. The error of a name
// that gives no partition is about this file alone.
func (p NamePattern) PartitionOf(name string, by dag.Partitioning) (key string, ok bool, err error) {
	values, ok := p.match(name)
	if !ok {
		return "", false, nil
	}
	if key, err = values.partition(by); err == nil {
		err = by.Valid(key)
	}
	if err != nil {
		return "", true, fmt.Errorf("%s: %w", name, err)
	}
	return key, true, nil
}

// together matches patterns in which what makes the partition stands before everything that differs within one: dates
// and hours from the largest to the smallest, or a key that ends with its folder.
var together = late.Pattern(`^[^*?{}]*(\{key\}(/.*|[^*?{}]*)|` +
	`(\{(?:month|quarter|year)\}|\{date\}([^*?{}]*\{hour\}([^*?{}]*\{minute\})?)?)(?:[^{}]*))$`)

// Together reports whether, in the order of names, the files of each partition follow each other without others in
// between.
func (p NamePattern) Together(by dag.Partitioning) bool {
	return (by.Kind == dag.ByKey || by.Kind == dag.ByTime) && together.MatchString(p.text) &&
		(!strings.Contains(p.text, "{key}") || by.Kind == dag.ByKey)
}

// Matches reports whether the pattern matches a name.
func (p NamePattern) Matches(name string) bool {
	_, ok := p.match(name)
	return ok
}

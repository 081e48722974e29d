package scim

import (
	"strings"

	"github.com/dagctl/dagctl/internal/late"
)

// condition is ATTRIBUTE eq VALUE. Filters are conditions joined by and; nothing else is understood.
type condition struct {
	path  path
	value any // a text or a truth value
}

// path names an attribute of a document: ATTRIBUTE, ATTRIBUTE.SUB, ATTRIBUTE[FILTER] or ATTRIBUTE[FILTER].SUB. Names
// are in lower case.
type path struct {
	attribute string
	filter    []condition // of the values; none: all
	sub       string
	foreign   bool // of a schema that dagctl does not know
}

// Limits of what is parsed.
const (
	maxPath       = 1000 // bytes
	maxConditions = 10
)

var (
	goodName = late.Pattern(`^\$?[A-Za-z][A-Za-z0-9_-]*$`)
	// term matches one condition at the beginning of a filter. A value is a text of JSON, or a word.
	term = late.Pattern(`^\s*((?:[^\s"\[\]]|\[(?:[^"\]]|"(?:[^"\\]|\\.)*")*\])+)\s+([A-Za-z]+)(?:\s+("(?:[^"\\]|\\.)*"|[^\s"()]+))?\s*`)
	and  = late.Pattern(`^(?i:and)\s+`)
)

// parsePath reads a path.
func parsePath(text string) (p path, err error) {
	bad := invalid(invalidPath, "%.100q is not a path to an attribute", text)
	if len(text) > maxPath {
		return p, bad
	}
	rest := text
	if strings.HasPrefix(strings.ToLower(rest), "urn:") {
		before, after, filtered := strings.Cut(rest, "[")
		i := strings.LastIndex(before, ":")
		schema, name := before[:i], before[i+1:]
		if rest = name; filtered {
			rest += "[" + after
		}
		p.foreign = !strings.EqualFold(schema, userSchema) && !strings.EqualFold(schema, groupSchema)
	}

	name, filter, filtered := strings.Cut(rest, "[")
	if filtered {
		end := strings.LastIndex(filter, "]")
		if end < 0 {
			return p, bad
		}
		if p.filter, err = parseFilter(filter[:end]); err != nil {
			return p, err
		}
		if rest = filter[end+1:]; rest != "" && !strings.HasPrefix(rest, ".") {
			return p, bad
		}
		p.sub = strings.TrimPrefix(rest, ".")
		if rest != "" && p.sub == "" {
			return p, bad
		}
	} else if before, after, found := strings.Cut(name, "."); found {
		if name, p.sub = before, after; p.sub == "" {
			return p, bad
		}
	}

	if !p.foreign && (!goodName.MatchString(name) || p.sub != "" && !goodName.MatchString(p.sub)) {
		return p, bad
	}
	p.attribute, p.sub = strings.ToLower(name), strings.ToLower(p.sub)
	return p, nil
}

// parseFilter reads conditions that are joined by and.
func parseFilter(text string) (all []condition, err error) {
	for rest := text; ; {
		found := term.FindStringSubmatch(rest)
		if found == nil || len(text) > maxPath || len(all) == maxConditions {
			return nil, notUnderstood(text)
		}
		rest = rest[len(found[0]):]

		c := condition{}
		if c.path, err = parsePath(found[1]); err != nil || !strings.EqualFold(found[2], "eq") {
			return nil, notUnderstood(text)
		}
		if c.value, err = literal(found[3]); err != nil {
			return nil, notUnderstood(text)
		}
		if all = append(all, c); rest == "" {
			return all, nil
		}

		joined := and.FindString(rest)
		if joined == "" {
			return nil, notUnderstood(text)
		}
		rest = rest[len(joined):]
	}
}

// literal reads a value: a text, or true and false whatever their case.
func literal(text string) (any, error) {
	switch strings.ToLower(text) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	var s string
	err := decode([]byte(text), &s)
	return s, err
}

func notUnderstood(text string) error {
	return invalid(invalidFilter, `%.200q is no filter that is understood: write ATTRIBUTE eq "VALUE", several joined `+
		`by and`, text)
}

// text returns the value of a condition as a text.
func (c condition) text() string {
	switch v := c.value.(type) {
	case string:
		return v
	case bool:
		if v {
			return "true"
		}
	}
	return "false"
}

// matches reports whether a value of an attribute, as a document has it, meets all conditions.
func matches(value map[string]any, all []condition) bool {
	for _, c := range all {
		switch has := value[c.path.attribute].(type) {
		case string:
			if want, ok := c.value.(string); !ok || !strings.EqualFold(has, want) {
				return false
			}
		case bool, nil:
			set, _ := has.(bool)
			if want, err := truth(c.value); err != nil || want != set {
				return false
			}
		default:
			return false
		}
	}
	return true
}

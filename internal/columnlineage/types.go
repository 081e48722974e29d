package columnlineage

import "strings"

// named is a field of a struct: its name and its type.
type named struct{ name, kind string }

// elementOf returns the type of a list's elements, and whether the type is one of lists.
func elementOf(kind string) (string, bool) {
	if !strings.HasSuffix(kind, "]") {
		return "", false
	}
	return kind[:strings.LastIndexByte(kind, '[')], true
}

// fieldsOf returns the fields of a type such as STRUCT(lat DOUBLE, "the lon" DOUBLE); nil for other types.
func fieldsOf(kind string) (fields []named) {
	inside, isStruct := strings.CutPrefix(kind, "STRUCT(")
	inside, whole := strings.CutSuffix(inside, ")")
	if !isStruct || !whole {
		return nil
	}
	for _, part := range splitTypes(inside) {
		name, kind := cutName(strings.TrimSpace(part))
		if kind == "" {
			return nil
		}
		fields = append(fields, named{name, kind})
	}
	return fields
}

// splitTypes splits at commas outside of parentheses and quotation marks.
func splitTypes(s string) (parts []string) {
	depth, begin := 0, 0
	quote := byte(0)

	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, s[begin:i])
			begin = i + 1
		}
	}
	return append(parts, s[begin:])
}

// cutName cuts the name off a field.
func cutName(field string) (name, kind string) {
	if !strings.HasPrefix(field, `"`) {
		name, kind, _ = strings.Cut(field, " ")
		return name, kind
	}
	for i := 1; i < len(field); i++ {
		if field[i] != '"' {
			continue
		}
		if i+1 < len(field) && field[i+1] == '"' {
			i++
			continue
		}
		return strings.ReplaceAll(field[1:i], `""`, `"`), strings.TrimSpace(field[i+1:])
	}
	return "", ""
}

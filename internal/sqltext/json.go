package sqltext

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// JSONText returns the expression of a value's exact JSON text; NULL stays NULL. Unlike to_json, it takes JSON as it
// stands, where to_json rounds its numbers, and writes NaN and the infinities as text, because JSON has none.
func JSONText(value string, t Type) string { return jsonText{}.of(value, t, 0) }

// StoredJSON is JSONText for nested values that Postgres keeps as json or jsonb: also -0.0 is text, because jsonb has
// none, and so is JSON, because jsonb changes its layout.
func StoredJSON(value string, t Type) string { return jsonText{stored: true}.of(value, t, 0) }

// LineMember returns the expression of a member of an object in a line of JSON: its name and its text. Unlike JSONText,
// lines have NaN and Infinity as bare words, as Python reads and writes them.
func LineMember(name, value string, t Type) string {
	return jsonMember(name, jsonText{bare: true}.of(value, t, 0))
}

func jsonMember(name, text string) string { return Literal(jsonName(name)+":") + " || " + orNull(text) }

type jsonText struct{ stored, bare bool }

func (j jsonText) of(value string, t Type, depth int) string {
	switch t.Kind {
	case ScalarType, UnionType:
		return j.scalar(value, t)
	}
	if !t.Any(Named("JSON")) && (j.bare || !t.Any(Named("FLOAT", "DOUBLE"))) {
		return "CAST(to_json(" + value + ") AS VARCHAR)"
	}

	whole := func(open, inner, end string) string {
		return fmt.Sprintf("CASE WHEN %s IS NOT NULL THEN '%s' || %s || '%s' END", value, open, inner, end)
	}
	element := fmt.Sprintf("j%d", depth)
	switch t.Kind {
	case MapType:
		return whole("{", fmt.Sprintf("array_to_string(list_transform(map_entries(%s), lambda %s: "+
			"CAST(to_json(CAST(%[2]s.key AS VARCHAR)) AS VARCHAR) || ':' || %[3]s), ',')", value, element,
			orNull(j.of(element+".value", t.Fields[1].Type, depth+1))), "}")
	case StructType:
		parts := make([]string, len(t.Fields))
		for i, f := range t.Fields {
			member := fmt.Sprintf("struct_extract(%s, %s)", value, MemberKey(f, i))
			parts[i] = jsonMember(f.Name, j.of(member, f.Type, depth))
		}
		return whole("{", strings.Join(parts, " || ',' || "), "}")
	default:
		return whole("[", fmt.Sprintf("array_to_string(list_transform(%s, lambda %s: %s), ',')", value, element,
			orNull(j.of(element, t.Fields[0].Type, depth+1))), "]")
	}
}

func orNull(text string) string { return "coalesce(" + text + ", 'null')" }

func (j jsonText) scalar(value string, t Type) string {
	quoted := "CAST(to_json(CAST(" + value + " AS VARCHAR)) AS VARCHAR)"
	switch t.Name {
	case "FLOAT", "DOUBLE":
		if j.bare {
			break
		}
		plain := "isfinite(" + value + ")"
		if !j.stored {
			quoted = fmt.Sprintf(`CASE WHEN isnan(%s) THEN '"NaN"' WHEN %[1]s > 0 THEN '"Infinity"' `+
				`ELSE '"-Infinity"' END`, value)
		}
		if j.stored {
			plain += fmt.Sprintf(" AND NOT (%s = 0 AND signbit(%[1]s))", value)
		}
		return fmt.Sprintf("CASE WHEN %s IS NULL THEN NULL WHEN %s THEN CAST(%[1]s AS VARCHAR) ELSE %[3]s END", value,
			plain, quoted)
	case "JSON":
		if j.stored {
			return quoted
		}
		// Line ends are between its tokens only. What another program wrote need not be JSON.
		return fmt.Sprintf("CASE WHEN json_valid(%s) THEN replace(replace(CAST(%[1]s AS VARCHAR), chr(10), ' '), "+
			"chr(13), ' ') ELSE %s END", value, quoted)
	}
	return "CAST(to_json(" + value + ") AS VARCHAR)"
}

// jsonName returns a name as a JSON string.
func jsonName(name string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(name) // a string always encodes
	return strings.TrimSpace(b.String())
}

// MemberKey returns how struct_extract finds a member: by its name, or by its number if it has none.
func MemberKey(f TypeField, i int) string {
	if f.Name == "" {
		return strconv.Itoa(i + 1)
	}
	return Literal(f.Name)
}

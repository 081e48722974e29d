package sqltext

import (
	"slices"
	"strings"
)

// Type is a DuckDB type, read from its name.
type Type struct {
	Kind   TypeKind
	Name   string      // of a scalar, with its parameters
	Size   string      // of an array
	Fields []TypeField // of a list or an array the elements, of a map keys and values
}

// TypeField is a part of a nested type.
type TypeField struct {
	Name string // of a struct's or union's member; empty in a struct without names
	Type Type

	as string // the name as DuckDB writes it
}

// TypeKind is how a type is made of others.
type TypeKind int

// The kinds of types.
const (
	ScalarType TypeKind = iota
	ListType
	ArrayType
	StructType
	MapType
	UnionType
)

// TypeOf reads the name of a type as DuckDB writes it. What it does not know is a scalar.
func TypeOf(name string) Type {
	name = strings.TrimSpace(name)
	if open := strings.LastIndexByte(name, '['); open > 0 && strings.HasSuffix(name, "]") {
		size := name[open+1 : len(name)-1]
		t := Type{Kind: ListType, Size: size, Fields: []TypeField{{Type: TypeOf(name[:open])}}}
		if size != "" {
			t.Kind = ArrayType
		}
		return t
	}

	for prefix, kind := range map[string]TypeKind{"STRUCT(": StructType, "MAP(": MapType, "UNION(": UnionType} {
		if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, ")") {
			continue
		}
		t := Type{Kind: kind}
		for _, part := range splitType(name[len(prefix):len(name)-1], ',') {
			var f TypeField
			if kind != MapType {
				f, part = memberOf(part)
			}
			f.Type = TypeOf(part)
			t.Fields = append(t.Fields, f)
		}
		return t
	}
	return Type{Name: name}
}

// memberOf takes the name from a struct's member. Members of a struct without names are types alone.
func memberOf(part string) (f TypeField, of string) {
	part = strings.TrimSpace(part)
	words := splitType(part, ' ')
	if len(words) == 1 || strings.HasSuffix(part, " TIME ZONE") && len(words) == 4 {
		return f, part
	}
	f.as, f.Name = words[0], words[0]
	if strings.HasPrefix(f.as, `"`) {
		f.Name = strings.ReplaceAll(f.as[1:len(f.as)-1], `""`, `"`)
	}
	return f, part[len(f.as):]
}

// splitType splits a text at a separator outside of quotes, brackets and parentheses.
func splitType(text string, by byte) (parts []string) {
	depth, quote, from := 0, byte(0), 0
	for i := range len(text) {
		c := text[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		case c == by && depth == 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

// String returns the type's name as DuckDB reads it.
func (t Type) String() string {
	parts := make([]string, len(t.Fields))
	for i, f := range t.Fields {
		parts[i] = f.Type.String()
		if f.Name != "" {
			parts[i] = f.as + " " + parts[i]
		}
	}

	list := "(" + strings.Join(parts, ", ") + ")"
	switch t.Kind {
	case ListType, ArrayType:
		return parts[0] + "[" + t.Size + "]"
	case StructType:
		return "STRUCT" + list
	case MapType:
		return "MAP" + list
	case UnionType:
		return "UNION" + list
	}
	return t.Name
}

// Map returns the type with each scalar and union replaced by what of returns for it.
func (t Type) Map(of func(Type) Type) Type {
	if t.Kind == ScalarType || t.Kind == UnionType {
		return of(t)
	}
	fields := make([]TypeField, len(t.Fields))
	for i, f := range t.Fields {
		fields[i] = TypeField{f.Name, f.Type.Map(of), f.as}
	}
	t.Fields = fields
	return t
}

// Any reports whether the type or a part of it is as is says.
func (t Type) Any(is func(Type) bool) bool {
	return is(t) || slices.ContainsFunc(t.Fields, func(f TypeField) bool { return f.Type.Any(is) })
}

// Named returns a test for scalars of one of the names.
func Named(names ...string) func(Type) bool {
	return func(t Type) bool { return t.Kind == ScalarType && slices.Contains(names, t.Name) }
}

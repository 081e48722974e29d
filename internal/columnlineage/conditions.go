package columnlineage

import (
	"regexp"
	"strings"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// holds evaluates a condition on a column's name, which stands where isName says. It returns false for ok if it does
// not know how.
func holds(n map[string]any, name string, isName func(map[string]any) bool) (held, ok bool) {
	switch text(n, "class") {
	case "CONJUNCTION":
		and := text(n, "type") == "CONJUNCTION_AND"
		held = and
		for _, child := range list(n, "children") {
			part, _ := child.(map[string]any)
			one, known := holds(part, name, isName)
			if !known {
				return false, false
			}
			if and {
				held = held && one
			} else {
				held = held || one
			}
		}
		return held, true

	case "OPERATOR":
		children := list(n, "children")
		if text(n, "type") == "OPERATOR_NOT" && len(children) == 1 {
			part, _ := children[0].(map[string]any)
			held, ok = holds(part, name, isName)
			return !held, ok
		}
		return isOneOf(n, name, isName)

	case "COMPARISON":
		if isName(object(n, "left")) && text(object(n, "right"), "class") == "CONSTANT" {
			same := constant(object(n, "right")) == name
			return same == (text(n, "type") == "COMPARE_EQUAL"),
				text(n, "type") == "COMPARE_EQUAL" || text(n, "type") == "COMPARE_NOTEQUAL"
		}
	case "FUNCTION":
		return matches(n, name, isName)
	}
	return false, false
}

func isOneOf(n map[string]any, name string, isName func(map[string]any) bool) (held, ok bool) {
	children := list(n, "children")
	first := map[string]any(nil)
	if len(children) > 0 {
		first, _ = children[0].(map[string]any)
	}
	kind := text(n, "type")
	if !isName(first) || kind != "COMPARE_IN" && kind != "COMPARE_NOT_IN" {
		return false, false
	}

	for _, child := range children[1:] {
		part, _ := child.(map[string]any)
		if text(part, "class") != "CONSTANT" {
			return false, false
		}
		held = held || constant(part) == name
	}
	return held == (kind == "COMPARE_IN"), true
}

// matches evaluates a function of a name and a constant.
func matches(n map[string]any, name string, isName func(map[string]any) bool) (held, ok bool) {
	children := list(n, "children")
	if len(children) != 2 {
		return false, false
	}
	first, _ := children[0].(map[string]any)
	second, _ := children[1].(map[string]any)
	if !isName(first) || text(second, "class") != "CONSTANT" {
		return false, false
	}

	with := constant(second)
	switch sqltext.Lower(text(n, "function_name")) {
	case "~~":
		return like(name, with), true
	case "!~~":
		return !like(name, with), true
	case "~~*":
		return like(strings.ToLower(name), strings.ToLower(with)), true
	case "!~~*":
		return !like(strings.ToLower(name), strings.ToLower(with)), true
	case "starts_with", "prefix", "^@":
		return strings.HasPrefix(name, with), true
	case "ends_with", "suffix":
		return strings.HasSuffix(name, with), true
	case "contains":
		return strings.Contains(name, with), true
	case "regexp_matches":
		return regular(with, name)
	case "regexp_full_match":
		return regular(`^(?:`+with+`)$`, name)
	}
	return false, false
}

func regular(expression, name string) (held, ok bool) {
	pattern, err := regexp.Compile(expression)
	if err != nil {
		return false, false
	}
	return pattern.MatchString(name), true
}

// like is SQL's LIKE without an escape.
func like(name, pattern string) bool {
	var expression strings.Builder
	for _, r := range pattern {
		switch r {
		case '%':
			expression.WriteString("(?s:.*)")
		case '_':
			expression.WriteString("(?s:.)")
		default:
			expression.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	held, _ := regular("^"+expression.String()+"$", name)
	return held
}

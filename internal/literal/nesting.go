package literal

import "fmt"

// MaxNesting is how deep the lists and objects of a JSON text that is stored may be nested. PostgreSQL takes more, but
// readers in other languages do not: Python's stop at about a thousand.
const MaxNesting = 500

// Nesting refuses a JSON text that is nested deeper than MaxNesting. It reports nothing else that may be wrong with it.
func Nesting(text []byte) error {
	depth := 0
	for i := 0; i < len(text); {
		switch text[i] {
		case '"':
			i = afterString(text, i)
			continue
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if depth > MaxNesting {
			return fmt.Errorf("is nested too deeply: lists and objects may be %d levels deep", MaxNesting)
		}
		i++
	}
	return nil
}

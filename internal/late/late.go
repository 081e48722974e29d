// Package late has regular expressions that are compiled when they are first used. Repetitions up to a number, such
// as {0,250}, take up to a millisecond, and each engine is a process that begins with all that this binary has.
package late

import (
	"regexp"
	"sync"
)

// Pattern returns what compiles an expression once.
func Pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// Package late has regular expressions that are compiled when they are first used. All of this binary's take two
// milliseconds to compile, and each engine is a process that begins with all that this binary has.
package late

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression with the methods of the regexp package. It is safe for concurrent use.
type Regexp struct{ compiled func() *regexp.Regexp }

// Pattern returns an expression. One that is none panics when it is first used; the tests of the module's root compile
// all that are written in its code.
func Pattern(expression string) *Regexp {
	return &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

// String returns the expression.
func (r *Regexp) String() string { return r.compiled().String() }

// Match reports whether a text has a match.
func (r *Regexp) Match(text []byte) bool { return r.compiled().Match(text) }

// MatchString reports whether a text has a match.
func (r *Regexp) MatchString(text string) bool { return r.compiled().MatchString(text) }

// FindString returns the first match.
func (r *Regexp) FindString(text string) string { return r.compiled().FindString(text) }

// FindStringIndex returns where the first match begins and ends.
func (r *Regexp) FindStringIndex(text string) []int { return r.compiled().FindStringIndex(text) }

// FindStringSubmatch returns the first match and those of its groups.
func (r *Regexp) FindStringSubmatch(text string) []string {
	return r.compiled().FindStringSubmatch(text)
}

// FindSubmatch is FindStringSubmatch for bytes.
func (r *Regexp) FindSubmatch(text []byte) [][]byte { return r.compiled().FindSubmatch(text) }

// FindStringSubmatchIndex returns where the first match and those of its groups begin and end.
func (r *Regexp) FindStringSubmatchIndex(text string) []int {
	return r.compiled().FindStringSubmatchIndex(text)
}

// FindAllString returns up to n matches; all if n is below 0.
func (r *Regexp) FindAllString(text string, n int) []string {
	return r.compiled().FindAllString(text, n)
}

// FindAllStringIndex returns where up to n matches begin and end.
func (r *Regexp) FindAllStringIndex(text string, n int) [][]int {
	return r.compiled().FindAllStringIndex(text, n)
}

// FindAllStringSubmatch returns up to n matches and those of their groups.
func (r *Regexp) FindAllStringSubmatch(text string, n int) [][]string {
	return r.compiled().FindAllStringSubmatch(text, n)
}

// FindAllStringSubmatchIndex returns where up to n matches and those of their groups begin and end.
func (r *Regexp) FindAllStringSubmatchIndex(text string, n int) [][]int {
	return r.compiled().FindAllStringSubmatchIndex(text, n)
}

// ReplaceAllString replaces all matches; $1 stands for the first group.
func (r *Regexp) ReplaceAllString(text, with string) string {
	return r.compiled().ReplaceAllString(text, with)
}

// ReplaceAllStringFunc replaces all matches by what a function makes of them.
func (r *Regexp) ReplaceAllStringFunc(text string, with func(match string) string) string {
	return r.compiled().ReplaceAllStringFunc(text, with)
}

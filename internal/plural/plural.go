// Package plural writes numbers of things in English.
package plural

import "strconv"

// Of returns a number with its noun, such as "1 task" or "2 tasks".
func Of[N ~int | ~int64](n N, noun string) string { return Or(n, noun, noun+"s") }

// Or returns a number with the words for one and for several, such as "1 task is" or "2 tasks are".
func Or[N ~int | ~int64](n N, one, several string) string {
	return strconv.FormatInt(int64(n), 10) + " " + Word(n, one, several)
}

// Word returns the words for one or for several, for those who write the number in their own way.
func Word[N ~int | ~int64](n N, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

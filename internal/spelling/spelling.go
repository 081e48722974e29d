// Package spelling finds the words that mistyped ones were meant to be.
package spelling

import "strings"

// Nearest returns the candidate that word was probably meant to be: the one at the smallest edit distance, if that is
// small for its length. Otherwise it returns an empty text.
func Nearest(word string, candidates []string) string {
	if len(word) < 3 {
		return "" // almost anything is near to so short a word
	}
	best, distance := "", len(word)/3+1
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(word), strings.ToLower(c), distance); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// editDistance counts insertions, deletions, substitutions and swaps of neighbours. It may stop at limit.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}

	// Three rows of the usual table: the last two, and the one to fill.
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

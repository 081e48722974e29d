package search

import (
	"math/bits"
	"strings"
	"unicode"
	"unicode/utf8"
)

// word is a word with what tells quickly that another one cannot be like it.
type word struct {
	text   string
	length int    // runes
	runes  uint32 // which letters it has, as a set of 32 classes
	digits bool   // it has a digit: its neighbours mean something else
}

func newWord(text string) word {
	w := word{text: text, length: utf8.RuneCountInString(text)}
	for _, r := range text {
		w.runes |= 1 << (uint32(r) % 32)
		w.digits = w.digits || unicode.IsDigit(r)
	}
	return w
}

// How like another word is, from 100 for the same one down.
const (
	same     = 100
	begins   = 85 // it begins with the word that was asked for
	oneTypo  = 65
	inside   = 55 // it has the word in it
	twoTypos = 45
	wordPart = 3 // the shortest word that is looked for inside of others
	forOne   = 4 // the shortest word that may have a typo
	forTwo   = 8 // the shortest word that may have two
	unlike   = 0
)

// likeness returns how like another word is to the one that was asked for, 0 if it is not.
func (w word) likeness(other word) int {
	switch {
	case w.text == other.text:
		return same
	case strings.HasPrefix(other.text, w.text):
		return begins
	}

	if typos := w.typos(); typos > 0 && w.near(other, typos) {
		switch made := distance(w.text, other.text, typos); {
		case made > typos:
		case made == 1:
			return oneTypo
		default:
			return twoTypos
		}
	}
	if w.length >= wordPart && strings.Contains(other.text, w.text) {
		return inside
	}
	return unlike
}

// typos returns how many typos the word may have.
func (w word) typos() int {
	switch {
	case w.digits || w.length < forOne:
		return 0
	case w.length < forTwo:
		return 1
	}
	return 2
}

// near reports whether another word can be within so many typos. Each typo takes one letter and brings another at most.
func (w word) near(other word, typos int) bool {
	return max(w.length-other.length, other.length-w.length) <= typos &&
		bits.OnesCount32(w.runes^other.runes) <= 2*typos
}

// distance returns how many letters have to be put in, left out, replaced, or swapped with their neighbour to make one
// word of another. It returns most+1 if they are more than most.
func distance(a, b string, most int) int {
	from, to := []rune(a), []rune(b)
	var rows [3][longestWord + 2]int
	for j := range to {
		rows[0][j+1] = j + 1
	}

	for i := range from {
		at, last, beforeLast := &rows[(i+1)%3], &rows[i%3], &rows[(i+2)%3]
		at[0] = i + 1
		least := at[0]
		for j := range to {
			changed := 0
			if from[i] != to[j] {
				changed = 1
			}
			at[j+1] = min(last[j+1]+1, at[j]+1, last[j]+changed)
			if i > 0 && j > 0 && from[i] == to[j-1] && from[i-1] == to[j] {
				at[j+1] = min(at[j+1], beforeLast[j-1]+1)
			}
			least = min(least, at[j+1])
		}
		if least > most {
			return most + 1
		}
	}
	return min(rows[len(from)%3][len(to)], most+1)
}

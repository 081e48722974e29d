// Package search finds documents by words that people remember half and spell nearly right. It is pure: it knows no
// database, and who may see a document is the caller's business.
//
// Vocabulary: a document is the texts of one dataset, each in a field. Texts are cut into words at everything that is
// no letter or digit, and where a small letter meets a capital: airport_delays, airport.delays and airportDelays are
// the same two words. A query is words too; a document matches if each of them is like one of its words. How like, and
// in which field, is the score. A score depends on the query and the document alone, so that it tells nothing of other
// documents and stays the same from page to page.
//
// It owns no tables.
package search

import (
	"slices"
	"strings"
	"unicode"
)

// Field is the kind of a text.
type Field uint8

// The fields. A match in an earlier one counts for more.
const (
	Name Field = iota
	Tag
	Owner
	Column
	Description
	ColumnDescription
	fields int = iota
)

// String is the name that people see.
func (f Field) String() string {
	return [fields]string{"name", "tag", "owner", "column", "description", "column description"}[f]
}

// weights say what a word counts for in a field.
var weights = [fields]int{Name: 100, Tag: 70, Owner: 60, Column: 55, Description: 40, ColumnDescription: 25}

// Text is one text of a document.
type Text struct {
	Field Field
	Text  string
}

// words returns the words that a text is found by: a name by all its words as one, too.
func (t Text) words() []string {
	words := Words(t.Text)
	if t.Field == Name {
		words = append(words, cut(strings.Join(words, "")))
	}
	return words
}

// cut returns the beginning of a word that is too long.
func cut(text string) string {
	if runes := []rune(text); len(runes) > longestWord {
		return string(runes[:longestWord])
	}
	return text
}

// Document is what is searched of one dataset. The first text is its name, and no other one is.
type Document []Text

// mostWords bounds the words of a query and their length, which bound what a search costs.
const mostWords, longestWord = 8, 40

// Query is a parsed search.
type Query struct {
	phrase string // the whole text in small letters
	joined string // its words without what is between them
	words  []word
}

// Parse reads what somebody typed.
func Parse(text string) Query {
	q := Query{phrase: strings.ToLower(strings.TrimSpace(text))}
	split := Words(text)
	q.joined = strings.Join(split, "")
	for _, w := range split {
		if len(q.words) < mostWords && !slices.ContainsFunc(q.words, func(o word) bool { return o.text == w }) {
			q.words = append(q.words, newWord(w))
		}
	}
	return q
}

// Words cuts a text into words in small letters.
func Words(text string) (words []string) {
	var b strings.Builder
	end := func() {
		if b.Len() > 0 {
			words = append(words, b.String())
			b.Reset()
		}
	}

	small, length := false, 0
	for _, r := range text {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
			end()
			small, length = false, 0
			continue
		}
		if small && unicode.IsUpper(r) || length == longestWord {
			end()
			length = 0
		}

		small = unicode.IsLower(r)
		b.WriteRune(unicode.ToLower(r))
		length++
	}
	end()
	return words
}

// wholes are the bonuses of a document whose name is the query, begins with it or has it in it.
const nameIs, nameBegins, nameHas = 6000, 2000, 1000

// wholeName returns the bonus of a name, given in small letters and as joined words.
func (q Query) wholeName(name, joined string) int {
	switch {
	case q.phrase == "":
		return 0
	case name == q.phrase, q.joined != "" && joined == q.joined:
		return nameIs
	case strings.HasPrefix(name, q.phrase):
		return nameBegins
	case strings.Contains(name, q.phrase):
		return nameHas
	}
	return 0
}

// Match says why a document was found.
type Match struct {
	Field string `json:"field" enum:"name,tag,owner,column,description,column description" doc:"What matched"`
	Text  string `json:"text" doc:"The text that matched, or the part of it around the first word"`
}

// Explain returns the text of a document that speaks most for it. It returns nil if nothing matches.
func (q Query) Explain(doc Document) *Match {
	best, found := 0, Text{}
	for _, t := range doc {
		score := 0
		for _, asked := range q.words {
			most := 0
			for _, w := range t.words() {
				most = max(most, asked.likeness(newWord(w)))
			}
			score += most * weights[t.Field]
		}

		whole := strings.ToLower(t.Text)
		if t.Field == Name {
			score += q.wholeName(whole, strings.Join(Words(t.Text), ""))
		}
		if score > best {
			best, found = score, t
		}
	}

	if best == 0 {
		return nil
	}
	return &Match{Field: found.Field.String(), Text: q.around(found.Text)}
}

// before and shown say how many runes of a long text Explain shows, and how many of them before what matched.
const before, shown = 40, 160

// around returns a text, cut to what is around the first word that matches if it is long.
func (q Query) around(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	runes := []rune(text)
	if len(runes) <= shown {
		return text
	}

	first := 0
	for at, part := range strings.Fields(text) {
		if q.likeAny(Words(part)) {
			first = len([]rune(strings.Join(strings.Fields(text)[:at], " ")))
			break
		}
	}

	from := max(0, first-before)
	to := min(len(runes), from+shown)
	cut := strings.TrimSpace(string(runes[from:to]))
	if from > 0 {
		cut = "… " + cut
	}
	if to < len(runes) {
		cut += " …"
	}
	return cut
}

func (q Query) likeAny(words []string) bool {
	for _, w := range words {
		for _, asked := range q.words {
			if asked.likeness(newWord(w)) > 0 {
				return true
			}
		}
	}
	return false
}

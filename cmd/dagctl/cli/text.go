package cli

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/graphemes"
	"github.com/google/uuid"
	"github.com/mattn/go-runewidth"

	"github.com/dagctl/dagctl/internal/fault"
)

// identifiers are the headers of columns with what people copy into commands.
var identifiers = []string{"ID", "EXAMPLE", "PARTITION", "KEY", "TASK", "WITHHELD", "DATASET VERSION", "COMMAND"}

// narrow makes columns of text narrower, the widest first, until the table fits. Those of identifiers stay whole, also
// if the table is then too wide, because people copy them.
func (t *Table) narrow(widths []int, numeric []bool, width int) {
	const least, between = 8, 2
	whole := make([]bool, len(widths))
	for i := range widths {
		whole[i] = numeric[i] || slices.Contains(identifiers, t.Header[i]) || t.hasUUIDs(i)
	}

	for {
		total, widest := between*(len(widths)-1), -1
		for i, w := range widths {
			total += w
			if !whole[i] && w > least && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if total <= width || widest < 0 {
			return
		}
		widths[widest]--
	}
}

// hasUUIDs reports whether a column has a UUID.
func (t *Table) hasUUIDs(column int) bool {
	return slices.ContainsFunc(t.rows, func(row []string) bool {
		return len(row[column]) == 36 && uuid.Validate(row[column]) == nil
	})
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// columns counts a character as the column or two that a terminal gives it, in every locale alike.
var columns = &runewidth.Condition{}

// Width returns how many columns of a terminal text takes.
func Width(text string) (width int) {
	for g := graphemes.FromString(text); g.Next(); {
		width += widthOfOne(g.Value())
	}
	return width
}

// widthOfOne returns how many columns one character takes, which may be of several code points.
func widthOfOne(character string) int {
	first, size := utf8.DecodeRuneInString(character)
	switch rest := character[size:]; {
	case rest == "":
	case first >= 0x1f1e6 && first <= 0x1f1ff: // two letters of a flag
		return 2
	case strings.ContainsRune(rest, 0xfe0f): // shown as an emoji
		return 2
	}
	return columns.StringWidth(character)
}

// OneLine replaces control characters, which must not reach a terminal, and shortens text to the width of a cell. It
// leaves out the traceback of an error.
func OneLine(text string, widest int) string {
	text = Whole(fault.Headline(text))
	if Width(text) <= widest {
		return text
	}

	width := 0
	for g := graphemes.FromString(text); g.Next(); {
		if width += widthOfOne(g.Value()); width > widest-1 {
			return text[:g.Start()] + "…"
		}
	}
	return text
}

// Whole replaces control characters in an identifier, such as the key of a partition, which is not shortened: people
// copy it into commands.
func Whole(text string) string {
	last := ' '
	return strings.Map(func(r rune) rune {
		if !visible(r, last) {
			r = ' '
		}
		last = r
		return r
	}, text)
}

// Cell returns a value of a row as a table has it. What may be an identifier, such as a hash, is not shortened.
func Cell(text string) string {
	const identifier, widest = 100, 60
	if len(text) <= identifier && !strings.ContainsFunc(text, unicode.IsSpace) {
		return Whole(text)
	}
	return OneLine(text, widest)
}

// visible reports whether a code point may reach a terminal behind the one before it. Those that control the terminal,
// or the direction of text, or that nobody sees may not, but for joiners and tags where they make one character.
func visible(r, last rune) bool {
	const zwnj, zwj, blackFlag = 0x200c, 0x200d, 0x1f3f4
	isTag := func(r rune) bool { return r >= 0xe0020 && r <= 0xe007f }
	switch {
	case r == utf8.RuneError || unicode.IsControl(r) || r == 0x2028 || r == 0x2029:
		return false
	case r == zwnj || r == zwj: // scripts from Arabic on, and emoji
		return last >= 0x600 && (last < 0x2000 || last > 0x2190)
	case isTag(r):
		return last == blackFlag || isTag(last)
	}
	return !unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

func harmless(r rune) rune {
	if !visible(r, ' ') {
		return ' '
	}
	return r
}

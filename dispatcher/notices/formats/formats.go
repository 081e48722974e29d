// Package formats writes notices as their receivers want to have them: Slack messages, cards of Microsoft Teams, events
// of PagerDuty and e-mails. It is pure, but for what delivers e-mails.
//
// Vocabulary: a message is what people are told of one trouble, or of its end. It owns no tables.
package formats

import (
	"strings"
	"time"
	"unicode/utf8"
)

// State says what a message is about.
type State string

// The states.
const (
	Trouble State = "trouble"
	Over    State = "over" // the trouble of the same topic has ended
	Test    State = "test" // somebody tries whether messages arrive
)

// Message is what people are told.
type Message struct {
	ID       string // the same at each try
	Topic    string // the same for a trouble, its repetitions and its end
	State    State
	Kind     string // dead, late, failed_deploy or failed_check; empty for a test
	Severity string // of PagerDuty: critical, error or warning
	Source   string // ORG/DAG
	Part     string // the job or dataset, if there is one
	Title    string // one line
	Text     string // the reason; may be empty
	Facts    []Fact
	Link     string // the page that says more; empty, if the server does not know its address
	At       time.Time
}

// Fact is a name and its value.
type Fact struct{ Name, Value string }

// mark returns the sign in front of the title.
func (m Message) mark() string {
	switch m.State {
	case Over:
		return "✅"
	case Test:
		return "🔔"
	}
	return "🔴"
}

// Cut shortens a text to a number of characters.
func Cut(text string, longest int) string {
	if utf8.RuneCountInString(text) <= longest {
		return text
	}
	return string([]rune(text)[:longest-1]) + "…"
}

// line returns a text as one line.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

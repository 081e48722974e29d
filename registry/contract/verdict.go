package contract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Refusal returns the error with which a transition ends that the findings keep from happening; nil if they do not.
// Given is what was agreed to.
func Refusal(findings []Finding, given []Consent) error {
	for _, level := range []Level{Refuses, Asks} {
		var texts, hints, flags []string
		for _, f := range findings {
			if f.Level != level || !f.Needs(given) {
				continue
			}
			texts = append(texts, f.Text)
			hints = appendNew(hints, f.Hint)
			flags = appendNew(flags, f.flag())
		}
		if len(texts) == 0 {
			continue
		}

		text, hint := strings.Join(texts[:min(len(texts), 4)], "; "), strings.Join(hints, "; ")
		if more := len(texts) - 4; more > 0 {
			text += fmt.Sprintf("; and %d more", more)
		}
		if level == Asks {
			hint = strings.TrimSuffix(fmt.Sprintf("pass %s to agree to it; %s", strings.Join(flags, " "), hint), "; ")
		}
		return fault.New(fault.Conflict, "%s", text).WithHint("%s", hint)
	}
	return nil
}

func appendNew(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// flag returns the flag that agrees to a finding.
func (f Finding) flag() string {
	if f.Consent == "" {
		return ""
	}
	return "--" + string(f.Consent)
}

// Needs reports whether a finding keeps a transition from happening to which given is all that was agreed to.
func (f Finding) Needs(given []Consent) bool {
	return f.Level == Refuses || f.Level == Asks && !slices.Contains(given, f.Consent)
}

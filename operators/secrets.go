package operators

import (
	"encoding/json"
	"errors"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/secret"
)

// secretFor returns the value of a config field that is either text or {secret: NAME}. For text, the secret is the zero
// Value. at is the field's place, for errors.
func (t *Task) secretFor(field any, at string) (text string, value secret.Value, isSecret bool, err error) {
	if text, ok := field.(string); ok {
		return text, value, false, nil
	}
	if m, ok := field.(map[string]any); ok {
		name, _ := m["secret"].(string)
		if value, ok := t.Secrets[name]; ok {
			return "", value, true, nil
		}
	}
	return "", value, false, Permanent(fault.New(fault.Invalid, "%s: the secret is not available to this task", at))
}

// redactor returns what removes the task's secrets from texts.
func (a *Assignment) redactor() *secret.Redactor {
	if a.Redactor != nil {
		return a.Redactor
	}
	return secret.NewRedactor(a.Secrets)
}

// Redact removes the task's secrets from an outcome: errors, notes and results may quote what a server or a program
// answered.
func (a *Assignment) Redact(out Outcome) Outcome {
	if len(a.Secrets) == 0 && a.Redactor == nil {
		return out
	}
	redact := a.redactor().Redact
	if out.Err != nil {
		if text := redact(out.Err.Error()); text != out.Err.Error() {
			// A wrapped error could quote the value, too, so only kind and hint are kept.
			clean := &fault.Error{Kind: fault.KindOf(out.Err), Message: text}
			var f *fault.Error
			if errors.As(out.Err, &f) {
				clean.Hint = redact(f.Hint)
			}
			out.Err = clean
		}
	}

	out.Result.Result, out.State = redactJSON(out.Result.Result, redact), redactJSON(out.State, redact)
	out.SourceVersion = redact(out.SourceVersion)
	return out
}

// redactJSON returns JSON without secrets. Text in JSON may be escaped, so it looks for the values in the decoded text.
func redactJSON(text json.RawMessage, redact func(string) string) json.RawMessage {
	v, err := literal.Decode(text)
	if err != nil {
		return text
	}
	changed := false
	v = redactValue(v, func(s string) string {
		clean := redact(s)
		changed = changed || clean != s
		return clean
	})

	if !changed {
		return text
	}
	clean, err := json.Marshal(v)
	if err != nil {
		return nil // impossible: it was just decoded
	}
	return clean
}

func redactValue(v any, clean func(string) string) any {
	switch v := v.(type) {
	case string:
		return clean(v)
	case []any:
		for i := range v {
			v[i] = redactValue(v[i], clean)
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, inner := range v {
			out[clean(key)] = redactValue(inner, clean)
		}
		return out
	}
	return v
}

package operators

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"syscall"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/secret"
)

// SecretFor returns the value of a config field that is either text or {secret: NAME}. For text, the secret is the zero
// Value. at is the field's place, for errors.
func (t *Task) SecretFor(field any, at string) (text string, value secret.Value, isSecret bool, err error) {
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

// WrittenOut refuses a secret that is text where it has to be {secret: NAME}. key is the config's key; what says what
// the secret is.
func WrittenOut(key, what string, field any) *dag.ConfigError {
	if text, ok := field.(string); !ok || text == "" {
		return nil
	}
	return &dag.ConfigError{Key: key, Message: secret.WrittenOut(what)}
}

// SecretTo returns the text of a config field that is text, {secret: NAME} or nothing, for a request to a URL. A secret
// that no admin bound to the URL's host is a Forbidden fault.
func (t *Task) SecretTo(u *url.URL, field any, at string) (string, error) {
	if field == nil {
		return "", nil
	}
	text, value, isSecret, err := t.SecretFor(field, at)
	if err == nil && isSecret {
		text, err = value.For(u)
	}
	return text, Permanent(err)
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
	out.Err = redactError(out.Err, redact)
	out.Result.Result, out.State = redactJSON(out.Result.Result, redact), redactJSON(out.State, redact)
	out.SourceVersion = redact(out.SourceVersion)
	return out
}

// Redact removes the secrets of an enumeration from its error.
func (e Enumeration) Redact(err error) error {
	if len(e.Secrets) == 0 {
		return err
	}
	return redactError(err, secret.NewRedactor(e.Secrets).Redact)
}

// redactError returns an error without secrets, with its kind. What it wraps could quote a value, too, so that goes if
// anything that people see of it does.
func redactError(err error, redact func(string) string) error {
	if err == nil {
		return nil
	}
	clean := &fault.Error{Kind: fault.KindOf(err), Message: redact(err.Error())}
	changed := clean.Message != err.Error()
	var f *fault.Error
	if errors.As(err, &f) {
		clean.Hint = redact(f.Hint)
		changed = changed || clean.Hint != f.Hint
		for _, p := range f.Problems {
			p.Location, p.Message = redact(p.Location), redact(p.Message)
			clean.Problems = append(clean.Problems, p)
		}
		changed = changed || !slices.Equal(clean.Problems, f.Problems)
	}

	if !changed {
		return err
	}
	if number := syscall.Errno(0); errors.As(err, &number) {
		clean.Err = number // a number of the system quotes nothing
	}
	return clean
}

// RefuseSecrets returns an Invalid fault if a task that a run asks for holds a value of a secret of the run's job, in
// its payload or anywhere else: a value that is replaced there would make another payload of it, and one that stays
// would be shown to all who see that task.
func (a *Assignment) RefuseSecrets(asked []EnqueuedTask) error {
	if len(a.Secrets) == 0 && a.Redactor == nil {
		return nil
	}
	holds := a.redactor().Holds
	for i, task := range asked {
		text, err := json.Marshal(task)
		if err != nil {
			return fault.New(fault.Invalid, "tasks[%d]: %w", i, err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			return fmt.Errorf("tasks[%d]: %w", i, err)
		}

		for _, name := range sortedKeys(fields) {
			if !holds(string(fields[name])) {
				continue
			}
			where := fmt.Sprintf("tasks[%d].%s", i, name)
			const message = "holds a value of a secret of the job that asks for the task"
			e := fault.New(fault.Invalid, "%s %s", where, message).WithHint(
				"name the secret in the config of the other job, and have an admin bind it to that job")
			e.Problems = []fault.Problem{{Location: where, Message: message}}
			return e
		}
	}
	return nil
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

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// distance is how many letters a mistyped word may differ in from the one that is meant.
const distance = 2

// suggestCommands makes the commands that only have others below them say which of those was meant.
func suggestCommands(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		suggestCommands(child)
	}
	if !cmd.HasSubCommands() || cmd.Args == nil || cmd.Args(cmd, []string{"x"}) == nil {
		return
	}

	cmd.SuggestionsMinimumDistance = distance
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		unknown := fault.New(fault.Invalid, "unknown command %q for %q", args[0], cmd.CommandPath())
		found := cmd.SuggestionsFor(args[0])
		if len(found) == 0 {
			return unknown.WithHint("`%s --help` lists the commands", cmd.CommandPath())
		}
		for i, name := range found {
			found[i] = "`" + cmd.CommandPath() + " " + name + "`"
		}
		return unknown.WithHint("did you mean %s?", strings.Join(found, " or "))
	}
}

// suggestFlag returns the error of a command line's flags, with the flag that was meant, if one is close.
func suggestFlag(cmd *cobra.Command, err error) error {
	wrong := fault.New(fault.Invalid, "%w", wrongFlag(err))
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return wrong.WithHint("`%s --help` lists the flags", cmd.CommandPath())
	}

	var close []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && (lettersApart(name, f.Name) <= distance || strings.HasPrefix(f.Name, name)) {
			close = append(close, "--"+f.Name)
		}
	})
	if len(close) == 0 {
		return wrong.WithHint("`%s --help` lists the flags", cmd.CommandPath())
	}
	return wrong.WithHint("`%s --help` lists the flags; did you mean %s?", cmd.CommandPath(),
		strings.Join(close, " or "))
}

// flagValues says what the value of a flag is, by the flag's type.
var flagValues = map[string]string{"int": "a whole number", "int64": "a whole number", "uint": "a whole number",
	"float64": "a number", "bool": "true or false", "duration": "a duration such as 1h30m"}

// once is the value of a flag that may be given one time: of several the last would count, and the others would be lost
// without a word.
type once struct {
	pflag.Value
	given bool
}

func (o *once) Set(value string) error {
	if o.given {
		return errors.New("it is given already")
	}
	o.given = true
	return o.Value.Set(value)
}

// refuseTwice makes the flags that choose partitions refuse to be given twice.
func refuseTwice(cmd *cobra.Command) {
	for _, name := range []string{"partition", "range"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Value.Type() == "string" {
			f.Value = &once{Value: f.Value}
		}
	}
	for _, child := range cmd.Commands() {
		refuseTwice(child)
	}
}

// wrongFlag says what is wrong with a flag's value in the words of the other errors.
func wrongFlag(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if o, ok := invalid.GetFlag().Value.(*once); ok && o.given {
			return fmt.Errorf("--%s is given twice, as %q and as %q, but takes one value", invalid.GetFlag().Name,
				o.String(), invalid.GetValue())
		}
		if is, known := flagValues[invalid.GetFlag().Value.Type()]; known {
			return fmt.Errorf("--%s %q is not %s", invalid.GetFlag().Name, invalid.GetValue(), is)
		}
	}
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) {
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	}
	return err
}

// wrongArguments are how cobra begins to say that arguments or flags are missing, or too many.
var wrongArguments = []string{"required flag", "accepts ", "requires ", "unknown command ", "if any flags in the group",
	"at least one of"}

// argumentWords are cobra's words for numbers of arguments, and those of this program.
var argumentWords = []struct {
	cobra *late.Regexp
	words string
}{
	{late.Pattern(`^accepts (\d+) arg\(s\), received (\d+)$`), "arguments: $1 needed, $2 given"},
	{late.Pattern(`^accepts at most (\d+) arg\(s\), received (\d+)$`), "arguments: at most $1, and $2 are given"},
	{late.Pattern(`^accepts between (\d+) and (\d+) arg\(s\), received (\d+)$`),
		"arguments: $1 to $2, and $3 are given"},
	{late.Pattern(`^requires at least (\d+) arg\(s\), only received (\d+)$`),
		"arguments: at least $1, and $2 are given"},
}

// argumentText returns the text of cobra's error of a command's arguments in the words of the other errors.
func argumentText(err error) string {
	text := err.Error()
	if names, ok := strings.CutPrefix(text, "required flag(s) "); ok {
		var flags []string
		for name := range strings.SplitSeq(strings.TrimSuffix(names, " not set"), ", ") {
			flags = append(flags, "--"+strings.Trim(name, `"`))
		}
		if len(flags) == 1 {
			return flags[0] + " is missing"
		}
		return strings.Join(flags[:len(flags)-1], ", ") + " and " + flags[len(flags)-1] + " are missing"
	}

	for _, known := range argumentWords {
		if known.cobra.MatchString(text) {
			text = known.cobra.ReplaceAllString(text, known.words)
		}
	}
	return text
}

// ofArguments classifies cobra's errors of a command's arguments.
func ofArguments(cmd *cobra.Command, err error) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if !slices.ContainsFunc(wrongArguments, func(s string) bool { return strings.HasPrefix(err.Error(), s) }) {
		return err
	}
	return fault.New(fault.Invalid, "%s", argumentText(err)).
		WithHint("write `%s`; `%s --help` says more", cmd.UseLine(), cmd.CommandPath())
}

// lettersApart returns how many letters have to be added, taken away or changed to make one word of another.
func lettersApart(a, b string) int {
	before := make([]int, len(b)+1)
	for i := range before {
		before[i] = i
	}

	for i := range len(a) {
		now := []int{i + 1}
		for n := range len(b) {
			change := before[n]
			if a[i] != b[n] {
				change++
			}
			now = append(now, min(change, before[n+1]+1, now[n]+1))
		}
		before = now
	}
	return before[len(b)]
}

// outputOf returns the value of --output in arguments, for errors of flags that stand before it.
func outputOf(args []string) string {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	for i, arg := range args {
		for _, flag := range []string{"--output", "-o"} {
			if value, ok := strings.CutPrefix(arg, flag+"="); ok {
				return value
			}
			if arg == flag && i+1 < len(args) {
				return args[i+1]
			}
		}
	}
	return ""
}

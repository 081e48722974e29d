package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dagctl/dagctl/internal/fault"
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
	wrong := fault.New(fault.Invalid, "%w", err)
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

// wrongArguments are how cobra begins to say that arguments or flags are missing, or too many.
var wrongArguments = []string{"required flag", "accepts ", "requires ", "if any flags in the group", "at least one of"}

// ofArguments classifies cobra's errors of a command's arguments.
func ofArguments(cmd *cobra.Command, err error) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if !slices.ContainsFunc(wrongArguments, func(s string) bool { return strings.HasPrefix(err.Error(), s) }) {
		return err
	}
	return fault.New(fault.Invalid, "%w", err).WithHint("`%s --help` says how it is used", cmd.CommandPath())
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

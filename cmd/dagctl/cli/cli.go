// Package cli has what all commands share: the streams and flags of one command line, the forms of output, the target
// that it talks to with the client of its HTTP API, and the exit codes.
//
// Vocabulary: a target is a server with a name. A dev server is a target that announces itself in a file.
package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/wait"
)

// Environment is what a command line gets from its process; tests bring their own.
type Environment struct {
	In     io.Reader
	Out    io.Writer // several goroutines of `dev` and `serve` write to it at once, as to Err
	Err    io.Writer
	Getenv func(string) string

	Patience time.Duration // with a server that does not answer what a command follows; zero: two minutes
}

// CLI is one command line: its environment, and the flags that every command has.
type CLI struct {
	Environment
	Target  string
	Output  string
	DataDir string

	ahead atomic.Int64 // nanoseconds by which the server's clock is ahead of this machine's
}

// Now returns the time by the clock of the server that has answered last, and by this machine's before: whether
// something was made four minutes ago is a question of the clock that dated it.
func (c *CLI) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// setClock notes the date of an answer to a request that was sent and answered at these times of this machine. A date
// has whole seconds.
func (c *CLI) setClock(date, before, after time.Time) {
	ahead := time.Duration(0)
	switch {
	case date.After(after.Add(clocksDiffer)):
		ahead = date.Sub(after)
	case date.Before(before.Add(-clocksDiffer)):
		ahead = date.Sub(before)
	}
	c.ahead.Store(int64(ahead))
}

// clocksDiffer is how far clocks are apart that differ.
const clocksDiffer = 2 * time.Second

// AddFlags adds the flags that every command has to the root command, and refuses a wrong --output and an argument
// without text before any of them runs.
func (c *CLI) AddFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&c.Target, "target", "", "server to talk to: the name of a target, or a URL")
	flags.StringVarP(&c.Output, "output", "o", "table", "output: table, json or yaml")
	flags.StringVar(&c.DataDir, "data", ".dagctl", "data folder of the dev server")
	_ = root.RegisterFlagCompletionFunc("output",
		func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return slices.Concat(outputs, moreOutputs[cmd.Name()]), cobra.ShellCompDirectiveNoFileComp
		})
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if err := checkArguments(cmd, args); err != nil {
			return err
		}
		return c.checkOutput(cmd.Name())
	}
}

// checkArguments refuses an argument without text, as an unset variable of a script leaves it: nothing has such a name.
// The word that a shell completes may be one.
func checkArguments(cmd *cobra.Command, args []string) error {
	i := slices.Index(args, "")
	if i < 0 || cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
		return nil
	}
	return fault.New(fault.Invalid, "argument %d of `%s` is empty", i+1, cmd.CommandPath()).
		WithHint("`%s --help` says what it is", cmd.CommandPath())
}

func (c *CLI) checkOutput(command string) error {
	known := slices.Concat(outputs, moreOutputs[command])
	if slices.Contains(known, c.Output) {
		return nil
	}
	given := c.Output
	c.Output = "table" // of the error
	last := len(known) - 1
	return fault.New(fault.Invalid, "--output %q is not known", given).
		WithHint("use %s or %s", strings.Join(known[:last], ", "), known[last])
}

// DatabaseURL returns the value of a --database-url flag, or else of DAGCTL_DATABASE_URL.
func (c *CLI) DatabaseURL(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if value := c.Getenv("DAGCTL_DATABASE_URL"); value != "" {
		return value, nil
	}
	return "", fault.New(fault.Invalid, "no database is named").
		WithHint("pass --database-url, or set DAGCTL_DATABASE_URL")
}

// Sleep waits for d, or until ctx ends, and then returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	if wait.For(ctx, d) != nil {
		return ctx.Err()
	}
	return nil
}

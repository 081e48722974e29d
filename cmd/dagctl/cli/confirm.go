package cli

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Confirm asks a question before something that cannot be undone, and returns ErrAborted unless the answer is yes.
// Without a terminal nobody can answer, and only yes, the value of --yes, lets the command go on.
func (c *CLI) Confirm(yes bool, question string, args ...any) error {
	if yes {
		return nil
	}
	if !IsTerminal(c.In) {
		return fault.New(fault.Invalid, "this needs a confirmation, and there is no terminal to ask on").
			WithHint("pass --yes")
	}
	fmt.Fprintf(c.Err, question+" [y/N] ", args...)
	answer, err := bufio.NewReader(c.In).ReadString('\n')
	if err != nil {
		return ErrAborted
	}

	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return ErrAborted
}

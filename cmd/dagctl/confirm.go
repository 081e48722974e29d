package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// confirm asks before something that cannot be taken back. Without a terminal nobody can answer, so it takes --yes.
func (c *cli) confirm(yes bool, question string, args ...any) error {
	if yes {
		return nil
	}
	if !isTerminal(c.in) {
		return fault.New(fault.Invalid, "this asks for a confirmation, and there is no terminal to ask on").WithHint("pass --yes")
	}
	fmt.Fprintf(c.err, question+" [y/N] ", args...)
	answer, err := bufio.NewReader(c.in).ReadString('\n')
	if err != nil {
		return errAborted
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errAborted
}

package child

import (
	"strings"
	"syscall"
)

// SaidIn returns which of some errors of the system a text speaks of; nil: none. Programs and DuckDB pass them on as
// text alone.
func SaidIn(text string, of ...syscall.Errno) error {
	text = strings.ToLower(text)
	for _, is := range of {
		if strings.Contains(text, is.Error()) {
			return is
		}
	}
	return nil
}

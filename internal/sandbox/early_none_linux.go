//go:build linux && !cgo && (amd64 || arm64)

package sandbox

import "errors"

// early returns an error: a program without C has no moment before it has threads.
func early() error {
	return errors.New("this program was built without cgo, which confining itself takes")
}

// Package freeport finds ports for servers that cannot report which port they got, or that must restart on the same
// port. It owns no tables.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Find returns a port of the loopback address on which nothing listens. It is outside the range that systems use for
// outgoing connections, one of which could take it before the server listens.
func Find() (int, error) {
	const first, ports, tries = 12_000, 20_000, 1000
	var err error
	for range tries {
		port := first + rand.IntN(ports)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

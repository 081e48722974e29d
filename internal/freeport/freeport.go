// Package freeport finds ports for servers that cannot say which one they were given, or are to be found where they were
// before. It owns no tables.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Find is a port of the loopback that nobody listens on. It is none of those that systems give to connections, one of which
// could take it before the server listens.
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

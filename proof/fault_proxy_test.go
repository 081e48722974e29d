package proof_test

import (
	"bytes"
	be "encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between servers and PostgreSQL. It knows the protocol well enough to cut a connection at a COMMIT, before
// or after that took effect, and to lose, repeat and reorder wake-ups. Its address stays when PostgreSQL gets a new one.
type proxy struct {
	listener net.Listener
	upstream atomic.Pointer[string] // host:port
	cuts     atomic.Uint64          // of 10,000 COMMITs
	garbled  atomic.Uint64          // of 10,000 wake-ups

	commits, before, after, wakeups, lost, doubled, late atomic.Int64
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		all.Wait() // whoever is connected has ended before
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// misbehave sets which share of COMMITs is cut, and of wake-ups each lost, repeated and held back.
func (p *proxy) misbehave(commits, wakeups float64) {
	p.cuts.Store(uint64(commits * 10_000))
	p.garbled.Store(uint64(wakeups * 10_000))
}

func chance(of *atomic.Uint64) bool { return rand.Uint64N(10_000) < of.Load() }

// serve passes a connection on until either end closes it, or it is cut.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", *p.upstream.Load())
	if err != nil {
		return // PostgreSQL is down: so is this
	}
	defer server.Close()
	var deaf atomic.Bool // a COMMIT is on its way whose answer is to be lost
	var both sync.WaitGroup
	pass := func(f func() error) {
		both.Go(func() {
			_ = f() // however it ends, the connection does
			_, _ = client.Close(), server.Close()
		})
	}
	pass(func() error { return p.asks(client, server, &deaf) })
	pass(func() error { return p.answers(server, client, &deaf) })
	both.Wait()
}

var errCut = errors.New("cut")

// asks passes on what a client says. Its first message, unlike all others, has no type.
func (p *proxy) asks(client io.Reader, server io.Writer, deaf *atomic.Bool) error {
	head := make([]byte, 5)
	if _, err := io.ReadFull(client, head[1:]); err != nil {
		return err
	}
	if err := forward(client, server, head[1:]); err != nil {
		return err
	}
	for {
		if _, err := io.ReadFull(client, head); err != nil {
			return err
		}
		if head[0] != 'Q' {
			if err := forward(client, server, head); err != nil {
				return err
			}
			continue
		}
		var message bytes.Buffer
		if err := forward(client, &message, head); err != nil {
			return err
		}
		if string(bytes.ToLower(message.Bytes()[5:])) == "commit\x00" {
			p.commits.Add(1)
			if chance(&p.cuts) {
				if rand.IntN(2) == 0 {
					p.before.Add(1)
					return errCut
				}
				p.after.Add(1)
				deaf.Store(true)
			}
		}
		if _, err := server.Write(message.Bytes()); err != nil {
			return err
		}
	}
}

// answers passes on what PostgreSQL says.
func (p *proxy) answers(server io.Reader, client io.Writer, deaf *atomic.Bool) error {
	head := make([]byte, 5)
	var held []byte
	for {
		if _, err := io.ReadFull(server, head); err != nil {
			return err
		}
		if deaf.Load() {
			return errCut // it has answered, so it has committed
		}
		if head[0] != 'A' { // NotificationResponse
			if err := forward(server, client, head); err != nil {
				return err
			}
			continue
		}
		var message bytes.Buffer
		if err := forward(server, &message, head); err != nil {
			return err
		}
		p.wakeups.Add(1)
		said := message.Bytes()
		switch {
		case chance(&p.garbled):
			p.lost.Add(1)
			continue
		case chance(&p.garbled):
			p.doubled.Add(1)
			said = append(said, said...)
		case held == nil && chance(&p.garbled):
			p.late.Add(1)
			held = said
			continue
		}
		if _, err := client.Write(append(said, held...)); err != nil {
			return err
		}
		held = nil
	}
}

// forward passes on one message whose head, which ends with its length, was read.
func forward(from io.Reader, to io.Writer, head []byte) error {
	if _, err := to.Write(head); err != nil {
		return err
	}
	length := be.BigEndian.Uint32(head[len(head)-4:])
	_, err := io.CopyN(to, from, int64(length)-4)
	return err
}

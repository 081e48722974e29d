package proof_test

import (
	"bytes"
	be "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between servers and PostgreSQL. It knows enough of the protocol to cut a connection at a COMMIT, before
// or after it takes effect, and to lose, repeat and reorder wake-ups. Its address stays when PostgreSQL gets a new one.
type proxy struct {
	listener net.Listener
	upstream atomic.Pointer[string] // host:port
	cuts     atomic.Uint64          // of 10,000 COMMITs, besides the first ones of each kind
	garbled  atomic.Uint64          // of 10,000 wake-ups
	// How many of each kind are cut on either side, whatever the share; set before misbehave
	points int

	commits, before, after, wakeups, lost, doubled, late atomic.Int64

	mu    sync.Mutex
	kinds map[string]*sides // cut transactions by kind
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{kinds: map[string]*sides{}}
	p.listener = listen(t, p.serve)
	return p
}

// listen serves each connection to a port of this machine until the test ends. Its clients have ended by then.
func listen(t *testing.T, serve func(net.Conn)) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(client) })
		}
	})

	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		all.Wait()
	})
	return listener
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// misbehave sets the share of COMMITs that are cut, and of wake-ups that are lost, repeated and delayed each.
func (p *proxy) misbehave(commits, wakeups float64) {
	p.cuts.Store(uint64(commits * 10_000))
	p.garbled.Store(uint64(wakeups * 10_000))
}

// sides counts the transactions of a kind that were cut before and after their commit.
type sides struct{ before, after int }

// fate decides whether a transaction is cut. The first p.points of each kind are cut on either side of their commit:
// the first two at once, later ones with a probability of one in four, so that work goes on meanwhile. Of the others a
// share is cut, half of it before the commit.
func (p *proxy) fate(kind string) (before, after bool) {
	if p.cuts.Load() == 0 {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	cut := p.kinds[kind]
	if cut == nil {
		cut = &sides{}
		p.kinds[kind] = cut
	}
	if short := min(cut.before, cut.after) < p.points; short && cut.before < 1 {
		before = true
	} else if short && (cut.after < 1 || rand.IntN(4) == 0) {
		before = cut.before <= cut.after
		after = !before
	} else if chance(&p.cuts) {
		before = rand.IntN(2) == 0
		after = !before
	}

	if before {
		cut.before++
	}
	if after {
		cut.after++
	}
	return before, after
}

// report logs for how many kinds enough transactions were cut on both sides, and lists the others.
func (p *proxy) report() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	enough := 0
	var fewer strings.Builder
	for _, kind := range keysOf(p.kinds) {
		cut := p.kinds[kind]
		if min(cut.before, cut.after) >= p.points {
			enough++
			continue
		}
		fmt.Fprintf(&fewer, "\n%d before, %d after: %s", cut.before, cut.after, kind)
	}

	return fmt.Sprintf("each of %d kinds of transactions was cut %d times before it was committed and as often "+
		"after; fewer came of %d:%s",
		enough, p.points, len(p.kinds)-enough, fewer.String())
}

func chance(of *atomic.Uint64) bool { return rand.Uint64N(10_000) < of.Load() }

// serve forwards a connection until either end closes it or it is cut.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", *p.upstream.Load())
	if err != nil {
		return // PostgreSQL is down, so this connection fails, too
	}
	defer server.Close()

	var deaf atomic.Bool // set while the answer of a COMMIT is to be lost
	var both sync.WaitGroup
	pass := func(f func() error) {
		both.Go(func() {
			_ = f() // the connection ends in any case
			_, _ = client.Close(), server.Close()
		})
	}

	pass(func() error { return p.asks(client, server, &deaf) })
	pass(func() error { return p.answers(server, client, &deaf) })
	both.Wait()
}

var errCut = errors.New("cut")

// asks forwards a client's messages. The first message, unlike all others, has no type.
func (p *proxy) asks(client io.Reader, server io.Writer, deaf *atomic.Bool) error {
	head := make([]byte, 5)
	if _, err := io.ReadFull(client, head[1:]); err != nil {
		return err
	}
	if err := forward(client, server, head[1:]); err != nil {
		return err
	}

	var heard talk
	for {
		if _, err := io.ReadFull(client, head); err != nil {
			return err
		}
		if !bytes.ContainsRune([]byte("QPBS"), rune(head[0])) {
			if err := forward(client, server, head); err != nil {
				return err
			}
			continue
		}

		var message bytes.Buffer
		if err := forward(client, &message, head); err != nil {
			return err
		}
		if kind, commits := heard.hear(head[0], message.Bytes()[5:]); commits {
			p.commits.Add(1)
			switch before, after := p.fate(kind); {
			case before:
				p.before.Add(1)
				return errCut
			case after:
				p.after.Add(1)
				deaf.Store(true)
			}
		}

		if _, err := server.Write(message.Bytes()); err != nil {
			return err
		}
	}
}

// answers forwards PostgreSQL's messages.
func (p *proxy) answers(server io.Reader, client io.Writer, deaf *atomic.Bool) error {
	head := make([]byte, 5)
	var held []byte
	for {
		if _, err := io.ReadFull(server, head); err != nil {
			return err
		}
		if deaf.Load() {
			if head[0] == 'Z' { // ReadyForQuery: it has committed
				return errCut
			}
			if err := forward(server, io.Discard, head); err != nil {
				return err
			}
			continue
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

// forward forwards one message. Its head, which ends with its length, has been read.
func forward(from io.Reader, to io.Writer, head []byte) error {
	if _, err := to.Write(head); err != nil {
		return err
	}
	length := be.BigEndian.Uint32(head[len(head)-4:])
	_, err := io.CopyN(to, from, int64(length)-4)
	return err
}

package stream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/stream"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

func TestMain(m *testing.M) { dispatchertest.Main(m) }

// mail returns a world that serves the DAG mail, and a stream that runs.
func mail(t *testing.T) (*dispatchertest.World, *stream.Stream) {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	s := w.D.Stream
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	return w, s
}

// readerOf returns a reader of a tenant's org with org roles.
func readerOf(tn *dispatchertest.Tenant, name string, roles ...string) authz.Caller {
	return authz.Caller{OrgID: tn.Caller.OrgID, OrgSlug: tn.Caller.OrgSlug, Actor: "token:" + name,
		Role: authz.RoleReader, OrgRoles: roles}
}

// ear is a listener, and what it has heard.
type ear struct {
	t *testing.T
	*stream.Listener
	heard []string
}

// listen returns a listener that hears of everything from now on.
func listen(t *testing.T, s *stream.Stream, caller authz.Caller, f stream.Filter) *ear {
	t.Helper()
	l, err := s.Listen(t.Context(), caller, f)
	require.NoError(t, err)
	t.Cleanup(l.End)
	e := &ear{t: t, Listener: l}
	e.until(func(ready bool) bool { return ready })
	return e
}

// until listens until it is enough.
func (e *ear) until(enough func(ready bool) bool) {
	e.t.Helper()
	patience := time.After(10 * time.Second)
	for {
		news, ready := e.Take()
		for _, n := range news {
			e.heard = append(e.heard, fmt.Sprint(n.DAG, n.What, n.Dataset))
		}
		if enough(ready) {
			return
		}
		select {
		case <-e.Came():
		case <-patience:
			require.Fail(e.t, "it hears nothing more", "%v", e.heard)
		}
	}
}

// hears returns when it has heard something, and forgets what it has heard.
func (e *ear) hears(what string) {
	e.t.Helper()
	e.until(func(bool) bool {
		for _, h := range e.heard {
			if h == what {
				e.heard = nil
				return true
			}
		}
		return false
	})
}

// hearsOf returns when it has heard of some kinds of changes of a dataset, in one event or in several: on a slow
// machine a look comes in between.
func (e *ear) hearsOf(dataset string, kinds ...string) {
	e.t.Helper()
	e.until(func(bool) bool {
		return !slices.ContainsFunc(kinds, func(kind string) bool {
			return !slices.ContainsFunc(e.heard, func(h string) bool {
				return strings.Contains(h, kind) && strings.HasSuffix(h, "]"+dataset)
			})
		})
	})
}

// rests returns when nothing has come in the time of some probes, and forgets what came before.
func (e *ear) rests(s *stream.Stream) {
	e.t.Helper()
	for again := true; again; again = len(e.heard) > 0 {
		e.heard = nil
		begun := s.Probes()
		require.Eventually(e.t, func() bool { return s.Probes() >= begun+3 }, 10*time.Second, 20*time.Millisecond)
		e.until(func(bool) bool { return true })
	}
}

// silent requires that it has heard nothing, also not in two probes that begin after this.
func (e *ear) silent(s *stream.Stream) {
	e.t.Helper()
	begun := s.Probes()
	require.Eventually(e.t, func() bool { return s.Probes() >= begun+3 }, 10*time.Second, 20*time.Millisecond)
	e.until(func(bool) bool { return true })
	require.Empty(e.t, e.heard)
}

var item = dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "somebody"})}

func TestListenersHearWhatTheyMayKnow(t *testing.T) {
	t.Parallel()
	w, s := mail(t)
	other := w.Org("umbrella")
	require.Zero(t, s.Probes(), "nobody listens, so it does not look")

	writer := listen(t, s, w.Caller, stream.Filter{})
	reader := listen(t, s, readerOf(w.Tenant, "reader"), stream.Filter{DAG: "mail"})
	elsewhere := listen(t, s, w.Caller, stream.Filter{DAG: "letters"})
	foreign := listen(t, s, other.Caller, stream.Filter{})

	// A job without a dataset is in the lists of everybody, as are its tasks.
	sent := w.Enqueue("send", item)
	began := time.Now()
	writer.hears("mail[tasks]")
	reader.hears("mail[tasks]")
	require.Less(t, time.Since(began), 2*time.Second)
	watcher := listen(t, s, w.Caller, stream.Filter{Task: sent[0].ID})
	guest := listen(t, s, readerOf(w.Tenant, "guest"), stream.Filter{Task: sent[0].ID})
	claimed := w.Claim(w.D)
	require.Len(t, claimed, 1)
	hearing := []*ear{watcher, guest, writer, reader}
	for _, e := range hearing {
		e.hears("mail[tasks]")
	}
	dispatchertest.Execute(t.Context(), w.D, claimed[0])
	for _, e := range hearing {
		e.hears("mail[tasks]")
	}
	for _, e := range []*ear{elsewhere, foreign} {
		e.silent(s)
	}

	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a"})
	reader.hears("mail[tasks]")
	require.Positive(t, w.Work())
	reader.hears("mail[tasks]")
	for _, e := range []*ear{watcher, guest, elsewhere, foreign} {
		e.silent(s)
	}

	w.Pause("mail", "send")
	writer.hears("mail[pauses]")
	reader.hears("mail[pauses]")
	w.Pause("mail", "load")
	reader.hears("mail[pauses]")
	w.Pause("mail", "")
	reader.hears("mail[pauses]")
	w.Deploy(dispatchertest.Edit(dispatchertest.Mail, "tag: l", "tag: m"))
	reader.hears("mail[versions]")
	for _, e := range []*ear{elsewhere, foreign} {
		e.silent(s)
	}
}

// A dataset that is hidden is one that does not exist.
func TestHiddenDatasetsAreSilent(t *testing.T) {
	t.Parallel()
	w, s := mail(t)
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a"})
	require.Positive(t, w.Work())
	role, err := authz.CreateOrgRole(t.Context(), w.Requests, w.Caller, "finance", "Finance")
	require.NoError(t, err)

	loaded, unknown := stream.Filter{Dataset: "loaded"}, stream.Filter{Dataset: "no_such"}
	reader := listen(t, s, readerOf(w.Tenant, "reader"), loaded)
	all := listen(t, s, readerOf(w.Tenant, "all"), stream.Filter{})
	member := listen(t, s, readerOf(w.Tenant, "member", "role:"+role.Slug), loaded)
	none := listen(t, s, readerOf(w.Tenant, "none"), unknown)

	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "b"})
	require.Positive(t, w.Work())
	reader.hearsOf("loaded", "datasets", "tasks")
	member.hearsOf("loaded", "datasets", "tasks")
	all.hears("mail[tasks]")
	for _, e := range []*ear{reader, member, all} {
		e.rests(s)
	}

	_, err = w.D.Registry.SetVisibility(t.Context(), w.Caller, "loaded",
		registry.Visibility{ReadRoles: []string{"role:finance"}})
	require.NoError(t, err)
	late := listen(t, s, readerOf(w.Tenant, "late"), loaded)
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "c"})
	require.Positive(t, w.Work())
	member.hearsOf("loaded", "datasets", "tasks")
	for _, e := range []*ear{reader, all, none, late} {
		e.silent(s)
	}
}

// However many listen, one look a second finds what they hear of.
func TestListenersShareProbes(t *testing.T) {
	t.Parallel()
	w, s := mail(t)
	began := time.Now()
	ears := make([]*ear, 200)
	for i := range ears {
		ears[i] = &ear{t: t}
		caller := readerOf(w.Tenant, fmt.Sprint("reader-", i))
		l, err := s.Listen(t.Context(), caller, stream.Filter{DAG: "mail"})
		require.NoError(t, err)
		t.Cleanup(l.End)
		ears[i].Listener = l
	}
	for _, e := range ears {
		e.until(func(ready bool) bool { return ready })
	}
	w.Enqueue("load", dispatcher.EnqueueItem{Partition: "a"})
	for _, e := range ears {
		e.hears("mail[tasks]")
	}
	require.LessOrEqual(t, s.Probes(), int64(time.Since(began).Seconds())+1)
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Org("umbrella")
	s, err := stream.New(stream.Config{Pool: w.Pool, Requests: w.Requests, Registry: w.D.Registry, PerOrg: 3,
		PerCaller: 2})
	require.NoError(t, err)
	open := func(caller authz.Caller) (*stream.Listener, error) {
		return s.Listen(t.Context(), caller, stream.Filter{Task: uuid.New()})
	}

	first, err := open(w.Caller)
	require.NoError(t, err)
	_, err = open(w.Caller)
	require.NoError(t, err)
	_, err = open(w.Caller)
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
	_, err = open(readerOf(w.Tenant, "one"))
	require.NoError(t, err)
	_, err = open(readerOf(w.Tenant, "two"))
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
	_, err = open(other.Caller)
	require.NoError(t, err, "another org has its own")

	first.End()
	_, err = open(readerOf(w.Tenant, "two"))
	require.NoError(t, err)
}

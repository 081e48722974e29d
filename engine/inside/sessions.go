package inside

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"runtime"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
)

// sessions are those of one engine. Tasks that read little have a session of one thread: DuckDB divides its work by row
// groups, and a thread that gets none asks for work again and again until the others have done theirs.
type sessions struct {
	session *duck.Session // what is open is open in this one
	zone    string
	threads int           // of session
	wide    *duck.Session // of all threads, for work beside what is open; nil: none was needed
}

// little is how many bytes of files one thread reads in about a tenth of a second.
const little = 2 << 20

// at returns a session in a zone that is to read files, without anything of the work before.
func (h *host) at(ctx context.Context, scope duck.Scope, files ...string) (*duck.Session, error) {
	h.known, h.columns = nil, map[string][]duck.Column{}
	threads := h.threadsFor(files)
	if h.session != nil && h.zone == scope.Zone && h.threads >= threads && h.session.Reset(ctx, scope) == nil {
		return h.session, nil
	}

	h.close()
	session, err := h.openSession(ctx, scope, threads)
	if err != nil {
		return nil, err
	}
	h.session, h.zone, h.threads = session, scope.Zone, threads
	return session, nil
}

// any returns a session for work that belongs to no partition and reads files. What is open stays open.
func (h *host) any(ctx context.Context, files ...string) (_ *duck.Session, err error) {
	threads := h.threadsFor(files)
	switch {
	case h.session == nil:
		return h.at(ctx, duck.Scope{Zone: "UTC"}, files...)
	case h.threads >= threads:
		return h.session, nil
	case h.wide == nil:
		h.wide, err = h.openSession(ctx, duck.Scope{Zone: h.zone}, threads)
	}
	return h.wide, err
}

func (h *host) openSession(ctx context.Context, scope duck.Scope, threads int) (*duck.Session, error) {
	dir := h.begin.Dir
	data := duck.Data{Scope: scope, Limits: h.begin.Limits, Dirs: []string{filepath.Join(dir, "in")}}
	data.Limits.Threads = threads
	if h.begin.Writes {
		data.Spill = filepath.Join(dir, "spill")
		data.Dirs = append(data.Dirs, filepath.Join(dir, "out"), data.Spill)
	}
	return duck.OpenData(ctx, data)
}

// threadsFor returns how many threads are to read files. Queries have all of theirs: people wait for them.
func (h *host) threadsFor(files []string) int {
	all := cmp.Or(h.begin.Limits.Threads, runtime.NumCPU())
	if h.begin.Kind != engine.Job {
		return all
	}

	bytes := int64(0)
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil { // whoever reads it says so
			return all
		}
		if bytes += info.Size(); bytes > little {
			return all
		}
	}
	return 1
}

func (h *host) close() {
	h.closeBinder()
	for _, session := range []*duck.Session{h.session, h.wide} {
		if session != nil {
			_ = session.Close() // it held nothing but memory
		}
	}
	h.session, h.wide = nil, nil
}

// Package inside is what runs in an engine's process: it answers questions with DuckDB and with the readers of text
// files. Nothing of the server is in reach here but the engine's own folder. It owns no tables.
package inside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/child"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
)

// Main makes this process an engine and ends it, if it was started as one. main must call it first, and so must
// TestMain of packages whose tests start engines.
func Main() { child.Main(engine.Arg, Serve) }

// Serve answers questions until there are no more. When nobody waits for answers any more, because the server has
// ended, a process that is an engine alone ends at once.
func Serve(in io.Reader, out io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	questions := make(chan engine.Asked)
	go func() {
		defer close(questions)
		defer cancel()
		for {
			var q engine.Asked
			if engine.ReadFrame(in, &q) != nil {
				return
			}
			select {
			case questions <- q:
			case <-ctx.Done():
				return
			}
		}
	}()

	h := &host{ctx: ctx, out: out}
	defer h.close()
	for q := range questions {
		if engine.WriteFrame(out, h.answer(ctx, q)) != nil {
			return 1
		}
	}
	return 0
}

// host is one engine: what is open in it between questions.
type host struct {
	sessions

	ctx     context.Context
	out     io.Writer // for streams
	begin   engine.Begin
	binder  *duck.Binder
	known   []string                 // open relations
	columns map[string][]duck.Column // of each of them
	parsed  map[string]*duck.Select  // what tasks ran before: the next one of the job runs the same
	macros  readMacros               // of the last document
}

// verb answers the questions of one verb.
type verb func(ctx context.Context, h *host, body []byte) (any, error)

// verbs has all that an engine can be asked.
var verbs = map[string]verb{
	engine.Begin{}.Verb():     answering((*host).start),
	engine.Canonical{}.Verb(): answering((*host).canonical),
	engine.Explain{}.Verb():   answering((*host).explain),
	engine.Expand{}.Verb():    answering((*host).expand),
	engine.Shape{}.Verb():     answering((*host).shape),
	engine.Derive{}.Verb():    answering((*host).derive),
	engine.Counted{}.Verb():   answering((*host).counted),
	engine.Bind{}.Verb():      answering((*host).bind),
	engine.Open{}.Verb():      answering((*host).open),
	engine.Add{}.Verb():       answering((*host).add),
	engine.Select{}.Verb():    answering((*host).run),
	engine.Export{}.Verb():    answering((*host).export),
	engine.Convert{}.Verb():   answering((*host).convert),
	engine.Empty{}.Verb():     answering((*host).empty),
	engine.Positions{}.Verb(): answering((*host).positions),
	engine.Merge{}.Verb():     answering((*host).merge),
	engine.Parts{}.Verb():     answering((*host).parts),
	engine.Cut{}.Verb():       answering((*host).cut),
	engine.Text{}.Verb():      answering((*host).text),
	engine.Fit{}.Verb():       answering((*host).fit),
	engine.Check{}.Verb():     answering((*host).check),
	engine.Reads{}.Verb():     answering((*host).reads),
	engine.Rows{}.Verb():      answering((*host).rows),
	engine.Compare{}.Verb():   answering((*host).compare),
	engine.CopyOut{}.Verb():   answering((*host).copyOut),
	engine.CopyIn{}.Verb():    answering((*host).copyIn),
	engine.Head{}.Verb():      answering((*host).head),
}

// answering decodes a question for the method that answers it. Numbers stay as they are written.
func answering[Q, A any](answer func(h *host, ctx context.Context, q Q) (A, error)) verb {
	return func(ctx context.Context, h *host, body []byte) (any, error) {
		var q Q
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if err := decoder.Decode(&q); err != nil {
			return nil, fmt.Errorf("question: %w", err)
		}
		return answer(h, ctx, q)
	}
}

func (h *host) answer(ctx context.Context, asked engine.Asked) (a engine.Answered) {
	defer func() {
		if p := recover(); p != nil {
			a = engine.Answered{Failure: &engine.Failure{Text: fmt.Sprintf("the engine panicked: %v", p)}}
		}
	}()

	run, ok := verbs[asked.Verb]
	if !ok {
		return engine.Answered{Failure: &engine.Failure{Text: fmt.Sprintf("an engine cannot %q", asked.Verb)}}
	}
	answer, err := run(ctx, h, asked.Body)
	if err == nil {
		a.Body, err = json.Marshal(answer)
	}
	if err != nil {
		return engine.Answered{Failure: h.failure(err)}
	}
	return a
}

// none is the answer to a question that asks for nothing.
type none struct{}

// collected is what Go may hold before it collects garbage more often, in bytes, beside a quarter of DuckDB's memory. A
// process may hold 256 MB and a half of DuckDB's memory beside it, and is killed above that, however much is garbage.
const collected = 96 << 20

// start takes note of what the engine may use.
func (h *host) start(ctx context.Context, b engine.Begin) (none, error) {
	h.begin = b
	if !b.Alone {
		return none{}, nil
	}
	debug.SetMemoryLimit(collected + b.Limits.MostMemory()/4)

	go func() {
		<-ctx.Done()
		os.Exit(1)
	}()
	return none{}, nil
}

func (h *host) closeBinder() {
	if h.binder != nil {
		_ = h.binder.Close() // as above
		h.binder = nil
	}
}

// failure returns an error as it leaves the engine, without the place of its folder.
func (h *host) failure(err error) *engine.Failure {
	f := failureOf(err)
	if f.Memory && h.begin.Kind != engine.Query { // whose statements have limits of their own
		f.Text = fmt.Sprintf("the work needs more than the %d MB of memory that it may use",
			h.begin.Limits.MostMemory()>>20)
		f.Fault = &engine.Fault{Kind: fault.Unavailable, Message: f.Text,
			Hint: "read or sort less at once, or raise `operators.memory_mb` in the server's config"}
	}
	clean := func(text *string) { *text = strings.ReplaceAll(*text, h.begin.Dir+"/", "") }
	clean(&f.Text)
	if f.Fault != nil {
		clean(&f.Fault.Message)
		clean(&f.Fault.Hint)
	}
	return f
}

// failureOf returns an error as it travels. DuckDB's errors come without values already.
func failureOf(err error) *engine.Failure {
	f := engine.FailureOf(err)
	f.Memory = duck.OutOfMemory(err)
	f.Lasting, f.OfStatement = duck.Deterministic(err), duck.OfStatement(err)
	var known *fault.Error
	if errors.As(err, &known) {
		f.Lasting = f.Lasting || known.Kind == fault.Invalid
	}
	_ = errors.As(systemError(err), &f.System)
	return f
}

// systemError returns what the system said of a file that the engine could not write; nil: nothing, or it was none of
// that. DuckDB has it in the text of its errors of files, where no statement can put anything else.
func systemError(err error) error {
	for _, is := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, is) {
			return is
		}
	}
	if !duck.OfFile(err) {
		return nil
	}
	return child.SaidIn(err.Error(), syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO)
}

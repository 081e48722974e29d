package engine

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"
)

// watched is how often the processor time of a question is looked at.
const watched = 100 * time.Millisecond

// watch kills the process once it has used more processor time than a question of its purpose may, until stop is
// called; stop reports whether it did. The time is the process's own, so a busy machine makes no question too long.
func (g *Engine) watch() (stop func() (killed bool)) {
	most := g.purpose.Each
	if most == 0 || g.engines.config.Inside != nil {
		return func() bool { return false }
	}
	began, err := processorTimeOf(g.talk.pid)
	if err != nil { // not on this system: the caller's context bounds the time alone
		return func() bool { return false }
	}

	var wait sync.WaitGroup
	done, killed := make(chan struct{}), false
	wait.Go(func() {
		tick := time.NewTicker(watched)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if now, err := processorTimeOf(g.talk.pid); err == nil && now-began > most {
				killed = true
				g.kill()
				return
			}
		}
	})
	return func() bool {
		close(done)
		wait.Wait()
		return killed
	}
}

// clockTick is the unit of processor times in /proc: Linux gives them in hundredths of a second on every machine.
const clockTick = 10 * time.Millisecond

// processorTimeOf returns the processor time of a process, as /proc has it.
func processorTimeOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}

	// The name of the program, in parentheses, may have spaces in it. utime and stime are fields 14 and 15; the first
	// behind the name is field 3.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, errors.New("the status of a process has too few fields")
	}
	ticks := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(string(field))
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

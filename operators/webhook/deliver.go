package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/patience"
)

// firstLook is how long to wait before looking again at what another task is sending; doubled with each look.
const firstLook = 200 * time.Millisecond

// deliver sends a message until it is delivered, refused for good, or left to another attempt. Each try is noted before
// it is sent, which also finds out whether this attempt still counts, and its answer before the next one.
func (s *Sender) deliver(ctx context.Context, m Message) (d operators.Delivery, err error) {
	for try := 1; ; try++ {
		if err := m.Target.pace.Turn(ctx, s.Rate); err != nil {
			return d, err
		}
		send := false
		if d, send, err = s.begin(ctx, m); err != nil {
			return d, err
		}
		if !send {
			s.note(d, d.Status == operators.Delivered)
			return d, nil
		}

		said := m.Target.send(ctx, s.client, s.timeout(), m)
		d.Status, d.HTTPStatus, d.Error = said.status, said.code, said.why
		if said.status == operators.Delivered {
			d.DeliveredAt, d.Marks = clock.Now(), m.Marks
		}
		if d, err = s.ledger.End(ctx, d); err != nil {
			return d, err
		}
		switch {
		case d.Status == operators.Delivered || d.Status == operators.Refused:
			m.Target.note(d)
			s.note(d, false)
			return d, nil
		case said.fatal != nil:
			return d, said.fatal
		}

		again, err := s.pause(ctx, m.Target, try, said)
		if err != nil {
			return d, err
		}
		if !again {
			m.Target.note(d)
			if over := m.Target.stopped(); over != nil {
				d.Error = over.Error()
			}
			s.note(d, false)
			return d, nil
		}
	}
}

// begin notes that a message is about to be sent. It waits a while for another task that is sending the same.
func (s *Sender) begin(ctx context.Context, m Message) (d operators.Delivery, send bool, err error) {
	until := time.Now().Add(longestTaken)
	for pause := firstLook; ; pause = min(2*pause, 2*time.Second) {
		d, send, err = s.ledger.Begin(ctx, m.id)
		if err != nil || send || d.Status == operators.Delivered {
			return d, send, err
		}
		if time.Now().After(until) {
			d.Error = "another task is sending the same key"
			return d, false, nil
		}
		if err := wait.For(ctx, pause); err != nil {
			return d, false, err
		}
	}
}

// pause waits before the next try of a message; again is false if there is to be none in this run. A receiver that
// says for how long is left alone by all requests of the run.
func (s *Sender) pause(ctx context.Context, to *Target, try int, said answer) (again bool, err error) {
	pause := said.wait
	if pause <= 0 {
		pause = patience.Guess(try)
	}
	end, bounded := ctx.Deadline()
	if pause > longestWait || bounded && time.Until(end) <= pause {
		to.stop(fault.New(fault.Unavailable, "%s, and it is to be asked again in %s, which is too long for this "+
			"attempt", said.why, pause.Round(time.Second)))
		return false, nil
	}
	if said.wait > 0 {
		to.pace.HoldBack(said.wait)
	}
	if try >= s.MaxTries {
		return false, nil
	}

	if pause >= time.Second {
		s.task.Progress(50, fmt.Sprintf("%s, waiting for %s", said.why, pause.Round(time.Second)))
	}
	return true, wait.For(ctx, pause)
}

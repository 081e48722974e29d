package dispatcher_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
)

// Long tasks of one org that hold every slot of every process keep no other org waiting.
func TestLongTasksOfAnOrgLeaveASlotToOthers(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other, third := w.Org("other"), w.Org("third")
	w.Serve(dispatchertest.Mail)
	other.Serve(dispatchertest.Mail)
	third.Serve(dispatchertest.Mail)
	m := dispatchertest.NewMeeting()
	w.Probe.On("send", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, m.Wait(ctx, task)
	})
	mail := func(of *dispatchertest.Tenant, job string, n int) (ids []uuid.UUID) {
		items := make([]dispatcher.EnqueueItem, n)
		for i := range items {
			items[i].Payload = dispatchertest.Payload(map[string]any{"to": fmt.Sprint(uuid.New())})
		}
		for _, made := range of.Enqueue(job, items...) {
			ids = append(ids, made.ID)
		}
		return ids
	}

	const processes, pool = 3, 4
	for i := range processes {
		w.Start(w.Dispatcher(fmt.Sprint("process", i)))
	}
	long := mail(w.Tenant, "send", 20)
	for range processes * pool {
		<-m.Arrived
	}
	for range 2 { // the spare slot comes free again
		for _, id := range mail(other, "once", 3) {
			w.Eventually("the other org's task runs", func() bool { return w.Task(id) == "Completed" })
		}
	}
	require.Equal(t, processes*pool, w.Count(`SELECT FROM leases WHERE org_id = $1`, w.Caller.OrgID),
		"the spare slots are for others")

	// The long tasks of a third org take a spare slot in each process, and leave one more.
	long = append(long, mail(third, "send", 20)...)
	for range processes {
		<-m.Arrived
	}
	for _, id := range mail(other, "once", 3) {
		w.Eventually("the other org's task runs", func() bool { return w.Task(id) == "Completed" })
	}
	require.Equal(t, processes, w.Count(`SELECT FROM leases WHERE org_id = $1`, third.Caller.OrgID))

	close(m.Leave)
	for _, id := range long {
		w.Eventually("the long ones end", func() bool { return w.Task(id) == "Completed" })
	}
	w.Check()
}

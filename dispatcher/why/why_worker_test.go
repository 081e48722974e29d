package why_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task that waits for a worker says for which: one that serves its runtime and runs its operator, or has its
// function.
func TestWhyNamesTheWorkerThatIsMissing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.D = w.Dispatcher("one", func(c *service.Config) {
		c.AWS = testaws.Config(t)
		c.Backends = backends.RuntimeMap{"poll": {{Kind: backends.SQS, Operators: []string{"hook"},
			QueueURL: "http://127.0.0.1:1/q/tasks"}, {Kind: backends.Poll}},
			"lambda": {{Kind: backends.Lambda, Function: "f"}}}
		c.BaseURL = "https://dagctl.example.com"
	})
	w.Serve(dispatchertest.WorkDAG)
	mail, load, invoked := w.Want("mails"), w.Want("loads"), w.Want("there")
	missing := func(task uuid.UUID) []why.Reason {
		w.T.Helper()
		w_ := w.WhyTask(w.Caller, task)
		require.Equal(t, why.WhyQueued, w_.Reasons[0].Code)
		return w_.Reasons[0].Because
	}
	beat := func(h protocol.WorkerHeartbeat) {
		h.WorkerID, h.PoolSize, h.Runtimes = "w1", 4, []string{"poll"}
		_, err := w.D.WorkerHeartbeat(t.Context(), w.Worker(), h, time.Now())
		require.NoError(t, err)
	}
	const token = "DAGCTL_URL=https://dagctl.example.com " +
		"DAGCTL_TOKEN=$(dagctl tokens create NAME --kind worker --runtime poll) "
	forMail := why.Reason{Code: why.WhyNoWorker, Runtime: "poll", Operator: "handler", Handler: "email:send",
		Command: token + "PROGRAM",
		Text:    "no live worker serves the runtime poll with the handler email:send; start one: " + token + "PROGRAM"}
	beat(protocol.WorkerHeartbeat{Operators: []protocol.Operator{{Name: "sql"}, {Name: "handler"}},
		Handlers: []string{"sms:send"}})
	require.Equal(t, []why.Reason{forMail}, missing(mail))
	forLoad := missing(load)
	require.Equal(t, "hook", forLoad[0].Operator)
	require.Equal(t, token+"dagctl worker --runtime poll --queue QUEUE_URL", forLoad[0].Command)
	require.Empty(t, missing(invoked), "a function is there when it is invoked")

	reader := w.Caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	require.Equal(t, why.Reason{Code: why.WhyNoWorker, Runtime: "poll", Text: "no live worker serves the runtime poll"},
		w.WhyTask(reader, mail).Reasons[0].Because[0])

	beat(protocol.WorkerHeartbeat{Handlers: []string{"email:send"}})
	require.Empty(t, missing(mail))
	require.Len(t, missing(load), 1)
	beat(protocol.WorkerHeartbeat{}) // any operator and handler
	require.Empty(t, missing(load))
	w.Exec(`UPDATE workers SET orgs = $1`, []uuid.UUID{uuid.New()})
	require.Len(t, missing(load), 1, "it works for others")
}

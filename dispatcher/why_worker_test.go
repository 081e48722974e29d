package dispatcher

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task that waits for a worker says for which: one that serves its runtime and runs its operator, or has its function.
func TestWhyNamesTheWorkerThatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.d = w.dispatcher("one", func(c *Config) {
		c.AWS = testaws.Config(t)
		c.Backends = RuntimeMap{"poll": {{Kind: SQS, Operators: []string{"hook"}, QueueURL: "http://127.0.0.1:1/q/tasks"}, {Kind: Poll}}, "lambda": {{Kind: Lambda, Function: "f"}}}
		c.BaseURL = "https://dagctl.example.com"
	})
	w.serve(workDAG)
	mail, load, invoked := w.want("mails"), w.want("loads"), w.want("there")
	missing := func(task uuid.UUID) []Reason {
		w.t.Helper()
		why := w.whyTask(w.caller, task)
		require.Equal(t, whyQueued, why.Reasons[0].Code)
		return why.Reasons[0].Because
	}
	beat := func(h protocol.WorkerHeartbeat) {
		h.WorkerID, h.PoolSize, h.Runtimes = "w1", 4, []string{"poll"}
		_, err := w.d.WorkerHeartbeat(t.Context(), w.worker(), h, time.Now())
		require.NoError(t, err)
	}
	const token = "DAGCTL_URL=https://dagctl.example.com DAGCTL_TOKEN=$(dagctl tokens create NAME --kind worker --runtime poll) "
	forMail := Reason{Code: whyNoWorker, Runtime: "poll", Operator: "handler", Handler: "email:send", Command: token + "PROGRAM",
		Text: "no living worker serves the runtime poll with the handler email:send; start one: " + token + "PROGRAM"}
	beat(protocol.WorkerHeartbeat{Operators: []protocol.Operator{{Name: "sql"}, {Name: "handler"}}, Handlers: []string{"sms:send"}})
	require.Equal(t, []Reason{forMail}, missing(mail))
	forLoad := missing(load)
	require.Equal(t, "hook", forLoad[0].Operator)
	require.Equal(t, token+"dagctl worker --runtime poll --queue QUEUE_URL", forLoad[0].Command)
	require.Empty(t, missing(invoked), "a function is there when it is invoked")

	reader := w.caller
	reader.Role, reader.OrgRoles = authz.RoleReader, []string{}
	require.Equal(t, Reason{Code: whyNoWorker, Runtime: "poll", Text: "no living worker serves the runtime poll"}, w.whyTask(reader, mail).Reasons[0].Because[0])

	beat(protocol.WorkerHeartbeat{Handlers: []string{"email:send"}})
	require.Empty(t, missing(mail))
	require.Len(t, missing(load), 1)
	beat(protocol.WorkerHeartbeat{}) // whatever there is
	require.Empty(t, missing(load))
	w.exec(`UPDATE workers SET orgs = $1`, []uuid.UUID{uuid.New()})
	require.Len(t, missing(load), 1, "it works for others")
}

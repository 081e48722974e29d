package timers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

// long is longer than a key may be.
var long = strings.Repeat("k", 300)

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `SELECT count(*) FROM (`+query+`) AS q`, args...).Scan(&n))
	return n
}

// A batch is made whole or not at all, and a key that is known, in the batch or from before, makes no second timer.
func TestBatchesOfTimers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	of := func(key string) NewTimer {
		return NewTimer{DAG: "mail", Job: "birthday", Local: "2027-05-01T09:00", Timezone: "Europe/London",
			IdempotencyKey: key, Payload: json.RawMessage(`{"user": 7}`)}
	}
	var thousand []NewTimer
	for i := range 1000 {
		thousand = append(thousand, of(fmt.Sprint(i)))
	}
	thousand[999].IdempotencyKey = "5"
	made, err := w.timers.Create(t.Context(), w.caller, thousand, now)
	require.NoError(t, err)
	require.Len(t, made, 1000)
	for i, m := range made {
		require.Equal(t, i < 999, m.IsNew, i)
		require.Equal(t, thousand[i].IdempotencyKey, m.IdempotencyKey)
		require.JSONEq(t, `{"user": 7}`, string(m.Payload))
		require.Equal(t, "token:admin", m.CreatedBy)
	}
	require.Equal(t, made[5].ID, made[999].ID)
	again, err := w.timers.Create(t.Context(), w.caller, []NewTimer{of("998"), of("new"), of("")}, now)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, true}, []bool{again[0].IsNew, again[1].IsNew, again[2].IsNew})
	require.Equal(t, made[998].ID, again[0].ID)
	require.Equal(t, 1001, w.count(`SELECT FROM scheduled_events`))
	require.Equal(t, 1001, w.count(`SELECT FROM audit_log WHERE action = 'timer.create'`))

	w.deploy(5) // with a second timer job
	zone, job, payload := of("x"), of("y"), of("z")
	zone.Timezone, job.Job, payload.Payload = "Europe/Nowhere", "other", json.RawMessage(`{"user": "x"}`)
	for where, wrong := range map[string]NewTimer{"zone": zone, "job": job, "payload": payload} {
		_, err := w.timers.Create(t.Context(), w.caller, []NewTimer{of("a"), wrong, of("b"), wrong}, now)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", where, err)
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Len(t, e.Problems, 2, where)
		require.Equal(t, "body.timers[1]", e.Problems[0].Location)
		require.Equal(t, "body.timers[3]", e.Problems[1].Location)
	}
	_, err = w.pool.Exec(t.Context(), `UPDATE scheduled_events SET job_name = 'former' WHERE idempotency_key = '7'`)
	require.NoError(t, err)
	_, err = w.timers.Create(t.Context(), w.caller, []NewTimer{of("a"), of("7")}, now)
	require.ErrorContains(t, err, `body.timers[1]: idempotency_key "7" belongs to a timer of another job`)
	require.Equal(t, 1001, w.count(`SELECT FROM scheduled_events`), "no part of a refused batch stays")
}

// ask runs a task that asks for what is given, and returns it when it has ended.
func (w *world) ask(asks string) (id uuid.UUID, status, failure string) {
	w.t.Helper()
	out, err := w.dispatcher.Enqueue(w.t.Context(), w.caller, "mail", "signup",
		[]dispatcher.EnqueueItem{{Payload: json.RawMessage(`{"ask": ` + asks + `}`)}})
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool {
		err := w.pool.QueryRow(w.t.Context(), `SELECT status, coalesce(error_message, '') FROM tasks WHERE id = $1`,
			out[0].ID).Scan(&status, &failure)
		return err == nil && (status == "Completed" || status == "Failed")
	}, time.Minute, 10*time.Millisecond)
	return out[0].ID, status, failure
}

// The timers that a task asks for are made in the transaction that commits it, beside its tasks.
func TestTimersFromTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, status, failure := w.ask(`[
		{"job": "birthday", "payload": {"user": 1}, "idempotency_key": "user-1",
			"timer": {"target_timestamp_local": "2099-03-01T09:00", "target_timezone": "Europe/Berlin",
				"repeat": "yearly", "group": "user-1", "event_type": "birthday"}},
		{"job": "other"},
		{"job": "birthday", "payload": {"user": 2},
			"timer": {"target_timezone": "UTC", "repeat": "cron", "schedule": "0 8 * * *"}},
		{"job": "birthday", "payload": {"user": 3}}]`)
	require.Equal(t, "Completed", status, failure)
	require.Equal(t, 2, w.count(`SELECT FROM scheduled_events WHERE created_by = $1`, "task:"+id.String()))
	require.Equal(t, 1, w.count(`SELECT FROM scheduled_events WHERE idempotency_key = 'user-1' AND group_key = 'user-1'
		AND repeat = 'yearly' AND event_type = 'birthday' AND target_timestamp_utc = '2099-03-01 08:00Z'
		AND delivery_payload = '{"user": 1}'`))
	require.Equal(t, 1, w.made(), "a timer job's task may be asked for as well")
	require.Equal(t, 1, w.count(`SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id AND j.name = 'other'`))

	_, status, failure = w.ask(`[{"job": "birthday", "payload": {"user": 9}, "idempotency_key": "user-1",
		"timer": {"target_timestamp_local": "2030-01-01T09:00", "target_timezone": "UTC"}}]`)
	require.Equal(t, "Completed", status, failure)
	require.Equal(t, 2, w.count(`SELECT FROM scheduled_events`), "the key is known")

	timer := func(job, more, when string) string {
		return `[{"job": "` + job + `"` + more + `, "timer": {"target_timezone": "UTC"` + when + `}}]`
	}
	const user, date = `, "payload": {"user": 1}`, `, "target_timestamp_local": "2099-03-01T09:00"`
	for asks, want := range map[string]string{
		strings.Replace(timer("other", "", date), "[", `[{"job": "other"}, `, 1): "tasks[1].timer: mail/other is not a timer job",
		timer("birthday", user, `, "target_timestamp_local": "soon"`):            `tasks[0].timer: "soon" is not a local time`,
		timer("birthday", `, "payload": {"user": "x"}`, date):                    "tasks[0].payload: ",
		timer("birthday", user+`, "priority": 3`, date):                          "with a timer go job, payload and",
		timer("birthday", user, date+`, "repeat": "cron"`):                       "tasks[0].timer: `schedule` is only",
		timer("birthday", user, date+`, "repeat": "daily"`):                      `tasks[0].timer: repeat "daily" is none of`,
		timer("birthday", user+`, "idempotency_key": "`+long+`"`, date):          "tasks[0].timer: idempotency_key is longer",
		strings.Replace(timer("birthday", user, date), "UTC", "Mars/Base", 1):    `"Mars/Base" is not an IANA time zone`,
	} {
		_, status, failure := w.ask(asks)
		require.Equal(t, "Failed", status, asks)
		require.Contains(t, failure, want, asks)
	}
	require.Equal(t, 2, w.count(`SELECT FROM scheduled_events`))
	require.Equal(t, 1, w.count(`SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id AND j.name = 'other'`),
		"what is refused in part asks for nothing")
}

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/testbrowser"
	"github.com/dagctl/dagctl/timers"
)

// hrefs returns where the links of a page lead.
func hrefs(root *html.Node) (found []string) {
	for _, a := range all(root, "a") {
		found = append(found, strings.ReplaceAll(attribute(a, "href"), "%2f", "/"))
	}
	return found
}

// formType is the type of what forms send.
const formType = "application/x-www-form-urlencoded"

// submits posts a form that is right: the answer leads on.
func (w *world) submits(t *testing.T, caller, path string, fields url.Values) {
	t.Helper()
	status, body := w.send(t, caller, http.MethodPost, path, formType, strings.NewReader(fields.Encode()))
	require.Equal(t, http.StatusSeeOther, status, "%s: %s", path, body)
}

// refuses posts a form that is wrong: the answer says why.
func (w *world) refuses(t *testing.T, caller, path string, fields url.Values, code int, why string) {
	t.Helper()
	status, body := w.send(t, caller, http.MethodPost, path, formType, strings.NewReader(fields.Encode()))
	require.Equal(t, code, status, "%s: %s", path, body)
	require.Contains(t, text(parse(t, body)), why)
}

// lastTask returns the newest task of a job.
func (w *world) lastTask(t *testing.T, job string) views.Task {
	t.Helper()
	list := w.tasks(t)
	at := slices.IndexFunc(list, func(task views.Task) bool { return task.Job == job })
	require.GreaterOrEqual(t, at, 0, "no task of "+job)
	return list[at]
}

// Who runs a job that is asked for its partitions says which one, and no payload.
func TestThePageThatAsksForAPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := writeDAG(t, t.TempDir(), "x", `name: years
jobs:
  - name: rates
    operator: handler
    runtime: elsewhere
    source: { kind: manual, first_partition: "2999", on_deploy: false }
    partition_by: { time: year }
    code_version: "1"
    config: { handler: rates }
publish: { rates: { from: { job: rates } } }
`)
	must(t, w.env(t, writer), "deploy", file)
	page := w.page(t, writer, "/dags/years/jobs/rates/run")
	require.Empty(t, all(page, "textarea"))
	require.Contains(t, text(page), "Partition, from 2999 on")
	require.Contains(t, text(page), "dagctl run years/rates --partition 2999")
}

func TestThePageOfAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	const path = "/dags/readings/jobs/daily"
	require.Contains(t, hrefs(w.page(t, writer, "/dags/readings")), path)

	page := w.page(t, writer, path)
	require.Equal(t, "readings /daily", text(all(page, "h1")[0]))
	require.Contains(t, text(page), "SELECT station, max(celsius) AS highest")
	require.Contains(t, text(page), "not_null(station)")
	require.Contains(t, text(page), "day partitions")
	require.Len(t, withClass(page, "g", "completed"), 2, "a bar for each task")
	require.Len(t, withClass(page, "a", "present"), 2, "a cell for each partition")
	require.Len(t, withClass(page, "svg", "spark"), 1)
	for _, href := range []string{"/datasets/readings/landing/0", "/datasets/daily_highest", path + "/pause",
		"/dags/readings/jobs/landing", "/dags/readings/backfills?job=daily"} {
		require.Contains(t, hrefs(page), href)
	}
	require.NotContains(t, hrefs(page), path+"/run", "it is not manual")
	task := "/tasks/" + w.lastTask(t, "daily").ID.String()
	require.Contains(t, hrefs(page), task)

	// Readers see that there is a job, not what it does or what it reads.
	seen := w.page(t, reader, path)
	require.NotContains(t, text(seen), "max(celsius)")
	require.NotContains(t, text(seen), "Definition")
	require.NotContains(t, hrefs(seen), "/datasets/readings/landing/0")
	require.Contains(t, hrefs(seen), "/datasets/daily_highest")
	require.NotContains(t, strings.Join(hrefs(seen), " "), "/pause")
	status, _ := w.send(t, reader, http.MethodGet, path+"/pause", "", nil)
	require.Equal(t, http.StatusForbidden, status)
	must(t, w.env(t, admin), "roles", "create", "finance")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:finance")
	w.newToken(t, authz.NewToken{Name: "fin", Role: authz.RoleReader, OrgRoles: []string{"role:finance"}})
	for _, caller := range []string{reader, writer} {
		hidden := w.page(t, caller, path)
		require.NotContains(t, hrefs(hidden), "/datasets/daily_highest", caller)
		require.NotContains(t, text(hidden), "max(celsius)", caller)
		require.Empty(t, withClass(hidden, "a", "present"), caller)
		require.NotContains(t, text(w.page(t, caller, task)), "2026-01-02", caller)
	}
	require.Contains(t, hrefs(w.page(t, "fin", path)), "/datasets/daily_highest")
	for _, absent := range []string{"/dags/readings/jobs/nope", "/dags/nope/jobs/daily", "/sources/readings/daily"} {
		status, _ := w.send(t, writer, http.MethodGet, absent, "", nil)
		require.Equal(t, http.StatusNotFound, status, absent)
	}
}

func TestJobsArePausedAndRunOnTheirPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	const path = "/dags/readings/jobs/note"

	w.refuses(t, writer, path+"/pause", url.Values{"reason": {" "}}, 422, "a reason is needed")
	w.submits(t, writer, path+"/pause", url.Values{"reason": {"the pen is dry"}})
	require.Contains(t, text(w.page(t, writer, path)), "Paused by token:writer")
	require.Contains(t, text(w.page(t, writer, path)), "the pen is dry")
	require.Contains(t, text(w.page(t, writer, path+"/run")), "It waits: readings/note is paused by token:writer")
	require.Contains(t, hrefs(w.page(t, writer, path)), path+"/resume")

	w.refuses(t, writer, path+"/run", url.Values{"payload": {"{"}}, 422, "not valid JSON")
	w.refuses(t, writer, path+"/run", url.Values{"payload": {`{"text": 1}`}}, 422, "text")
	w.refuses(t, reader, path+"/run", url.Values{"payload": {`{"text": "hi"}`}}, 403, "this needs the role writer")
	w.submits(t, writer, path+"/run", url.Values{"payload": {`{"text": "hi"}`}})
	waiting := w.lastTask(t, "note")
	require.Equal(t, "paused", waiting.Waiting)
	require.Contains(t, text(w.page(t, writer, path)), "1 waiting or ready")
	require.Contains(t, text(w.page(t, writer, path+"/resume")), "1 queued task goes on.")

	w.submits(t, writer, path+"/resume", url.Values{})
	eventually(t, "the task runs", func() (bool, error) { return w.lastTask(t, "note").Status == "Completed", nil })
	page := w.page(t, writer, "/tasks/"+waiting.ID.String())
	require.Equal(t, "readings/note", text(all(page, "h1")[0]), "no id where a name exists")
	require.Contains(t, text(page), `"text": "hi"`)
	w.refuses(t, writer, path+"/resume", url.Values{}, 404, "is not paused")

	// Daily is no manual job: its page does not offer to run it, and the server refuses.
	w.refuses(t, writer, "/dags/readings/jobs/daily/run", url.Values{}, 422, "is not a manual job")
}

func TestTasksAreDecidedOnTheirPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deadMails(t, 4)
	const path = "/dags/mails/jobs/send"
	page := w.page(t, writer, path)
	require.Contains(t, hrefs(page), "/bulk/retry?dag=mails&job=send&dead=1&back="+path)
	require.Len(t, withClass(page, "g", "failed"), 4)

	// One task.
	one := "/tasks/" + w.lastTask(t, "send").ID.String()
	require.Subset(t, hrefs(w.page(t, writer, one)), []string{one + "/retry", one + "/cancel", one + "/skip"})
	require.NotContains(t, strings.Join(hrefs(w.page(t, reader, one)), " "), one+"/")
	ask := w.page(t, writer, one+"/skip")
	requireAccessible(t, ask, one+"/skip")
	require.Equal(t, "Skip mails/send?", text(all(ask, "h1")[0]))
	require.Contains(t, text(ask), "1 of 1 attempts have failed")
	w.refuses(t, writer, one+"/skip", url.Values{}, 422, "a reason is needed to skip tasks")
	w.refuses(t, reader, one+"/skip", url.Values{"reason": {"x"}}, 403, "this needs the role writer")
	w.submits(t, writer, one+"/skip", url.Values{"reason": {"nobody reads it"}})
	require.Contains(t, text(w.page(t, writer, one)), "skipped")
	w.refuses(t, writer, one+"/cancel", url.Values{}, 409, "is already Canceled")

	// All that match a filter, which is kept.
	list := w.page(t, writer, "/tasks?dag=mails&dead=1&error=mailbox")
	require.Len(t, rows(list, 0), 3)
	require.Equal(t, "mailbox", field(list, "error"))
	require.Contains(t, hrefs(list), "/bulk/cancel?dag=mails&dead=1&error=mailbox")
	require.NotContains(t, strings.Join(hrefs(w.page(t, writer, "/tasks")), " "), "/bulk/", "without a filter")
	require.NotContains(t, strings.Join(hrefs(w.page(t, reader, "/tasks?dag=mails")), " "), "/bulk/")
	require.Equal(t, "Retry 3 tasks?", text(all(w.page(t, writer, "/bulk/retry?dag=mails&dead=1"), "h1")[0]))
	require.Contains(t, text(w.page(t, writer, "/bulk/retry?dag=mails&dead=1")),
		`dagctl tasks retry --dag "mails" --dead`)
	filter := url.Values{"dag": {"mails"}, "dead": {"1"}}
	w.refuses(t, writer, "/bulk/skip", filter, 422, "a reason is needed")
	w.refuses(t, reader, "/bulk/cancel", filter, 403, "this needs the role writer")
	w.refuses(t, writer, "/bulk/burn", filter, 404, "and not")
	w.refuses(t, writer, "/bulk/cancel", url.Values{}, 422, "would select every task")
	filter.Set("matched", "2")
	w.refuses(t, writer, "/bulk/cancel", filter, 409, "3 tasks match now, and the page said 2")
	filter.Set("matched", "3")
	w.submits(t, writer, "/bulk/cancel", filter)
	for _, task := range w.tasks(t) {
		require.Equal(t, "Canceled", task.Status)
	}
	require.Contains(t, text(w.page(t, writer, "/tasks")), "Recent bulk actions")

	// No action leads elsewhere.
	for _, back := range []string{"//evil.example", "https://evil.example", `/\evil.example`, "javascript:alert(1)"} {
		asked := w.page(t, writer, one+"/retry?back="+url.QueryEscape(back))
		require.NotContains(t, hrefs(asked), back)
	}
}

// A worker's page shows what no worker runs, and drains ask first.
func TestWorkersAndUnservedRuntimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "far", `name: far
jobs:
  - name: away
    operator: command
    runtime: elsewhere
    source: { kind: manual }
    outputs: 0
    config: { argv: [/bin/true] }
`))
	require.NotContains(t, text(w.page(t, admin, "/workers")), "nobody runs")
	must(t, w.env(t, writer), "run", "far/away")
	page := w.page(t, admin, "/workers")
	requireAccessible(t, page, "/workers")
	require.Contains(t, text(page), "no live worker serves elsewhere")
	require.Equal(t, []string{"elsewhere", "1"}, rows(page, 1)[1][:2])

	drain := hrefs(page)[slices.IndexFunc(hrefs(page), func(h string) bool { return strings.Contains(h, "/drain") })]
	require.Contains(t, text(w.page(t, admin, drain)), "claims no more")
	w.refuses(t, admin, drain, url.Values{}, 403, "runs tasks of other orgs too")
	status, _ := w.send(t, writer, http.MethodGet, "/workers", "", nil)
	require.Equal(t, http.StatusForbidden, status)
}

const checkedDAG = `name: readings
jobs:
` + landingJob + `  - name: daily
    operator: sql
    inputs:
      - from: { job: landing }
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT station, max(celsius) AS highest FROM landing GROUP BY station ORDER BY station" }
    checks:
      - accepted_values: { column: station, values: [harbour, summit] }
%s
publish:
  daily_highest: { from: { job: daily } }
`

func TestWithheldPartitionsAreDecidedWhereOneSeesThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	many := ""
	for i := range 40 {
		many += fmt.Sprintf("      - { name: below_%02d, sql: SELECT * FROM output WHERE highest > %d }\n", i, 100+i)
	}
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "readings", fmt.Sprintf(checkedDAG, many)))
	w.landText(t, "2026-01-02", "station,celsius\nmoon,3.5\n")
	made := func() views.Task { return w.lastTask(t, "daily") }
	eventually(t, "it is made and rejected", func() (bool, error) {
		return made().Partition == "2026-01-02" && made().Status == "Completed", nil
	})

	dataset := w.page(t, admin, "/datasets/daily_highest")
	require.Contains(t, text(dataset), "Withheld partitions")
	require.Contains(t, text(dataset), "31 more checks that pass")
	accept := "/accept/daily_highest?partition=2026-01-02"
	require.Contains(t, hrefs(dataset), accept)
	require.NotContains(t, hrefs(w.page(t, writer, "/datasets/daily_highest")), accept, "it takes an admin")
	require.NotContains(t, text(w.page(t, reader, "/datasets/daily_highest")), "Withheld partitions")

	task := "/tasks/" + made().ID.String()
	require.Contains(t, hrefs(w.page(t, admin, task)), accept+"&back="+task)
	page := w.page(t, writer, task)
	require.Equal(t, "readings/daily@2026-01-02", text(all(page, "h1")[0]))
	require.Contains(t, hrefs(page), "/datasets/readings/landing/0?partition=2026-01-02#rows", "what it was made from")
	require.Contains(t, hrefs(page), "/tasks/"+w.lastTask(t, "landing").ID.String(), "and by which task")
	require.Contains(t, text(page), "Rejected")

	ask := w.page(t, admin, accept)
	require.Contains(t, text(ask), "Revision 1 of 2026-01-02 is rejected, with 1 rows.")
	fields := url.Values{"partition": {"2026-01-02"}}
	w.refuses(t, admin, "/accept/daily_highest", fields, 422, "a reason")
	fields.Set("reason", "the moon is a station now")
	w.refuses(t, writer, "/accept/daily_highest", fields, 403, "this needs the role admin")
	w.refuses(t, admin, "/reject/daily_highest", fields, 409, "is already rejected")
	w.submits(t, admin, "/accept/daily_highest", fields)
	require.NotContains(t, text(w.page(t, admin, "/datasets/daily_highest")), "Withheld partitions")
}

func TestSourcesAndTimersOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	w.timer(t)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "nightly", `name: nightly
jobs:
  - name: tick
    operator: command
    source: { kind: cron, schedule: "30 6 * * 1", timezone: Europe/Berlin }
    outputs: 0
    config: { argv: [/bin/true] }
  - name: inbox
    operator: command
    source: { kind: webhook, path: inbox/0123456789abcdef0123456789abcdef }
    outputs: 0
    config: { argv: [/bin/true] }
`))
	list := w.page(t, writer, "/sources")
	require.Len(t, rows(list, 0), 5)
	require.Contains(t, hrefs(list), "/sources/nightly/tick")
	require.Len(t, rows(w.page(t, writer, "/sources?dag=nightly"), 0), 2)

	cron := w.page(t, writer, "/sources/nightly/tick")
	requireAccessible(t, cron, "/sources/nightly/tick")
	require.Contains(t, text(cron), "at 30 6 * * 1 in Europe/Berlin")
	next := rows(cron, 0)
	require.Len(t, next, 5)
	for _, row := range next {
		require.Regexp(t, `^Mon .* 06:30:00 CES?T$`, row[0])
	}
	require.NotContains(t, text(w.page(t, reader, "/sources/nightly/tick")), "30 6 * * 1")
	require.Contains(t, text(w.page(t, writer, "/sources/nightly/inbox")), "/v1/hooks/acme/inbox/0123")
	require.Contains(t, text(w.page(t, writer, "/sources/readings/landing")), "looks for new data every 1 s")

	back := url.Values{"reason": {"holidays"}, "back": {"/sources/nightly/tick"}}
	w.submits(t, writer, "/dags/nightly/jobs/tick/pause", back)
	require.Contains(t, text(w.page(t, reader, "/sources/nightly/tick")), "Paused by token:writer")

	// A source that fails says since when.
	_, err := w.pool.Exec(t.Context(), `UPDATE sources SET error = 'no such folder' WHERE job_name = 'tick'`)
	require.NoError(t, err)
	require.Contains(t, text(w.page(t, writer, "/sources/nightly/tick")), "It fails since")
	require.NotContains(t, text(w.page(t, reader, "/sources/nightly/tick")), "no such folder")

	// Timers.
	page := w.page(t, writer, "/timers")
	require.Equal(t, "readings-timed/note timer", rows(page, 0)[0][0])
	require.NotContains(t, text(w.page(t, reader, "/timers")), "Create a timer")
	fields := url.Values{"target": {"readings-timed/note"}, "at": {"2100-05-01T10:00"}, "timezone": {"Mars/Base"},
		"repeat": {"yearly"}, "group": {"ada"}, "payload": {`{"a": 1}`}}
	w.refuses(t, writer, "/timers", fields, 422, "Mars/Base")
	w.refuses(t, reader, "/timers", fields, 403, "this needs the role writer")
	fields.Set("timezone", "Europe/Berlin")
	w.submits(t, writer, "/timers", fields)
	made := decode[[]timers.Timer](t, w.env(t, writer), "timers", "list", "--group", "ada")
	require.Len(t, made, 1)
	require.Equal(t, []string{"yearly", "2100-05-01T10:00:00"}, []string{made[0].Repeat, made[0].Local})

	remove := "/timers/" + made[0].ID.String() + "/delete"
	require.Contains(t, hrefs(w.page(t, writer, "/timers?group=ada")), remove)
	require.Contains(t, text(w.page(t, writer, remove)), "It does not fire at 2100-05-01T10:00:00")
	w.refuses(t, writer, remove, url.Values{}, 422, "lacks the field")
	w.refuses(t, writer, remove, url.Values{"version": {"77"}}, 409, "has changed meanwhile")
	w.submits(t, writer, remove, url.Values{"version": {fmt.Sprint(made[0].Version)}})
	require.Empty(t, decode[[]timers.Timer](t, w.env(t, writer), "timers", "list", "--group", "ada"))
}

func TestSecretsAndUsageOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	require.Contains(t, text(w.page(t, admin, "/secrets")), "The org has no secrets")
	status, body := w.send(t, admin, http.MethodPost, "/secrets", formType,
		strings.NewReader(url.Values{"name": {"no name"}, "value": {"hunter22"}}.Encode()))
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.NotContains(t, body, "hunter22", "a value is on no page")
	w.submits(t, admin, "/secrets", url.Values{"name": {"api-key"}, "value": {"hunter22"}})
	for _, path := range []string{"/secrets", "/secrets/api-key", "/secrets/api-key/delete"} {
		_, body := w.send(t, admin, http.MethodGet, path, "", nil)
		require.NotContains(t, body, "hunter22", path)
		requireAccessible(t, w.page(t, admin, path), path)
		for _, input := range all(parse(t, body), "input") {
			if attribute(input, "name") == "value" {
				require.Equal(t, []string{"password", "off", ""}, []string{attribute(input, "type"),
					attribute(input, "autocomplete"), attribute(input, "value")})
			}
		}
		status, _ := w.send(t, writer, http.MethodGet, path, "", nil)
		require.Equal(t, http.StatusForbidden, status, path)
	}

	w.refuses(t, admin, "/secrets/api-key/bind", url.Values{"jobs": {"NO"}}, 422, "is neither DAG/JOB nor DAG")
	w.submits(t, admin, "/secrets/api-key/bind", url.Values{"jobs": {"readings/note readings/daily"},
		"hosts": {"api.example.com"}})
	require.Equal(t, []string{"api-key", "readings/daily, readings/note", "api.example.com"},
		slices.Delete(rows(w.page(t, admin, "/secrets"), 0)[0], 1, 2)[:3])
	w.submits(t, admin, "/secrets/api-key/bind", url.Values{"remove_jobs": {"readings/daily"}})
	require.Equal(t, "readings/note", rows(w.page(t, admin, "/secrets"), 0)[0][2])
	w.refuses(t, admin, "/secrets", url.Values{"name": {"api-key"}, "value": {"x"}, "overlap": {"-3"}}, 422,
		"hours longer")
	w.refuses(t, admin, "/secrets/api-key/delete", url.Values{"typed": {"api"}}, 422, "is not \"api-key\"")
	w.submits(t, admin, "/secrets/api-key/delete", url.Values{"typed": {"api-key"}})
	require.Contains(t, text(w.page(t, admin, "/secrets")), "The org has no secrets")

	_, err := authz.ChangeQuotas(t.Context(), w.pool, "acme",
		[]authz.OrgQuota{{Quota: authz.StorageBytes, Most: 10 << 20}, {Quota: authz.QueuedTasks, Most: 50}}, nil)
	require.NoError(t, err)
	page := w.page(t, reader, "/usage")
	require.Contains(t, text(page), "of 10.0 MB")
	require.Len(t, all(page, "meter"), 2)
	require.Contains(t, text(page), "no limit")
}

// What a person does with a keyboard alone: from a task's page to its cancellation, and back into the queue.
func TestATaskIsCanceledAndRetriedByKeyboard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	must(t, w.env(t, writer), "pause", "readings/note")
	must(t, w.env(t, writer), "run", "readings/note", "--payload", `{"text": "hi"}`)
	page := "/tasks/" + w.lastTask(t, "note").ID.String()

	b := testbrowser.Start(t)
	b.Run("sign in", network.Enable(), network.SetExtraHTTPHeaders(network.Headers{
		"Authorization": "Bearer " + w.tokens[writer]}))
	b.Open(w.url + page)
	require.Equal(t, "readings/note", b.Text("h1"))
	b.Enter(`a[href="` + page + `/cancel"]`)
	require.Equal(t, "Cancel readings/note?", b.Text("h1"))
	b.Enter("form.confirm button")
	require.Equal(t, w.url+page, b.URL())
	require.Contains(t, b.Text(".badges"), "Canceled")

	b.Enter(`a[href="` + page + `/retry"]`)
	b.Enter("form.confirm button")
	require.Equal(t, w.url+page, b.URL())
	require.Contains(t, b.Text(".badges"), "Queued")
	require.Equal(t, "Queued", w.lastTask(t, "note").Status)
}

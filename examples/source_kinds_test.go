package examples_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/timers"
)

// kinds is the example of source kinds, which its README's commands drive.
type kinds struct {
	*world
	address string
	blocks  map[string]string
}

// say runs the commands of a section of the README and returns what they said. It has to fail if failure is not nil.
func (k kinds) say(t *testing.T, text string) (said string, failed error) {
	t.Helper()
	text = strings.ReplaceAll(text, "http://127.0.0.1:7070", k.address)
	text = strings.ReplaceAll(text, "examples/source-kinds", k.dir)
	cmd := exec.Command("sh", "-e", "-c", "dagctl() { command dagctl \"$@\" --data "+k.data+"; }\n"+text)
	cmd.Dir, cmd.Env = t.TempDir(), processtest.Environment(t)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (k kinds) section(t *testing.T, name string) string {
	t.Helper()
	require.NotEmpty(t, k.blocks[name], name)
	said, err := k.say(t, k.blocks[name])
	require.NoError(t, err, said)
	return said
}

// rows returns the rows of a dataset by the names of its columns.
func (k kinds) rows(t *testing.T, dataset string) (all []map[string]any) {
	t.Helper()
	r := processtest.Run(t, k.dir, "datasets", "preview", dataset, "--data", k.data, "--output", "json")
	if r.Code != 0 { // nothing is published yet
		return nil
	}
	var found query.Rows
	require.NoError(t, json.Unmarshal([]byte(r.Out), &found))
	for _, row := range found.Rows {
		named := map[string]any{}
		for i, c := range found.Columns {
			named[c.Name] = row[i]
		}
		all = append(all, named)
	}
	return all
}

// tasks counts the tasks of a job that a condition holds for.
func (k kinds) tasks(t *testing.T, job, where string, args ...any) int {
	t.Helper()
	return k.count(t, `SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = '`+job+`' AND `+where,
		args...)
}

// TestSourceKinds keeps what docs/yaml.md says of each kind of source.
func TestSourceKinds(t *testing.T) {
	t.Parallel()
	k := kinds{world: newWorld(t, "source-kinds"),
		blocks: shellBlocks(t, filepath.Join("source-kinds", "README.md"))}
	require.Equal(t, "dagctl dev examples/source-kinds\n", k.blocks["server"])
	server := k.serve(t)
	k.address, _, _ = strings.Cut(server.URL, "/?")
	k.section(t, "secret")
	processtest.Eventually(t, "the DAG serves", func() bool {
		return k.count(t, `SELECT count(*) FROM dag_versions WHERE status = 'Active'`) == 1
	})

	t.Run("poll reads what is new", k.poll)
	t.Run("cron makes the last complete window", k.cron)
	t.Run("manual runs when it is asked for", k.manual)
	t.Run("webhook takes each signed delivery once", k.webhook)
	t.Run("timer fires once, each year, and moves with its group", k.timer)
	t.Run("always_on is one at a time, and continues from its cursor", k.alwaysOn)
	server.Stop(t)
}

func (k kinds) poll(t *testing.T) {
	processtest.Eventually(t, "two files are read", func() bool { return len(k.rows(t, "readings")) == 4 })
	k.section(t, "poll")
	processtest.Eventually(t, "the third one is read", func() bool { return len(k.rows(t, "readings")) == 6 })

	// A file that is touched is none that has changed: two later looks find nothing.
	now := time.Now()
	require.NoError(t, os.Chtimes(filepath.Join(k.dir, "data", "readings", "2026-01-01.csv"), now, now))
	const looked = `SELECT count(*) FROM sources WHERE job_name = 'readings' AND last_fire_at > $1`
	for range 2 {
		after := time.Now()
		processtest.Eventually(t, "it looks again", func() bool { return k.count(t, looked, after) == 1 })
	}
	require.Equal(t, 3, k.tasks(t, "readings", "true"))
	require.Equal(t, 1, k.tasks(t, "readings", "slot = '2026-01-03'"))
}

func (k kinds) cron(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	fired := func() (at time.Time) {
		rows := k.rows(t, "hours")
		if len(rows) == 0 {
			return at
		}
		last := rows[len(rows)-1]
		var payload struct {
			At time.Time `json:"scheduled_at"`
		}
		require.NoError(t, json.Unmarshal([]byte(last["payload"].(string)), &payload))
		complete := payload.At.In(berlin).Truncate(time.Hour).Add(-time.Hour)
		require.Equal(t, complete.Format("2006-01-02T15"), last["partition_key"])
		require.Equal(t, complete.UTC().Format("2006-01-02 15:04:05+00"), last["partition_start"])
		return payload.At
	}
	processtest.Eventually(t, "it runs with the deploy", func() bool { return !fired().IsZero() })

	before := k.tasks(t, "hours", "true")
	require.Contains(t, k.section(t, "cron"), "hours")
	processtest.Eventually(t, "it runs at once", func() bool { return k.tasks(t, "hours", "true") > before })
	processtest.Eventually(t, "it runs at a full minute", func() bool {
		return fired().Second() == 0
	})
}

func (k kinds) manual(t *testing.T) {
	k.section(t, "manual")
	processtest.Eventually(t, "the letter is there", func() bool { return len(k.rows(t, "letters")) == 1 })
	letter := k.rows(t, "letters")[0]
	require.Equal(t, "ada", letter["partition_key"])
	require.JSONEq(t, `{"text": "Hello"}`, letter["payload"].(string))

	said, err := k.say(t, "dagctl run source-kinds/letters --partition bob --payload '{}'")
	require.Error(t, err)
	require.Contains(t, said, "text")
	require.Equal(t, 1, k.tasks(t, "letters", "true"))
}

func (k kinds) webhook(t *testing.T) {
	said := k.section(t, "webhook")
	require.Equal(t, 2, strings.Count(said, "202 "), said)
	require.Equal(t, 1, strings.Count(said, `"duplicate":true`), said)
	processtest.Eventually(t, "the order is taken", func() bool { return len(k.rows(t, "orders")) == 1 })
	require.JSONEq(t, `{"order": 1}`, k.rows(t, "orders")[0]["payload"].(string))

	send := func(key, id, body string) (string, error) {
		return k.say(t, "SHOP_KEY="+key+" python3 "+k.dir+"/send.py "+k.address+" "+id+" '"+body+"'")
	}
	said, err := send("another", "order-2", `{"order": 2}`)
	require.Error(t, err)
	require.Contains(t, said, "404 ")
	require.Equal(t, 1, k.tasks(t, "orders", "true"))

	said, err = send("a-key-that-only-the-shop-has", "order-2", `{"order": 2}`)
	require.NoError(t, err, said)
	processtest.Eventually(t, "another order is taken", func() bool { return len(k.rows(t, "orders")) == 2 })
}

func (k kinds) timer(t *testing.T) {
	list := func() (once, yearly timers.Timer) {
		all := ask[[]timers.Timer](t, k.world, "timers", "list", "--group", "ada")
		require.Len(t, all, 2)
		if all[0].Repeat == "yearly" {
			return all[1], all[0]
		}
		return all[0], all[1]
	}
	k.section(t, "timer")
	processtest.Eventually(t, "the first one has fired", func() bool {
		once, _ := list()
		return once.Status == "COMPLETED"
	})
	birthdays := k.rows(t, "birthdays")
	require.Len(t, birthdays, 1)
	require.JSONEq(t, `{"user": "ada"}`, birthdays[0]["payload"].(string))
	fired, _ := list()
	due, err := time.Parse("2006-01-02 15:04:05-07", birthdays[0]["due"].(string))
	require.NoError(t, err, "the task knows when its timer was due")
	require.Equal(t, fired.UTC.Unix(), due.Unix())

	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	_, yearly := list()
	local := yearly.UTC.In(berlin)
	require.Equal(t, "PENDING", yearly.Status)
	require.True(t, yearly.UTC.After(time.Now()) && yearly.UTC.Before(time.Now().AddDate(1, 0, 2)), yearly.UTC)
	require.Equal(t, 9, local.Hour())
	last := time.Date(local.Year(), time.March, 0, 0, 0, 0, 0, time.UTC).Day() // of February
	require.Equal(t, time.February, local.Month())
	require.Equal(t, last, local.Day())

	k.section(t, "move")
	once, moved := list()
	require.Equal(t, "Asia/Tokyo", moved.Timezone)
	require.Equal(t, yearly.Local, moved.Local, "the local time stays")
	require.Equal(t, 8*time.Hour, yearly.UTC.Sub(moved.UTC), "Tokyo is 8 hours ahead of Berlin in winter")
	require.Equal(t, "Europe/Berlin COMPLETED", once.Timezone+" "+once.Status)
	require.Equal(t, 1, k.tasks(t, "birthdays", "true"))
}

func (k kinds) alwaysOn(t *testing.T) {
	one := func() {
		require.Equal(t, 1, k.tasks(t, "ticks", "status NOT IN ('Completed', 'Canceled')"), "one at a time")
	}
	k.section(t, "follow")
	processtest.Eventually(t, "three ticks are there", func() bool {
		one()
		return len(k.rows(t, "ticks")) == 3
	})
	rows := k.rows(t, "ticks")
	killed := int(rows[2]["pid"].(float64))
	require.NoError(t, syscall.Kill(killed, syscall.SIGKILL))

	file, err := os.OpenFile(filepath.Join(k.dir, "data", "ticks.ndjson"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(`{"seq": 3, "price": "10.75"}` + "\n")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	processtest.Eventually(t, "the fourth one is there", func() bool {
		one()
		return len(k.rows(t, "ticks")) == 4
	})

	rows = k.rows(t, "ticks")
	for seq, row := range rows {
		require.EqualValues(t, seq, row["seq"], "none is missing, and none comes twice")
	}
	require.NotEqualValues(t, killed, rows[3]["pid"])
	require.EqualValues(t, 2, rows[3]["began_at"], "the next process begins at the cursor")
}

package examples_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/timers"
)

// calendar is examples/birthdays on servers whose clock a test sets, and the example's receiver, which goes by the same
// clock.
type calendar struct {
	*crew
	clock    *processtest.Clock
	journal  string // the receiver's
	receiver string // its URL
}

// newCalendar starts servers at a time. behaviour is the receiver's script: what it does with the first requests of
// each key of a user.
func newCalendar(t *testing.T, servers int, at time.Time, behaviour map[string][]string) *calendar {
	t.Helper()
	clock := processtest.NewClock(t, at)
	c := &calendar{crew: &crew{fleet: &fleet{world: newWorldOn(t, "birthdays", clock.URL)}}, clock: clock,
		journal: filepath.Join(t.TempDir(), "journal")}
	c.open(t, servers, "runtimes: { dispatcher: in-process }\noperators: { allowed_addresses: [127.0.0.0/8] }",
		"DAGCTL_CLOCK_EVERY=20ms")

	// A token for a year, because it goes by the clock, too.
	var made struct{ Secret string }
	c.decode(t, &made, "tokens", "create", "year", "--role", "admin", "--ttl", "8760h")
	c.env = append(c.env, "DAGCTL_TOKEN="+made.Secret)

	address := processtest.FreeAddress(t)
	c.receiver = "http://" + address + "/greetings"
	script := filepath.Join(t.TempDir(), "script.json")
	text, err := json.Marshal(behaviour)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(script, text, 0o600))
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	receiver := exec.Command("python3", "receiver.py", port, c.journal, script)
	receiver.Dir, receiver.Env = c.dir, append(processtest.Environment(t), clock.Env()...)
	start(t, receiver)
	processtest.Eventually(t, "the receiver listens", func() bool {
		conn, err := net.Dial("tcp", address)
		return err == nil && conn.Close() == nil
	})

	c.replace(t, "request_timeout_seconds: 5", "request_timeout_seconds: 1")
	var deployed any
	c.decode(t, &deployed, "deploy", c.dir, "--yes", "--var", "receiver="+c.receiver)
	return c
}

// users imports users, each a line of CSV, as the README says, and returns what the two programs said.
func (c *calendar) users(t *testing.T, lines ...string) (said string, err error) {
	t.Helper()
	return c.usersOf(t, "id,first_name,last_name,date_of_birth,timezone\n"+strings.Join(lines, "\n")+"\n")
}

// usersOf imports the users of a file with a text.
func (c *calendar) usersOf(t *testing.T, text string) (said string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users.csv")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	made := exec.Command("python3", "import_users.py", file)
	made.Dir, made.Env = c.dir, append(processtest.Environment(t), c.clock.Env()...)
	lined, err := made.Output()
	if exit := new(exec.ExitError); err != nil {
		require.ErrorAs(t, err, &exit)
		return string(exit.Stderr), err
	}
	create := c.dagctl(t, "timers", "create", "birthdays/greeting", "--batch", "-")
	create.Stdin = bytes.NewReader(lined)
	out, err := create.CombinedOutput()
	return string(out), err
}

// timers returns the timers of a group; empty: all.
func (c *calendar) timers(t *testing.T, group string) (found []timers.Timer) {
	t.Helper()
	c.decode(t, &found, "timers", "list", "--group", group, "--limit", "100")
	return found
}

// timer returns the only timer of a group.
func (c *calendar) timer(t *testing.T, group string) timers.Timer {
	t.Helper()
	found := c.timers(t, group)
	require.Len(t, found, 1)
	return found[0]
}

// received is a line of the receiver's journal.
type received struct {
	Key      string
	At       float64 // Unix seconds, by the script's clock
	Act      string
	Accepted bool
	User     string
	Local    string    `json:"target_timestamp_local"`
	UTC      time.Time `json:"target_timestamp_utc"`
	Zone     string    `json:"target_timezone"`
}

// received reads the receiver's journal; user is empty for all.
func (c *calendar) received(t *testing.T, user string) (all []received) {
	t.Helper()
	file, err := os.Open(c.journal)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r received
		if json.Unmarshal(lines.Bytes(), &r) == nil && (user == "" || r.User == user) { // the last may be half written
			all = append(all, r)
		}
	}
	return all
}

// look is what the database says of the work.
type look struct {
	now  time.Time
	open int        // tasks and timers that are due or run
	next *time.Time // when the next one is due
}

func (c *calendar) look(t *testing.T) (l look) {
	t.Helper()
	require.NoError(t, c.owner.QueryRow(t.Context(), `
		WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), -- one reading: it goes on meanwhile
		due AS (
			SELECT coalesce(retry_at, target_timestamp_utc) AS at FROM scheduled_events WHERE status = 'PENDING'
			UNION ALL
			SELECT available_at FROM waiting WHERE available_at IS NOT NULL)
		SELECT now, (SELECT count(*) FROM ready) + (SELECT count(*) FROM leases)
				+ (SELECT count(*) FROM outbox WHERE status = 'Pending')
				+ (SELECT count(*) FROM due WHERE at <= now),
			(SELECT min(at) FROM due WHERE at > now) FROM clock`).Scan(&l.now, &l.open, &l.next))
	return l
}

// rest waits until nothing is due and nothing runs.
func (c *calendar) rest(t *testing.T) (l look) {
	t.Helper()
	processtest.Often(t, "nothing is due and nothing runs", func() bool {
		l = c.look(t)
		return l.open == 0
	})
	return l
}

// until lets the clock go from one due time to the next, up to a time, and waits for what is due then.
func (c *calendar) until(t *testing.T, end time.Time) {
	t.Helper()
	for {
		l := c.rest(t)
		if !l.now.Before(end) {
			return
		}
		to := end
		if l.next != nil && l.next.Before(end) {
			to = *l.next
		}
		c.clock.Set(t, to)
	}
}

// TestBirthdays keeps the promises of document 004 one by one; docs/sources.md lists them.
func TestBirthdays(t *testing.T) {
	t.Parallel()
	c := newCalendar(t, 1, time.Date(2028, 2, 20, 12, 0, 0, 0, time.UTC), map[string][]string{
		"flaky": {"500", "429", "drop"}, "down": {"500", "500", "503", "500"}, "refused": {"400"},
		"slow": {"hang"}})
	utc := func(month time.Month, day, hour, minute int) time.Time {
		return time.Date(2028, month, day, hour, minute, 0, 0, time.UTC)
	}
	said, err := c.users(t, "ada,Ada,Lovelace,1992-02-29,Europe/London",
		"kiri,Kiri,Tebwe,1990-03-01,Pacific/Kiritimati", "bo,Bo,Oh,1988-12-24,Asia/Seoul",
		"gone,Gus,Gone,1970-12-24,UTC")
	require.NoError(t, err, said)

	t.Run("a user has an event at nine of the next birthday, and one key", func(t *testing.T) {
		ada := c.timer(t, "ada")
		require.Equal(t, "PENDING BIRTHDAY yearly 2028-02-29T09:00:00 Europe/London",
			strings.Join([]string{ada.Status, ada.EventType, ada.Repeat, ada.Local, ada.Timezone}, " "))
		require.True(t, ada.UTC.Equal(utc(2, 29, 9, 0)), ada.UTC)
		require.True(t, c.timer(t, "kiri").UTC.Equal(utc(2, 29, 19, 0)))

		said, err := c.users(t, "ada,Ada,Lovelace,1992-02-29,Europe/London")
		require.NoError(t, err, said)
		require.Equal(t, ada, c.timer(t, "ada"), "imported again")
	})
	t.Run("users without a name, with a birthday to come or in no zone are refused", func(t *testing.T) {
		said, err := c.users(t, "x,,Y,1990-01-01,UTC", "y,Y,Y,2031-01-01,UTC", "z,Z,Z,1990-01-01,Mars/Base",
			"v,V,V,1990-02-30,UTC", "ok,O,K,1990-01-01,UTC")
		require.Error(t, err)
		for n, part := range []string{"first_name", "2031-01-01", "Mars/Base", "day is out of range"} {
			require.Contains(t, said, fmt.Sprintf("users.csv:%d: ", n+2))
			require.Contains(t, said, part)
		}
		require.Empty(t, c.timers(t, "ok"))
	})
	t.Run("files of spreadsheets, ids with spaces and users who are there twice", func(t *testing.T) {
		mark, twice := "\ufeff", "jo ann, Jo Ann ,Ström,1991-11-30,UTC"
		said, err := c.usersOf(t, mark+"id,first_name,last_name,date_of_birth,timezone\r\n"+
			"jo ann,Jo Ann,Ström,1991-11-30,UTC\r\n jo ann , Jo Ann,Ström,1991-11-30,UTC\r\n")
		require.NoError(t, err, said)
		require.Equal(t, "2028-11-30T09:00:00", c.timer(t, "jo ann").Local)
		require.JSONEq(t, `{"user": "jo ann", "first_name": "Jo Ann", "last_name": "Ström"}`,
			string(c.timer(t, "jo ann").Payload))

		said, err = c.users(t, twice, "jo ann,Jo Ann,Ström,1991-12-01,UTC")
		require.Error(t, err)
		require.Contains(t, said, "users.csv:3: user 'jo ann' is on line 2 already")
		c.must(t, "timers", "update", "--group", "jo ann", "--timezone", "Asia/Tokyo")
		require.Equal(t, "Asia/Tokyo", c.timer(t, "jo ann").Timezone)
		c.must(t, "timers", "delete", "--group", "jo ann", "--yes")
		require.Empty(t, c.timers(t, "jo ann"))
	})
	t.Run("at nine it is delivered, with a key of user and time, and the next one follows", func(t *testing.T) {
		c.until(t, utc(2, 29, 8, 59))
		require.Empty(t, c.received(t, ""))
		c.until(t, utc(2, 29, 20, 0))
		got := c.received(t, "")
		require.Len(t, got, 2)
		require.Equal(t, "ada 2028-02-29T09:00:00 Europe/London", got[0].User+" "+got[0].Local+" "+got[0].Zone)
		require.Equal(t, "kiri 2028-03-01T09:00:00", got[1].User+" "+got[1].Local)
		require.NotEqual(t, got[0].Key, got[1].Key)

		ada := c.timer(t, "ada")
		require.Equal(t, "PENDING 2029-02-28T09:00:00 Completed", ada.Status+" "+ada.Local+" "+ada.Task.Status)
		require.WithinDuration(t, utc(2, 29, 9, 0), *ada.ExecutedAt, time.Minute)
	})
	t.Run("a user who moves is greeted at nine there, and by nobody twice", func(t *testing.T) {
		c.must(t, "timers", "update", "--group", "bo", "--timezone", "America/New_York")
		require.True(t, c.timer(t, "bo").UTC.Equal(utc(12, 24, 14, 0)))
		c.must(t, "timers", "update", "--group", "kiri", "--timezone", "Pacific/Honolulu") // it is 29 February there
		c.until(t, utc(3, 2, 0, 0))
		require.Len(t, c.received(t, "kiri"), 1)
	})
	t.Run("a change of an event that has changed meanwhile is refused", func(t *testing.T) {
		bo := c.timer(t, "bo")
		said := c.refused(t, "timers", "update", bo.ID.String(), "--timezone", "UTC", "--if-version",
			fmt.Sprint(bo.Version-1))
		require.Contains(t, said, "not the current one")
		require.Equal(t, bo, c.timer(t, "bo"))
	})
	t.Run("the events of a deleted user go", func(t *testing.T) {
		c.must(t, "timers", "delete", "--group", "gone", "--yes")
		require.Empty(t, c.timers(t, "gone"))
	})

	once := func(user string, at time.Time) {
		c.must(t, "timers", "create", "birthdays/greeting", "--at", at.Format("2006-01-02T15:04"), "--timezone", "UTC",
			"--group", user, "--payload", fmt.Sprintf(`{"user": %q, "first_name": "A", "last_name": "B"}`, user))
	}
	settled := func(t *testing.T, user, status string) (is timers.Timer) {
		processtest.Eventually(t, user+" is "+status, func() bool {
			is = c.timer(t, user)
			return is.Status == status
		})
		return is
	}
	acts := func(t *testing.T, user string) (all []string) {
		for _, r := range c.received(t, user) {
			require.Equal(t, c.received(t, user)[0].Key, r.Key, "always under the same key")
			all = append(all, r.Act)
		}
		return all
	}
	t.Run("PROCESSING while it is delivered, then COMPLETED", func(t *testing.T) {
		once("slow", utc(3, 3, 9, 0))
		c.until(t, utc(3, 3, 8, 0))
		c.clock.Set(t, utc(3, 3, 9, 0))
		settled(t, "slow", "PROCESSING")
		c.until(t, utc(3, 3, 12, 0))
		require.Empty(t, settled(t, "slow", "COMPLETED").FailureReason)
		require.Equal(t, []string{"hang", "accept"}, acts(t, "slow"))
	})
	t.Run("at most three retries, then FAILED, with the reason", func(t *testing.T) {
		once("flaky", utc(3, 4, 9, 0))
		once("down", utc(3, 4, 9, 0))
		once("refused", utc(3, 4, 9, 0))
		c.until(t, utc(3, 4, 12, 0))
		settled(t, "flaky", "COMPLETED")
		require.Equal(t, []string{"500", "429", "drop", "accept"}, acts(t, "flaky"))
		require.Contains(t, settled(t, "down", "FAILED").FailureReason, "500 Internal Server Error")
		require.Equal(t, []string{"500", "500", "503", "500"}, acts(t, "down"))
		require.Contains(t, settled(t, "refused", "FAILED").FailureReason, "400 Bad Request")
		require.Equal(t, []string{"400"}, acts(t, "refused"), "what is refused is not tried again")
	})
	t.Run("a person retries what has failed", func(t *testing.T) {
		var dead []views.Task
		c.decode(t, &dead, "tasks", "list", "--dead")
		require.Len(t, dead, 2)
		for _, task := range dead {
			c.must(t, "tasks", "retry", task.ID.String(), "--yes")
		}
		c.until(t, utc(3, 4, 13, 0))
		settled(t, "down", "COMPLETED")
		settled(t, "refused", "COMPLETED")
		require.Equal(t, "accept", acts(t, "refused")[1])
	})
}

// TestTheReceiverLetsManyWait checks that connections which the receiver has not accepted yet are not dropped: their
// senders would give up before it hears of them.
func TestTheReceiverLetsManyWait(t *testing.T) {
	t.Parallel()
	address := processtest.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	receiver := exec.Command("python3", filepath.Join("birthdays", "receiver.py"), port)
	start(t, receiver)
	processtest.Eventually(t, "the receiver listens", func() bool {
		conn, err := net.Dial("tcp", address)
		return err == nil && conn.Close() == nil
	})

	require.NoError(t, receiver.Process.Signal(syscall.SIGSTOP))
	var all []net.Conn
	for n := range 100 {
		conn, err := net.DialTimeout("tcp", address, 20*time.Second) // without a place it would wait for ever
		require.NoError(t, err, "connection %d", n)
		all = append(all, conn)
	}
	require.NoError(t, receiver.Process.Signal(syscall.SIGCONT))
	for n, conn := range all {
		body := fmt.Sprintf(`{"user": "u%d", "first_name": "A", "last_name": "B"}`, n)
		_, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k%d\r\n"+
			"Content-Length: %d\r\n\r\n%s", n, len(body), body)
		require.NoError(t, err)
		said, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200 OK\r\n", said)
		require.NoError(t, conn.Close())
	}
}

// killSender kills a server that is waiting for the receiver's answer to a user.
func (c *calendar) killSender(t *testing.T, user string) {
	t.Helper()
	processtest.Often(t, user+" is being greeted", func() bool { return len(c.received(t, user)) > 0 })
	var worker string
	require.NoError(t, c.owner.QueryRow(t.Context(), `SELECT l.worker_id FROM leases l JOIN tasks t ON t.id = l.task_id
		WHERE t.payload->>'user' = $1`, user).Scan(&worker))
	for _, server := range c.servers {
		if strings.Contains(worker, fmt.Sprint("-", server.Process.Pid, "-")) {
			server.signal(syscall.SIGKILL)
			<-server.ended
			return
		}
	}
	require.Fail(t, "no server is "+worker)
}

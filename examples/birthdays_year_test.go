package examples_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
)

var birthdayUsers = flag.Int("birthday-users", 3, "users in each zone of TestBirthdaysThroughAYear, from 3")

// birthdayZones are the zones of TestBirthdaysThroughAYear: both hemispheres, offsets of half and quarter hours,
// changes at midnight, of half an hour and for Ramadan, both ends of the date line, and zones without changes.
var birthdayZones = []string{"Africa/Cairo", "Africa/Casablanca", "Africa/Johannesburg", "Africa/Lagos",
	"America/Adak", "America/Anchorage", "America/Asuncion", "America/Caracas", "America/Chicago", "America/Denver",
	"America/Halifax", "America/Havana", "America/Los_Angeles", "America/New_York", "America/Nuuk", "America/Phoenix",
	"America/Santiago", "America/Sao_Paulo", "America/St_Johns", "Antarctica/Troll", "Asia/Beirut", "Asia/Dubai",
	"Asia/Gaza", "Asia/Jerusalem", "Asia/Kabul", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Shanghai", "Asia/Tehran",
	"Asia/Tokyo", "Asia/Yangon", "Atlantic/Azores", "Australia/Adelaide", "Australia/Brisbane", "Australia/Darwin",
	"Australia/Eucla", "Australia/Lord_Howe", "Australia/Sydney", "Europe/Athens", "Europe/Berlin", "Europe/Chisinau",
	"Europe/Dublin", "Europe/London", "Europe/Moscow", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham",
	"Pacific/Easter", "Pacific/Honolulu", "Pacific/Kiritimati"}

// The simulated time holds a 28 February of a common year and the 29th of a leap year.
var (
	yearBegins = time.Date(2027, 2, 26, 12, 0, 0, 0, time.UTC)
	yearEnds   = time.Date(2028, 3, 1, 12, 0, 0, 0, time.UTC)
)

// birthdayUser is a user, and what becomes of them.
type birthdayUser struct {
	id         string
	month, day int
	zone       string
	moves      time.Time // zero: never
	to         string
	imported   time.Time
	deleted    time.Time // zero: never
}

// birthdayPopulation returns users whose birthdays are on and around the days on which their zone's clocks change.
func birthdayPopulation(t *testing.T, each int) (all []birthdayUser) {
	t.Helper()
	for z, zone := range birthdayZones {
		days := changes(t, zone)
		for n := range each {
			day := yearBegins.AddDate(0, 0, 3+(z*37+n*101)%360) // any
			switch {
			case n == 0 && z%4 == 0:
				day = time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC)
			case n == 1 && z%8 == 0:
				day = time.Date(2027, 12, 31, 0, 0, 0, 0, time.UTC)
			case n < 3 && n < len(days):
				day = days[n]
			}
			all = append(all, birthdayUser{id: fmt.Sprintf("u%02d-%d", z, n), month: int(day.Month()), day: day.Day(),
				zone: zone, imported: yearBegins})
		}
	}

	// The last of a zone's users are those whose lives change in July.
	at := time.Date(2027, 7, 15, 3, 17, 0, 0, time.UTC)
	for z := range birthdayZones {
		u := &all[z*each+each-1]
		switch z % 5 {
		case 0:
			u.moves, u.to = at, birthdayZones[(z+23)%len(birthdayZones)]
		case 1:
			u.deleted = at
		case 2:
			u.imported = at
		}
		// Their birthdays are before and after that, not beside it: what happens then is for TestBirthdays.
		if u.month == 7 {
			u.month = 8 + z%3
		}
	}
	return all
}

// changes returns the days on which a zone's clocks change within the year, as they show them at nine.
func changes(t *testing.T, zone string) (days []time.Time) {
	t.Helper()
	location, err := time.LoadLocation(zone)
	require.NoError(t, err)
	for day := yearBegins.AddDate(0, 0, 2); day.Before(yearEnds.AddDate(0, 0, -2)); day = day.AddDate(0, 0, 1) {
		nine := func(day time.Time) int {
			_, offset := time.Date(day.Year(), day.Month(), day.Day(), 9, 0, 0, 0, location).Zone()
			return offset
		}
		if nine(day) != nine(day.AddDate(0, 0, -1)) {
			days = append(days, day)
		}
	}
	return days
}

// greetings returns when a user is to be greeted within the year, by what the zone's clocks show then.
func (u birthdayUser) greetings(t *testing.T) map[string]time.Time {
	t.Helper()
	due := map[string]time.Time{}
	for _, year := range []int{2027, 2028} {
		day := u.day
		if u.month == 2 && u.day == 29 && year == 2027 {
			day = 28
		}
		for _, zone := range []string{u.zone, u.to} {
			if zone == "" {
				continue
			}
			location, err := time.LoadLocation(zone)
			require.NoError(t, err)
			nine := time.Date(year, time.Month(u.month), day, 9, 0, 0, 0, location)
			if !u.moves.IsZero() && nine.Before(u.moves) != (zone == u.zone) {
				continue
			}
			if nine.After(u.imported) && (u.deleted.IsZero() || nine.Before(u.deleted)) && nine.Before(yearEnds) {
				due[nine.Format("2006-01-02T15:04:05")] = nine.UTC()
			}
		}
	}
	return due
}

// TestBirthdaysThroughAYear greets users of 50 zones through a year of a scripted clock. Two servers deliver to a
// receiver that fails, hangs and drops connections; each is killed while it does. The receiver accepts every greeting
// exactly once, under one key, and none was due at another time than nine in the morning where the user lives.
func TestBirthdaysThroughAYear(t *testing.T) {
	t.Parallel()
	users := birthdayPopulation(t, max(3, *birthdayUsers))
	kinds := [][]string{{"500"}, {"429"}, {"503", "drop"}, {"drop", "500"}, {"reset"}, {"drop"}, {"500", "429", "503"}}
	behaviour := map[string][]string{}
	for i, u := range users {
		switch {
		case i%3 == 0:
			behaviour[u.id] = kinds[i/3%len(kinds)]
		case i%29 == 1:
			behaviour[u.id] = []string{"hang"}
		}
	}
	behaviour["victim-1"], behaviour["victim-2"] = []string{"hang"}, []string{"hang"}
	behaviour["lost"], behaviour["refused"] = []string{"500", "500", "500", "500"}, []string{"400"}
	for id, month := range map[string]int{"victim-1": 5, "victim-2": 10, "lost": 6, "refused": 9} {
		users = append(users, birthdayUser{id: id, month: month, day: 17, zone: "Asia/Kolkata", imported: yearBegins})
	}
	c := newCalendar(t, 2, yearBegins, behaviour)
	began := time.Now()

	let := func(at time.Time) { // those who are users then; those who were before are imported again
		t.Helper()
		var lines []string
		for _, u := range users {
			if !u.imported.After(at) && (u.deleted.IsZero() || u.deleted.After(at)) {
				lines = append(lines, fmt.Sprintf("%s,F,L,%d-%02d-%02d,%s", u.id, 1960+u.day%10*4, u.month, u.day,
					u.zone))
			}
		}
		for chunk := range slices.Chunk(lines, 1000) {
			said, err := c.users(t, chunk...)
			require.NoError(t, err, said)
		}
	}
	kill := func(user string, at time.Time) {
		t.Helper()
		c.until(t, at.Add(-time.Second))
		c.clock.Set(t, at)
		c.killSender(t, user)
		c.serve(t)
	}
	nine := func(month time.Month) time.Time { return time.Date(2027, month, 17, 3, 30, 0, 0, time.UTC) }

	let(yearBegins)
	kill("victim-1", nine(5))
	c.until(t, time.Date(2027, 7, 15, 3, 17, 0, 0, time.UTC))
	for _, u := range users {
		if !u.moves.IsZero() {
			c.must(t, "timers", "update", "--group", u.id, "--timezone", u.to)
		}
		if !u.deleted.IsZero() {
			c.must(t, "timers", "delete", "--group", u.id, "--yes")
		}
	}
	let(yearEnds)
	kill("victim-2", nine(10))
	c.until(t, time.Date(2027, 12, 1, 0, 0, 0, 0, time.UTC))
	var dead []views.Task
	c.decode(t, &dead, "tasks", "list", "--dead")
	out := map[string]bool{}
	for _, task := range dead {
		var user string
		require.NoError(t, c.owner.QueryRow(t.Context(), `SELECT payload->>'user' FROM tasks WHERE id = $1`,
			task.ID).Scan(&user))
		out[user] = true
		// Beside the script's failures, a request may have no answer within its second on a busy machine, or go out on
		// a connection that the receiver is closing, which then notes nothing of it.
		if user != "lost" && user != "refused" {
			ends, noted := c.attemptsOf(t, task.ID.String()), len(c.received(t, user))
			require.True(t, strings.Contains(ends, "did not answer within") || noted < task.Attempt,
				"%s is dead though all %d were answered: %s", user, noted, ends)
		}
		c.must(t, "tasks", "retry", task.ID.String(), "--yes")
	}
	require.True(t, out["lost"], "out of retries")
	require.True(t, out["refused"])
	c.until(t, yearEnds)
	c.requireGreeted(t, users)
	t.Logf("a year of %d users in %s", len(users), time.Since(began).Round(time.Second))
}

// attemptsOf returns how the attempts of a task ended, for the message of a failure.
func (c *calendar) attemptsOf(t *testing.T, task string) (text string) {
	t.Helper()
	require.NoError(t, c.owner.QueryRow(t.Context(), `
		SELECT coalesce(string_agg(concat_ws(' ', attempt, outcome, started_at, ended_at, error), '; ' ORDER BY attempt), '')
		FROM task_attempts WHERE task_id = $1::uuid`, task).Scan(&text))
	return text
}

// requireGreeted requires that the receiver has accepted what was due, each greeting once, and nothing else.
func (c *calendar) requireGreeted(t *testing.T, users []birthdayUser) {
	t.Helper()
	due := map[string]time.Time{} // user and local time
	for _, u := range users {
		for local, at := range u.greetings(t) {
			due[u.id+" "+local] = at
		}
	}

	accepted, keys, requests := map[string]int{}, map[string]string{}, map[string]int{}
	acts := map[string]int{}
	for _, r := range c.received(t, "") {
		name, at := r.User+" "+r.Local, time.UnixMicro(int64(r.At*1e6)).UTC()
		require.True(t, r.UTC.Equal(due[name]), "%s is due at %s, not %s (year 1: not at all)", name, due[name], r.UTC)
		require.False(t, at.Before(r.UTC), "%s came too early: %s", name, at)
		if requests[name] == 0 {
			// Without an answer it is sent again, and that may be the first one that a busy receiver notes.
			require.WithinDuration(t, r.UTC, at, 5*time.Minute, "%s came too late", name)
		}

		if known, ok := keys[name]; ok {
			require.Equal(t, known, r.Key, "%s has one key", name)
		}
		keys[name] = r.Key
		requests[name]++
		acts[r.Act]++
		if r.Accepted {
			accepted[r.Key]++
		}
	}
	for name := range due {
		require.Equal(t, 1, accepted[keys[name]], "%s is accepted once", name)
		require.LessOrEqual(t, requests[name], 5, "%s: at most three retries, and one by a person", name)
	}
	require.Len(t, accepted, len(due))
	for _, act := range []string{"500", "503", "429", "400", "hang", "drop", "reset"} {
		require.NotZero(t, acts[act], act)
	}
	require.Equal(t, len(due), c.count(t, `SELECT count(*) FROM deliveries WHERE status = 'delivered'`))
	t.Logf("%d greetings at %d times, by requests that the receiver answered so: %v", len(due), c.times(due), acts)
}

// times returns how many different times there are.
func (*calendar) times(due map[string]time.Time) int {
	all := map[int64]bool{}
	for _, at := range due {
		all[at.Unix()] = true
	}
	return len(all)
}

package plain_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// row is a row of any dataset: all have the same columns, so that every job can read every other.
type row struct {
	k    string
	n, h int64
}

func (r row) String() string { return fmt.Sprintf("%s,%d,%d", r.k, r.n, r.h) }

// table is a dataset: the rows of each partition that exists.
type table map[string][]row

// all returns the rows of all partitions.
func (t table) all() (rows []row) {
	for _, r := range t {
		rows = append(rows, r...)
	}
	return rows
}

// texts returns the rows as readers see them.
func (t table) texts() map[string][]string {
	texts := map[string][]string{}
	for key, rows := range t {
		texts[key] = []string{}
		for _, r := range rows {
			texts[key] = append(texts[key], r.String())
		}
		slices.Sort(texts[key])
	}
	return texts
}

// line is a line of a source's file: a local time in the zone of the source or, in files of hours, minutes after the
// hour began.
type line struct {
	k  string
	n  int64
	at string // 15:04:05, or 90
}

// base returns the minutes from the beginning of a day or hour to each line's time: not always what the clock shows.
func base(zone, key string, lines []line) []row {
	rows := []row{}
	for _, l := range lines {
		var minutes int64
		if len(key) > len(time.DateOnly) {
			minutes, _ = strconv.ParseInt(l.at, 10, 64)
		} else {
			minutes = int64(at(zone, key+" "+l.at).Sub(at(zone, key+" 00:00:00")) / time.Minute)
		}
		rows = append(rows, row{l.k, l.n, minutes})
	}
	return rows
}

func at(zone, clock string) time.Time {
	t, err := time.ParseInLocation(time.DateTime, clock, place(zone))
	if err != nil {
		panic(err)
	}
	return t
}

func place(zone string) *time.Location {
	place, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	return place
}

// hour returns when clocks in a zone first show an hour, and for how many minutes they do, in all; 0 where they skip
// it.
func hour(zone, key string) (start time.Time, minutes int) {
	day, _ := time.Parse(time.DateOnly, key[:len(time.DateOnly)])
	there := place(zone)
	for t := day.Add(-24 * time.Hour); t.Before(day.Add(48 * time.Hour)); t = t.Add(time.Minute) {
		if t.In(there).Format("2006-01-02T15") != key {
			continue
		}
		if minutes == 0 {
			start = t
		}
		minutes++
	}
	return start, minutes
}

// step returns a day some days later.
func step(day string, days int) string {
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		panic(err)
	}
	return at.AddDate(0, 0, days).Format(time.DateOnly)
}

// evaluate computes the output of a job from those of its inputs. before is what an appending job has so far.
func (j job) evaluate(inputs []table, before table) table {
	out := table{}
	switch j.kind {
	case mapped:
		for key, rows := range inputs[0] {
			out[key] = j.project(rows)
		}
	case summed:
		for key, rows := range inputs[0] {
			out[key] = sums(j.kept(rows))
		}
	case joined:
		for _, key := range j.keys(inputs) {
			out[key] = join(j.kept(inputs[0][key]), inputs[1][key])
		}
	case looked:
		for key, rows := range inputs[0] {
			out[key] = join(j.kept(rows), sums(inputs[1].all()))
		}

	case trailing:
		for key := range inputs[0] {
			for n := range j.last {
				if rows, complete := j.window(inputs[0], step(key, n)); complete || !j.complete {
					out[step(key, n)] = sums(j.kept(rows))
				}
			}
		}
	case monthly:
		return j.perPeriod(inputs[0], len("2006-01"))
	case daily:
		return j.perPeriod(inputs[0], len(time.DateOnly))
	case totaled:
		out["all"] = sums(j.kept(inputs[0].all()))
	case appended:
		rows := append(slices.Clone(before["all"]), j.project(inputs[0].all())...)
		out["all"] = distinct(rows)
	}
	return out
}

// perPeriod returns the sums of each period, whose key is the beginning of those of the partitions in it.
func (j job) perPeriod(in table, length int) table {
	out := table{}
	for key, rows := range in {
		out[key[:length]] = append(out[key[:length]], j.kept(rows)...)
	}
	for period, rows := range out {
		out[period] = sums(rows)
	}
	return out
}

// keys returns the partitions of a join: those of all inputs, or those of any.
func (j job) keys(inputs []table) (keys []string) {
	for key := range inputs[0] {
		if _, both := inputs[1][key]; both || j.any {
			keys = append(keys, key)
		}
	}
	for key := range inputs[1] {
		if _, both := inputs[0][key]; !both && j.any {
			keys = append(keys, key)
		}
	}
	return keys
}

// window returns the rows of a day and of those before it, and reports whether all these days exist.
func (j job) window(in table, day string) (rows []row, complete bool) {
	complete = true
	for n := range j.last {
		have, ok := in[step(day, -n)]
		rows, complete = append(rows, have...), complete && ok
	}
	return rows, complete
}

// kept returns the rows that pass the job's `where`.
func (j job) kept(rows []row) []row {
	kept := []row{}
	for _, r := range rows {
		byKey := len(j.whereKeys) == 0 || slices.Contains(j.whereKeys, r.k)
		byNumber := len(j.whereNumbers) == 0 || slices.Contains(j.whereNumbers, float64(r.n))
		if byKey && byNumber {
			kept = append(kept, r)
		}
	}
	return kept
}

func (j job) project(rows []row) []row {
	out := []row{}
	for _, r := range j.kept(rows) {
		out = append(out, row{r.k, r.n*j.factor + j.offset, r.h})
	}
	return out
}

// sums returns a row for each key.
func sums(rows []row) []row {
	found := map[string]row{}
	for _, r := range rows {
		s, ok := found[r.k]
		if !ok {
			s = row{r.k, 0, r.h}
		}
		found[r.k] = row{r.k, s.n + r.n, max(s.h, r.h)}
	}
	out := []row{}
	for _, r := range found {
		out = append(out, r)
	}
	return out
}

func join(left, right []row) []row {
	out := []row{}
	for _, a := range left {
		for _, b := range right {
			if a.k == b.k {
				out = append(out, row{a.k, a.n + b.n, a.h})
			}
		}
	}
	return out
}

func distinct(rows []row) []row {
	out := []row{}
	for _, r := range rows {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

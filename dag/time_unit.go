package dag

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/spelling"
)

// TimeUnit is the width of a time partition: a unit of the calendar, or so many minutes (15m) or hours (6h) that an
// hour, or a day, is a whole number of them.
//
// A partition is named by the time at which it begins on the local clock: minute and 15m 2001-01-31T05:15, hour and 6h
// 2001-01-31T06, day 2001-01-31, week 2001-W05 (ISO 8601), month 2001-01, quarter 2001-Q1, year 2001. Within a unit,
// the order of keys as text is that of time.
type TimeUnit string

// The units that have a name.
const (
	Minute  TimeUnit = "minute"
	Hour    TimeUnit = "hour"
	Day     TimeUnit = "day"
	Week    TimeUnit = "week"
	Month   TimeUnit = "month"
	Quarter TimeUnit = "quarter"
	Year    TimeUnit = "year"
)

// namedUnits are the units that have a name. Each way to write a time is the key of one of them.
var namedUnits = []TimeUnit{Minute, Hour, Day, Week, Month, Quarter, Year}

// TimeUnits are all units, the narrowest first.
var TimeUnits = []TimeUnit{
	Minute, "2m", "3m", "4m", "5m", "6m", "10m", "12m", "15m", "20m", "30m",
	Hour, "2h", "3h", "4h", "6h", "8h", "12h", Day, Week, Month, Quarter, Year,
}

// width is how wide a unit is on the clock: so many months, days or minutes. One of them is set.
type width struct{ months, days, minutes int }

func (u TimeUnit) width() width {
	switch u {
	case Day, "":
		return width{days: 1}
	case Minute:
		return width{minutes: 1}
	case Hour:
		return width{minutes: 60}
	case Week:
		return width{days: 7}
	case Month:
		return width{months: 1}
	case Quarter:
		return width{months: 3}
	case Year:
		return width{months: 12}
	}

	if count, err := strconv.Atoi(strings.TrimSuffix(string(u), "m")); err == nil {
		return width{minutes: count}
	}
	if count, err := strconv.Atoi(strings.TrimSuffix(string(u), "h")); err == nil {
		return width{minutes: 60 * count}
	}
	return width{days: 1}
}

// Minutes returns of how many minutes on the clock a partition of the unit is; 0: its days are counted, or its months.
func (u TimeUnit) Minutes() int { return u.width().minutes }

// misspelled reports whether a unit that a file states is none.
func (u TimeUnit) misspelled() bool { return u != "" && !slices.Contains(TimeUnits, u) }

// Named returns the unit whose keys look like those of u: 15m is named as minutes are, and 6h as hours are.
func (u TimeUnit) Named() TimeUnit {
	switch w := u.width(); {
	case w.minutes == 0:
		return u
	case w.minutes%60 == 0:
		return Hour
	}
	return Minute
}

// Nests reports whether every partition of an outer unit is made of several whole ones of an inner unit. Months are not
// made of weeks.
func Nests(inner, outer TimeUnit) bool {
	in, out := inner.width(), outer.width()
	switch {
	case in.months > 0:
		return out.months > in.months // 1, 3 and 12 divide each other
	case in.days > 0:
		return in.days == 1 && out != in && out.minutes == 0
	}
	return out.minutes == 0 || out.minutes > in.minutes && out.minutes%in.minutes == 0
}

// mostIn returns the most partitions of an inner unit, of a day or less, that one of an outer unit is made of.
func mostIn(inner, outer TimeUnit) int {
	longest := outer.width()
	days := longest.days + map[int]int{1: 31, 3: 92, 12: 366}[longest.months]
	switch in := inner.width(); {
	case in.months > 0:
		return longest.months / in.months
	case in.days > 0:
		return days / in.days
	default:
		return (days*24*60 + longest.minutes) / in.minutes
	}
}

// The methods below compute with the local clock, as a UTC time.

// truncate returns when the partition begins that a clock lies in.
func (u TimeUnit) truncate(clock time.Time) time.Time {
	year, month, day := clock.Date()
	switch w := u.width(); {
	case w.months > 0:
		first := int(month) - 1
		return time.Date(year, time.Month(first-first%w.months+1), 1, 0, 0, 0, 0, time.UTC)
	case w.days == 7:
		return time.Date(year, month, day-(int(clock.Weekday())+6)%7, 0, 0, 0, 0, time.UTC)
	case w.days > 0:
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	default:
		return clock.Truncate(time.Duration(w.minutes) * time.Minute) // counted from a midnight
	}
}

// step moves the beginning of a partition by n partitions.
func (u TimeUnit) step(clock time.Time, n int) time.Time {
	w := u.width()
	if w.minutes > 0 {
		return clock.Add(time.Duration(n*w.minutes) * time.Minute)
	}
	return clock.AddDate(0, n*w.months, n*w.days)
}

var unitLayouts = map[TimeUnit]string{
	Minute: "2006-01-02T15:04", Hour: "2006-01-02T15", Day: "2006-01-02", Month: "2006-01", Year: "2006",
}

// format returns the key of the partition that begins at a clock.
func (u TimeUnit) format(clock time.Time) string {
	switch u {
	case Week:
		year, week := clock.ISOWeek()
		return fmt.Sprintf("%04d-W%02d", year, week)
	case Quarter:
		return fmt.Sprintf("%04d-Q%d", clock.Year(), (int(clock.Month())+2)/3)
	}
	return clock.Format(unitLayouts[u.Named()])
}

// KeyOf returns the key of the partition that a local time lies in, given as a UTC time.
func (u TimeUnit) KeyOf(clock time.Time) string { return u.format(u.truncate(clock)) }

// parse returns the clock at which the partition of a key begins.
func (u TimeUnit) parse(key string) (clock time.Time, err error) {
	var year, part int
	switch u {
	case Week:
		if _, err = fmt.Sscanf(key, "%4d-W%2d", &year, &part); err == nil {
			// The fourth of January is always in week 1.
			clock = u.step(u.truncate(time.Date(year, 1, 4, 0, 0, 0, 0, time.UTC)), part-1)
		}
	case Quarter:
		if _, err = fmt.Sscanf(key, "%4d-Q%1d", &year, &part); err == nil {
			clock = u.step(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), part-1)
		}
	default:
		clock, err = time.Parse(unitLayouts[u.Named()], key)
	}

	if err != nil || clock.Year() < 1 || u.KeyOf(clock) != key {
		example := u.KeyOf(time.Date(2001, 1, 31, 5, 0, 0, 0, time.UTC))
		return time.Time{}, fault.New(fault.Invalid, "%q is not %s such as %s", key, u.one(), example)
	}
	return clock, nil
}

// adjective returns the unit as it stands before a noun: day, 15-minute.
func (u TimeUnit) adjective() string {
	if count, unit := u.counted(); count > 0 {
		return fmt.Sprintf("%d-%s", count, unit)
	}
	return string(u)
}

// noun returns what a partition of the unit is called: day, span of 15 minutes.
func (u TimeUnit) noun() string {
	if count, unit := u.counted(); count > 0 {
		return fmt.Sprintf("span of %d %ss", count, unit)
	}
	return string(u)
}

// one returns the noun with its article.
func (u TimeUnit) one() string {
	if u == Hour {
		return "an hour"
	}
	return "a " + u.noun()
}

// many returns the noun in the plural.
func (u TimeUnit) many() string {
	if count, _ := u.counted(); count > 0 {
		return "spans" + strings.TrimPrefix(u.noun(), "span")
	}
	return string(u) + "s"
}

// counted returns of how many minutes or hours a unit without a name is; 0: it has a name.
func (u TimeUnit) counted() (count int, of TimeUnit) {
	switch w := u.width(); {
	case w.minutes == 0 || u == u.Named():
		return 0, ""
	case u.Named() == Hour:
		return w.minutes / 60, Hour
	default:
		return w.minutes, Minute
	}
}

// countedUnit matches a number of some unit of time, as people write it.
var countedUnit = late.Pattern(`^(\d{1,6}) *(m|min|minute|h|hr|hour|d|day|w|week|month|quarter|y|year)s?$`)

// adverbs are what people write in place of a unit.
var adverbs = map[string]TimeUnit{
	"minutely": Minute, "hourly": Hour, "daily": Day, "weekly": Week, "monthly": Month, "quarterly": Quarter,
	"yearly": Year, "annually": Year, "annual": Year,
}

// unitMeant returns the unit that a text stands for; empty: it stands for none.
func unitMeant(text string) TimeUnit {
	text = strings.ToLower(text)
	m := countedUnit.FindStringSubmatch(text)
	if m == nil {
		if unit := TimeUnit(strings.TrimSuffix(text, "s")); slices.Contains(namedUnits, unit) {
			return unit
		}
		return adverbs[text]
	}

	count, _ := strconv.Atoi(m[1]) // at most six digits
	short := map[string]TimeUnit{"m": Minute, "min": Minute, "h": Hour, "hr": Hour, "d": Day, "w": Week, "y": Year}
	of := cmp.Or(short[m[2]], TimeUnit(m[2])).width()
	meant := width{count * of.months, count * of.days, count * of.minutes}
	if meant.minutes == 24*60 {
		meant = Day.width()
	}
	if at := slices.IndexFunc(TimeUnits, func(u TimeUnit) bool { return u.width() == meant }); at >= 0 {
		return TimeUnits[at]
	}
	return ""
}

// insteadOfUnit says what to write in place of a text that is no unit.
func insteadOfUnit(text string) string {
	if unit := unitMeant(text); unit != "" {
		return fmt.Sprintf("write %s", unit)
	}
	if unit := spelling.Nearest(text, texts(namedUnits)); unit != "" && !countedUnit.MatchString(text) {
		return fmt.Sprintf("did you mean %q?", unit)
	}

	between := func(first, last TimeUnit) string {
		from, to := slices.Index(TimeUnits, first), slices.Index(TimeUnits, last)
		return strings.Join(texts(TimeUnits[from:to+1]), ", ")
	}
	m := countedUnit.FindStringSubmatch(text)
	if m != nil && strings.ContainsAny(m[2][:1], "mh") && m[2] != "month" {
		return fmt.Sprintf("they must divide an hour or a day evenly: %s; %s",
			between("2m", "30m"), between("2h", "12h"))
	}
	return fmt.Sprintf("use %s, minutes such as 15m or hours such as 6h", strings.Join(texts(namedUnits), ", "))
}

// texts returns units as they are written.
func texts(units []TimeUnit) []string {
	all := make([]string, len(units))
	for i, u := range units {
		all[i] = string(u)
	}
	return all
}

package textfile

import (
	"fmt"
	"time"
)

// moment is a date, a time of day, or both, as a text has them.
type moment struct {
	days   int64 // since 1970-01-01
	micros int64 // since midnight
	date   bool
	time   bool
	zone   bool  // the text names an offset from UTC
	offset int64 // in microseconds
}

const (
	second = int64(1_000_000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// parseMoment reads ISO 8601: a date, a time, or a date with a time behind a T or a space, and maybe an offset. A
// fraction of a second may have more than six digits only if the further ones are zeros.
func parseMoment(text []byte) (m moment, ok bool) {
	rest := text
	if m.days, rest, m.date = parseDate(rest); m.date {
		if len(rest) == 0 {
			return m, true
		}
		if rest[0] != 'T' && rest[0] != ' ' {
			return m, false
		}
		rest = rest[1:]
	}

	m.micros, rest, m.time = parseTime(rest)
	if !m.time || len(rest) == 0 {
		return m, m.time
	}
	m.offset, m.zone = parseZone(rest)
	return m, m.zone
}

// putForward is why there is no such time in a zone.
const putForward = "clocks were put forward"

// instant returns the microseconds since 1970 in UTC. A moment that names no offset is one of the zone.
func (m moment) instant(zone *time.Location) (int64, error) {
	micros := m.days*day + m.micros
	if m.zone {
		return micros - m.offset, nil
	}
	local := time.UnixMicro(micros).UTC()
	year, month, of := local.Date()
	at := time.Date(year, month, of, local.Hour(), local.Minute(), local.Second(), local.Nanosecond(), zone)
	if h, mi, s := at.Clock(); h != local.Hour() || mi != local.Minute() || s != local.Second() {
		return 0, fmt.Errorf("is no time in %s: %s", zone, putForward)
	}
	return at.UnixMicro(), nil
}

// digits reads a number of exactly n digits at the beginning of a text.
func digits(text []byte, n int) (value int64, rest []byte, ok bool) {
	if len(text) < n {
		return 0, text, false
	}
	for _, c := range text[:n] {
		if !isDigit(c) {
			return 0, text, false
		}
		value = value*10 + int64(c-'0')
	}
	return value, text[n:], true
}

// after reads a number of n digits behind a sign.
func after(sign byte, text []byte, n int) (value int64, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != sign {
		return 0, text, false
	}
	value, rest, ok = digits(text[1:], n)
	if !ok {
		return 0, text, false
	}
	return value, rest, true
}

func parseDate(text []byte) (days int64, rest []byte, ok bool) {
	year, rest, ok1 := digits(text, 4)
	month, rest, ok2 := after('-', rest, 2)
	of, rest, ok3 := after('-', rest, 2)
	if !ok1 || !ok2 || !ok3 {
		return 0, text, false
	}
	days, ok = daysOf(year, month, of)
	if !ok {
		return 0, text, false
	}
	return days, rest, true
}

// daysOf counts the days from 1970-01-01 to a day of the Gregorian calendar.
func daysOf(year, month, of int64) (int64, bool) {
	if month < 1 || month > 12 || of < 1 || of > 31 {
		return 0, false
	}
	t := time.Date(int(year), time.Month(month), int(of), 0, 0, 0, 0, time.UTC)
	return t.Unix() / (24 * 60 * 60), int64(t.Day()) == of && t.Unix()%(24*60*60) == 0
}

func parseTime(text []byte) (micros int64, rest []byte, ok bool) {
	h, rest, ok1 := digits(text, 2)
	m, rest, ok2 := after(':', rest, 2)
	if !ok1 || !ok2 || h > 23 || m > 59 {
		return 0, text, false
	}
	micros = h*hour + m*minute
	s, behind, ok := after(':', rest, 2)
	if !ok {
		return micros, rest, true
	}
	if s > 59 {
		return 0, text, false
	}
	micros, rest = micros+s*second, behind

	if len(rest) > 0 && rest[0] == '.' {
		fraction, unit, n := rest[1:], second/10, 0
		for ; n < len(fraction) && isDigit(fraction[n]); n++ {
			if unit == 0 && fraction[n] != '0' {
				return 0, text, false
			}
			micros += unit * int64(fraction[n]-'0')
			unit /= 10
		}
		if n == 0 {
			return 0, text, false
		}
		rest = fraction[n:]
	}
	return micros, rest, true
}

// parseZone reads Z, UTC, or an offset such as +01, +01:30 or -0800.
func parseZone(text []byte) (micros int64, ok bool) {
	if text[0] == ' ' {
		text = text[1:]
	}
	switch string(text) {
	case "Z", "z", "UTC":
		return 0, true
	case "":
		return 0, false
	}

	sign := text[0]
	h, rest, ok := after(sign, text, 2)
	if !ok || sign != '+' && sign != '-' || h > 15 {
		return 0, false
	}
	var m int64
	if len(rest) > 0 {
		if rest[0] == ':' {
			rest = rest[1:]
		}
		if m, rest, ok = digits(rest, 2); !ok || m > 59 || len(rest) > 0 {
			return 0, false
		}
	}
	micros = h*hour + m*minute
	if sign == '-' {
		micros = -micros
	}
	return micros, true
}

// fromTime returns the moment that a declared format gave.
func fromTime(t time.Time, zone bool) moment {
	_, offset := t.Zone()
	local := t.Unix() + int64(offset)
	days := local / (24 * 60 * 60)
	if local%(24*60*60) < 0 {
		days--
	}
	micros := (local-days*24*60*60)*second + int64(t.Nanosecond())/1000
	return moment{days: days, micros: micros, date: true, time: true, zone: zone, offset: int64(offset) * second}
}

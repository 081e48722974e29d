package textfile

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/google/uuid"
	"github.com/itchyny/timefmt-go"
)

// value is a value of some type, or NULL.
type value struct {
	null    bool
	i       int64 // of Int, Date (days), Time, Timestamp and Instant (microseconds); Bool: 1 for true
	u       uint64
	f       float64
	decimal decimal128.Num
	text    []byte
	parts   []value // of List and Struct
}

var null = value{null: true}

// formats are what a declaration says of how values are written.
type formats struct {
	point          byte // before the fraction of a number
	date, time     string
	zone           *time.Location // of times without an offset where an instant is declared
	nullText       string
	nullIsDeclared bool
}

func (d Declaration) formats(zone *time.Location) formats {
	f := formats{point: '.', date: d.DateFormat, time: d.TimestampFormat, zone: zone}
	if d.DecimalSeparator != "" {
		f.point = d.DecimalSeparator[0]
	}
	if d.NullString != nil {
		f.nullText, f.nullIsDeclared = *d.NullString, true
	}
	return f
}

// isNull reports whether a field of a CSV file stands for NULL: it is the declared text, or empty and not quoted. An
// empty value that is not text is NULL however it is written.
func (f formats) isNull(v field, t Type) bool {
	if f.nullIsDeclared && f.nullText != "" {
		if string(v.text) == f.nullText {
			return true
		}
		return len(v.text) == 0 && t.Kind != Text && t.Kind != JSON
	}
	return len(v.text) == 0 && (!v.quoted || t.Kind != Text)
}

var errNot = errors.New("is no value of the type")

// parse reads a value of a type from its text, exactly.
func (f formats) parse(text []byte, t Type) (v value, err error) {
	if t.Kind == Text {
		v.text = text
		return v, nil
	}

	trimmed := bytes.TrimSpace(text)
	ok := false
	switch t.Kind {
	case Open:
		return v, errNot // a caller settles the type first
	case Bool:
		v.i, ok = parseBool(trimmed)
	case Int, Decimal, Float:
		return f.parseNumber(trimmed, t)
	case Date, Time, Timestamp, Instant:
		return f.parseMoment(trimmed, t)
	case UUID:
		var id uuid.UUID
		if len(trimmed) == 36 {
			id, err = uuid.ParseBytes(trimmed)
			ok, v.text = err == nil, id[:]
		}
	case JSON:
		v.text, ok = compactJSON(trimmed)
	default:
		return v, fmt.Errorf("cannot be read as %s from CSV", t)
	}
	if !ok {
		return v, fmt.Errorf("is no %s", t)
	}
	return v, nil
}

// notFinite reads what a DOUBLE can be besides numbers.
func notFinite(text []byte) (float64, bool) {
	switch strings.ToLower(string(text)) {
	case "nan":
		return math.NaN(), true
	case "inf", "+inf", "infinity", "+infinity":
		return math.Inf(1), true
	case "-inf", "-infinity":
		return math.Inf(-1), true
	}
	return 0, false
}

func parseBool(text []byte) (int64, bool) {
	switch strings.ToLower(string(text)) {
	case "true", "t", "1":
		return 1, true
	case "false", "f", "0":
		return 0, true
	}
	return 0, false
}

func (f formats) parseNumber(text []byte, t Type) (v value, err error) {
	n, ok := parseNumber(text, f.point)
	if !ok {
		if t.Kind == Float {
			if v.f, ok = notFinite(text); ok {
				return v, nil
			}
		}
		return v, fmt.Errorf("is no %s", t)
	}

	switch t.Kind {
	case Int:
		if v.i, v.u, ok = n.integer(t.Bits, t.Unsigned); !ok {
			return v, fmt.Errorf("does not fit %s", t)
		}
	case Decimal:
		if v.decimal, ok = n.decimal(t.Precision, t.Scale); !ok {
			return v, fmt.Errorf("does not fit %s", t)
		}
	default:
		if v.f, ok = n.float(text, f.point, t.Bits); !ok {
			return v, fmt.Errorf("is not held exactly by %s", t)
		}
	}
	return v, nil
}

func (f formats) parseMoment(text []byte, t Type) (v value, err error) {
	m, ok := f.moment(text, t)
	if !ok {
		return v, fmt.Errorf("is no %s", t)
	}

	fits := m.date && !m.zone
	switch t.Kind {
	case Date:
		v.i, fits = m.days, fits && m.micros == 0
	case Time:
		v.i, fits = m.micros, !m.date && !m.zone
	case Timestamp:
		v.i = m.days*day + m.micros
	default:
		fits = m.date
		v.i, err = m.instant(f.zone)
	}
	if !fits {
		return v, fmt.Errorf("does not fit %s", t)
	}
	return v, err
}

// moment reads a date or a time by the declared format of its type, or by ISO 8601.
func (f formats) moment(text []byte, t Type) (moment, bool) {
	format := f.time
	if t.Kind == Date {
		format = f.date
	}
	if format == "" || t.Kind == Time {
		return parseMoment(text)
	}
	at, err := timefmt.Parse(string(text), format)
	if err != nil || !isWritten(at, text, format) {
		return moment{}, false
	}
	return fromTime(at, strings.Contains(format, "%z") || strings.Contains(format, "%Z")), true
}

// isWritten reports whether a time is the one that a text names: parsing makes 3 March of 31 February, the first of
// the next year of a day 366 too many, and another minute of a second 60. Only then do the digits of both differ, apart
// from zeros, which formats may pad with.
func isWritten(at time.Time, text []byte, format string) bool {
	const week = 7 // of a year without a week 53, it becomes the first week of the next
	if at.Day() > week && at.Second() != 0 {
		return true
	}
	return digitsOf([]byte(timefmt.Format(at, format))) == digitsOf(text)
}

func digitsOf(text []byte) string {
	var digits []byte
	for _, c := range text {
		if isDigit(c) && c != '0' {
			digits = append(digits, c)
		}
	}
	return string(digits)
}

package chart

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// IsNumber reports whether the values of a column are numbers.
func IsNumber(c Column) bool {
	name, _, _ := strings.Cut(c.Type, "(")
	return slices.Contains([]string{"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT",
		"UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"}, name) && !strings.HasSuffix(c.Type, "]")
}

// isTime reports whether they are moments; what is neither is text.
func isTime(c Column) bool {
	return (c.Type == "DATE" || strings.HasPrefix(c.Type, "TIMESTAMP")) && !strings.HasSuffix(c.Type, "]")
}

func isText(c Column) bool { return !IsNumber(c) && !isTime(c) }

// point is a row.
type point struct {
	x      float64 // a number, or seconds since 1970
	label  string  // of a category
	y      float64
	series string
	title  string
}

// data are the rows that can be drawn.
type data struct {
	points   []point
	left     int // rows that cannot be
	time     bool
	dates    bool // without a time of day
	category bool
	zone     bool
}

func read(columns []Column, rows [][]any, s Spec) data {
	at := func(name string) int { return slices.IndexFunc(columns, func(c Column) bool { return c.Name == name }) }
	x, y, by := at(s.X), at(s.Y), at(s.By)
	column := columns[x]
	d := data{time: isTime(column), dates: column.Type == "DATE", zone: strings.HasSuffix(column.Type, "TIME ZONE")}
	d.category = s.Kind == Bar || isText(column)

	for _, row := range rows {
		p := point{label: label(row[x])}
		ok := true
		if !d.category {
			p.x, ok = placed(row[x], d.time)
		}
		value, hasNumber := number(row[y])
		if !ok || !hasNumber {
			d.left++
			continue
		}

		p.y, p.title = value, label(row[x])+": "+label(row[y])
		if by >= 0 {
			p.series = label(row[by])
			p.title = p.series + ", " + p.title
		}
		d.points = append(d.points, p)
	}
	return d
}

// label returns a value as text.
func label(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case string:
		return v
	case float64:
		return exact(v)
	case json.RawMessage:
		return string(v)
	}
	return fmt.Sprint(v)
}

// number returns a finite number.
func number(v any) (f float64, ok bool) {
	var err error
	switch v := v.(type) {
	case float64:
		f = v
	case json.Number:
		f, err = v.Float64()
	case string:
		f, err = strconv.ParseFloat(v, 64)
	default:
		return 0, false
	}
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

// placed returns the place of a value on an axis.
func placed(v any, isTime bool) (float64, bool) {
	if !isTime {
		return number(v)
	}
	text, _ := v.(string)
	for _, layout := range []string{"2006-01-02", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07",
		"2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano, "2006-01-02T15:04:05.999999999"} {
		if t, err := time.Parse(layout, text); err == nil {
			return float64(t.Unix()) + float64(t.Nanosecond())/1e9, true
		}
	}
	return 0, false
}

// exact writes a number with all of its digits.
func exact(f float64) string {
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// short writes a number for an axis whose ticks are step apart.
func short(f, step float64) string {
	size := max(math.Abs(f), math.Abs(step))
	for _, unit := range []struct {
		from float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if size >= unit.from && size < 1e15 {
			divide := unit.from
			if unit.name == "k" {
				divide = 1e3
			}
			return digits(f/divide, step/divide) + onlyIf(f != 0, unit.name)
		}
	}

	if size >= 1e15 || size != 0 && size < 1e-4 {
		return strconv.FormatFloat(f, 'g', 3, 64)
	}
	return digits(f, step)
}

// digits writes a number with as many digits as its step needs.
func digits(f, step float64) string {
	places := 0
	if step > 0 && step < 1 {
		places = min(int(math.Ceil(-math.Log10(step)-1e-9)), 8)
	}
	text := strconv.FormatFloat(f, 'f', places, 64)
	if strings.Trim(text, "-0.") == "" {
		return "0"
	}
	return text
}

package alertevaluate

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

func number(i int) string { return strconv.Itoa(i) }

// mostKeys is how many keys of a rule may fire at an evaluation.
const mostKeys = 20_000

// found is what an evaluation found for the keys for which conditions hold.
type found map[id]finding

type finding struct {
	value   *float64 // nil: it has none
	summary string
	labels  map[string]string
}

// at returns the time of an evaluation; ok is false if there are no rows to tell it.
func (c config) at(ctx context.Context, t *operators.Task) (at time.Time, ok bool, err error) {
	if t.Partition != nil && t.Partition.End != nil {
		return t.Partition.End.UTC(), true, nil
	}
	if len(t.InputFiles[0]) == 0 {
		return at, false, nil
	}

	rows, err := t.Ask(ctx, fmt.Sprintf("SELECT epoch_us(max(moment) FILTER (WHERE isfinite(moment))) "+
		"FROM (SELECT %s::TIMESTAMPTZ AS moment FROM %s)", sqltext.Quote(c.Time), sqltext.Quote(t.Inputs[0].As)), 1)
	if err != nil || len(rows) == 0 || rows[0][0] == nil {
		return at, false, err
	}
	var us int64
	if _, err := fmt.Sscan(fmt.Sprint(rows[0][0]), &us); err != nil {
		return at, false, fmt.Errorf("an engine says that a time is %v: %w", rows[0][0], err)
	}
	at = time.UnixMicro(us).UTC()
	if at.Year() < 1 || at.Year() > 9999 {
		return at, false, operators.Permanent(fault.New(fault.Invalid, "column %q has a time in the year %d: years go "+
			"from 1 to 9999", c.Time, at.Year()))
	}
	return at, true, nil
}

// look adds the keys for which the rule's condition holds.
func (r rule) look(ctx context.Context, t *operators.Task, to found) error {
	if len(t.InputFiles[0]) == 0 {
		return nil
	}
	rows, err := t.Ask(ctx, r.query(t.Inputs[0].As), mostKeys)
	if fault.Is(err, fault.TooLarge) {
		return operators.Permanent(fault.New(fault.TooLarge,
			"rule %s: more than %d keys fire at once, or their texts are too long", r.Name, mostKeys).
			WithHint("let fewer fire, by another `condition` or a `key` of fewer columns"))
	}
	if err != nil {
		return fmt.Errorf("rule %s: %w", r.Name, err)
	}

	for _, row := range rows {
		which, f, err := r.find(row)
		if err != nil {
			return operators.Permanent(fmt.Errorf("rule %s: %w", r.Name, err))
		}
		if _, known := to[which]; !known {
			to[which] = f
		}
	}
	return nil
}

// find reads a row of the rule's query.
func (r rule) find(row []any) (which id, f finding, err error) {
	reads := r.reads()
	valueOf := func(column string) any {
		return row[1+slices.IndexFunc(reads, func(read string) bool { return sqltext.Same(read, column) })]
	}
	for _, column := range r.keyColumns() {
		if valueOf(column) == nil {
			return which, f, fault.New(fault.Invalid, "the condition holds for a row without %q, which is of the key",
				column).WithHint("add `AND %s IS NOT NULL` to the condition", column)
		}
	}
	text := func(column string) string {
		if value := valueOf(column); value != nil {
			return plain(fmt.Sprint(value))
		}
		return ""
	}

	which = id{r.Name, r.key.Fill(text)}
	if len(r.columns) == 1 {
		which.key = text(r.columns[0])
	} else if len(r.columns) > 1 {
		parts := make([]string, len(r.columns))
		for i, column := range r.columns {
			parts[i] = text(column)
		}
		list, err := json.Marshal(parts)
		if err != nil {
			return which, f, err
		}
		which.key = string(list)
	}
	if len(which.key) > mostKey {
		return which, f, fault.New(fault.TooLarge, "a key has %d bytes; %d are allowed", len(which.key), mostKey)
	}

	f.summary, f.labels = short(r.summary.Fill(text)), map[string]string{}
	for name, label := range r.labels {
		f.labels[name] = short(label.Fill(text))
	}
	if row[0] != nil {
		value, err := strconv.ParseFloat(fmt.Sprint(row[0]), 64)
		if err == nil && !math.IsNaN(value) && !math.IsInf(value, 0) {
			f.value = &value
		}
	}
	return which, f, nil
}

// plain returns a text without NUL characters, which no operator state can have.
func plain(text string) string { return strings.ReplaceAll(text, "\x00", "\uFFFD") }

// short returns the beginning of a text that is too long to be told.
func short(text string) string {
	if len(text) <= mostText {
		return text
	}
	end := mostText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

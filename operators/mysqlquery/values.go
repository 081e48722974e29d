package mysqlquery

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
)

// mover makes the values of a row ready to be written.
type mover struct {
	columns []column
	table   pgcopy.Table
	row     [][]byte
	space   [][]byte // of the values of each column, used again for each row
}

func newMover(columns []column) (m mover, err error) {
	m = mover{columns: columns, row: make([][]byte, len(columns)), space: make([][]byte, len(columns))}
	m.table, err = pgcopy.NewTable(named(columns))
	return m, err
}

// move returns a row as a pgcopy.RawWriter takes it. It stays until the next call.
func (m *mover) move(from []driver.Value) ([][]byte, error) {
	for i, c := range m.columns {
		value := from[c.from]
		if value == nil {
			m.row[i] = nil
			continue
		}
		moved, err := m.value(i, value)
		if err != nil {
			return nil, c.refused(value, err)
		}
		if moved == nil {
			moved = []byte{} // nil stands for NULL
		}
		m.row[i] = moved
	}
	return m.row, nil
}

var errNotText = errors.New("is no text in UTF-8")

// value returns a value that is not NULL in the binary format of its column.
func (m *mover) value(i int, v driver.Value) (moved []byte, err error) {
	c := m.columns[i]
	if c.class == bytes {
		return v.([]byte), nil
	}
	written, err := c.written(v)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(written) {
		return nil, errNotText
	}
	if c.of.Kind == textfile.Text {
		return written, nil
	}
	if c.class == text && !canonical(written, c.of.Kind) {
		return nil, fmt.Errorf("does not fit %s", c.Type)
	}

	exact, err := c.exactly(v, written)
	if err != nil {
		return nil, err
	}
	m.space[i], err = m.table.Append(m.space[i][:0], i, exact)
	return m.space[i], err
}

// written returns a value as a text that tells it from all others of its type.
func (c column) written(v driver.Value) ([]byte, error) {
	switch v := v.(type) {
	case int64:
		if c.class == year && c.of.Kind == textfile.Text {
			return fmt.Appendf(nil, "%04d", v), nil
		}
		return strconv.AppendInt(nil, v, 10), nil
	case float32:
		return strconv.AppendFloat(nil, float64(v), 'g', -1, 32), nil
	case float64:
		return strconv.AppendFloat(nil, v, 'g', -1, 64), nil
	case []byte:
		if c.class != bits {
			return v, nil
		}
		var n uint64
		for _, b := range v { // 8 at most
			n = n<<8 | uint64(b)
		}
		return strconv.AppendUint(nil, n, 10), nil
	}
	return nil, fmt.Errorf("came as %T", v)
}

// exactly returns a value as the type of its column, in the form that package pgcopy takes.
func (c column) exactly(v driver.Value, written []byte) (any, error) {
	if c.class == float && c.of.Kind == textfile.Float {
		return c.floating(v)
	}
	return c.of.Exactly(written)
}

// floating moves between the two sizes of floating-point numbers.
func (c column) floating(v driver.Value) (any, error) {
	switch v := v.(type) {
	case float32:
		if c.of.Bits == 32 {
			return v, nil
		}
		return float64(v), nil
	case float64:
		if c.of.Bits == 64 {
			return v, nil
		}
		if float64(float32(v)) == v {
			return float32(v), nil
		}
	}
	return nil, fmt.Errorf("does not fit %s", c.Type)
}

// canonicals are the texts that are the only ones of their value.
var canonicals = map[textfile.Kind]*late.Regexp{
	textfile.Bool:      late.Pattern(`^(true|false)$`),
	textfile.Int:       late.Pattern(`^(0|-?[1-9][0-9]*)$`),
	textfile.Decimal:   late.Pattern(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`),
	textfile.Float:     late.Pattern(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?$`),
	textfile.Date:      late.Pattern(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`),
	textfile.Time:      late.Pattern(`^[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$`),
	textfile.Timestamp: late.Pattern(`^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$`),
	textfile.UUID:      late.Pattern(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`),
}

// canonical reports whether a text is one that a type could be written as: 007 is no number, it is a text.
func canonical(written []byte, kind textfile.Kind) bool {
	form := canonicals[kind]
	return form == nil || form.Match(written)
}

// refused returns the error of a value that its column does not hold, with what to do about it.
func (c column) refused(v driver.Value, err error) error {
	quoted := sqltext.Literal
	said, _ := v.([]byte)

	switch {
	case (c.class == date || c.class == datetime || c.class == instant) && partial(said):
		return fault.New(fault.Invalid, "column %q has %s, which is no date", c.Name, said).
			WithHint("write NULLIF(%[1]s, %[2]s) AS %[1]s in the query, or declare `types: { %[1]s: VARCHAR }` to "+
				"have the text", c.Name, quoted(string(said)))
	case c.class == span:
		return fault.New(fault.Invalid, "column %q has %s, which is no time of day", c.Name, said).
			WithHint("write TIME_TO_SEC(%[1]s) AS %[1]s in the query, or declare `types: { %[1]s: VARCHAR }` to have "+
				"the text", c.Name)
	case errors.Is(err, errNotText):
		return fault.New(fault.Invalid, "column %q has a value that %w", c.Name, err)
	case c.class == decimal && strings.HasPrefix(c.Type, "DECIMAL"):
		return fault.New(fault.Invalid, "column %q has a value that does not fit %s", c.Name, c.Type).
			WithHint("declare one that holds it, as in `types: { %s: \"DECIMAL(38,9)\" }`", c.Name)
	}
	return fault.New(fault.Invalid, "column %q has a value that does not fit %s", c.Name, c.Type)
}

// partial reports whether a date has no year, month or day, as MySQL allows, or is not in the calendar.
func partial(written []byte) bool {
	if len(written) < 10 {
		return false
	}
	_, err := (textfile.Type{Kind: textfile.Date}).Exactly(written[:10])
	return err != nil || strings.HasPrefix(string(written), "0000")
}

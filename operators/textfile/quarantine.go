package textfile

// quarantineColumns are those of a file of bad rows.
var quarantineColumns = []Column{{"file", "VARCHAR"}, {"line", "BIGINT"}, {"column", "VARCHAR"}, {"value", "VARCHAR"},
	{"reason", "VARCHAR"}, {"row", "VARCHAR"}}

// Quarantine is a Parquet file of rows that do not fit.
type Quarantine struct{ w *writer }

// NewQuarantine begins the file.
func NewQuarantine(target string) (*Quarantine, error) {
	w, err := newWriter(target, quarantineColumns)
	return &Quarantine{w}, err
}

// Add adds a row to the file.
func (q *Quarantine) Add(b Bad) error {
	text := func(s string) value {
		if s == "" {
			return null
		}
		return value{text: []byte(s)}
	}
	return q.w.append([]value{text(b.File), {i: b.Line}, text(b.Column), text(b.Value), text(b.Reason), text(b.Row)})
}

// Close ends the file.
func (q *Quarantine) Close() error { return q.w.close() }

package footer

import (
	"io"
	"os"
)

// Zoned is a part of a column that has instants in nanoseconds. DuckDB reads them as TIMESTAMP WITH TIME ZONE, which
// has microseconds, and cuts the rest off without an error.
type Zoned struct {
	Column int   // index of the column
	at     int64 // of the byte in the file that says that they are instants
}

// CopyAsLocal copies a file of which Read found instants in nanoseconds, and marks these as local times: DuckDB reads
// those as TIMESTAMP_NS, with all digits.
func (f Footer) CopyAsLocal(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer target.Close()

	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	var field [1]byte
	for _, z := range f.Zoned {
		if _, err := source.ReadAt(field[:], z.at); err != nil {
			return err
		}
		field[0] = field[0]&^typeOfField | typeFalse
		if _, err := target.WriteAt(field[:], z.at); err != nil {
			return err
		}
	}
	return target.Close()
}

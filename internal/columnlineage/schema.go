package columnlineage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

const schemaForm = `write {"TABLE": {"COLUMN": "TYPE", …}, …}, the columns in their order`

// ReadSchema reads the columns of tables, by the tables' names, from JSON: an object of tables, each an object of types
// by columns, whose order counts.
func ReadSchema(text []byte) (map[string][]relations.Column, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	wrong := func(format string, args ...any) error {
		line := 1 + bytes.Count(text[:min(int(decoder.InputOffset()), len(text))], []byte("\n"))
		return fault.New(fault.Invalid, "line %d: %s", line, fmt.Sprintf(format, args...)).WithHint(schemaForm)
	}
	tables := map[string][]relations.Column{}
	seen := map[string]bool{}
	err := members(decoder, func(table string) error {
		switch {
		case table == "":
			return wrong("a table has no name")
		case seen[sqltext.Lower(table)]:
			return wrong("the table %q is there twice; case does not tell names apart", table)
		}
		seen[sqltext.Lower(table)] = true

		had := map[string]bool{}
		err := members(decoder, func(column string) error {
			var kind string
			switch err := decoder.Decode(&kind); {
			case err != nil || strings.TrimSpace(kind) == "":
				return wrong("the type of %s.%s is not a text such as \"BIGINT\"", table, column)
			case column == "" || had[sqltext.Lower(column)]:
				return wrong("the table %q has the column %q twice, or one without a name", table, column)
			}
			had[sqltext.Lower(column)] = true
			tables[table] = append(tables[table], relations.Column{Name: column, Type: kind})
			return nil
		})
		if errors.Is(err, errNoObject) {
			return wrong("the table %q is not an object of columns", table)
		}
		if err == nil && len(tables[table]) == 0 {
			return wrong("the table %q has no columns", table)
		}
		return err
	})

	if errors.Is(err, errNoObject) {
		return nil, wrong("it is not an object of tables")
	}
	if _, known := errors.AsType[*fault.Error](err); err != nil && !known {
		return nil, wrong("it is not JSON: %s", err)
	}
	if _, more := decoder.Token(); err == nil && !errors.Is(more, io.EOF) {
		return nil, wrong("something follows the object of tables")
	}
	return tables, err
}

var errNoObject = errors.New("not an object")

// members reads an object, and calls each for the name of each member, whose value each reads.
func members(decoder *json.Decoder, each func(name string) error) error {
	begin, err := decoder.Token()
	if err != nil {
		return err
	}
	if begin != json.Delim('{') {
		return errNoObject
	}

	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string)
		if err := each(name); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}

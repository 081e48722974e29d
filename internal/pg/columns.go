package pg

import "reflect"

// Columns turns rows, which are structs with exported fields, into the arrays that unnest takes: one for each field, in
// the order of the fields. A statement that takes many arrays names its columns once in the struct and once in the
// unnest:
//
//	unnest($1::uuid[], $2::text[]) AS w(id, name)
func Columns[T any](rows []T) []any {
	row := reflect.TypeFor[T]()
	columns := make([]reflect.Value, row.NumField())
	for n := range columns {
		columns[n] = reflect.MakeSlice(reflect.SliceOf(row.Field(n).Type), len(rows), len(rows))
	}
	for i := range rows {
		v := reflect.ValueOf(&rows[i]).Elem()
		for n := range columns {
			columns[n].Index(i).Set(v.Field(n))
		}
	}

	args := make([]any, len(columns))
	for n, c := range columns {
		args[n] = c.Interface()
	}
	return args
}

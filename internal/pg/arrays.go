package pg

import (
	"database/sql/driver"
	"encoding/binary"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// registerArrays has the arrays of which statements for many rows consist encoded as a whole: of UUIDs, times and
// texts, and of pointers to them, of which nil is NULL. pgx boxes each element, and converts pointers to UUIDs through
// text, which was a quarter of what a task allocated. Call it after the elements' types are registered.
func registerArrays(m *pgtype.Map) {
	registerArray(m, "_uuid", pgtype.UUIDArrayOID, pgtype.UUIDOID, appendUUID)
	registerArray(m, "_timestamptz", pgtype.TimestamptzArrayOID, pgtype.TimestamptzOID, appendTime)
	registerArray(m, "_text", pgtype.TextArrayOID, pgtype.TextOID, appendText)
}

func registerArray[T any](m *pgtype.Map, name string, oid, element uint32, add func([]byte, T) []byte) {
	of, _ := m.TypeForOID(element)
	m.RegisterType(&pgtype.Type{Name: name, OID: oid,
		Codec: arrayCodec[T]{ArrayCodec: &pgtype.ArrayCodec{ElementType: of}, add: add}})
}

// arrayCodec encodes []T and []*T itself, and slices of types whose underlying type T is, if T is text. All else is
// pgx's.
type arrayCodec[T any] struct {
	*pgtype.ArrayCodec
	add func(buf []byte, v T) []byte // appends the binary form
}

// PlanEncode implements pgtype.Codec.
func (c arrayCodec[T]) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		switch value.(type) {
		case []T:
			return encodeFunc(c.encodeValues)
		case []*T:
			return encodeFunc(c.encodePointers)
		}
		if c.ElementType.OID == pgtype.TextOID && isPlainText(reflect.TypeOf(value)) {
			return encodeFunc(c.encodeNamed)
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// encodeFunc is a pgtype.EncodePlan.
type encodeFunc func(value any, buf []byte) ([]byte, error)

func (f encodeFunc) Encode(value any, buf []byte) ([]byte, error) { return f(value, buf) }

func (c arrayCodec[T]) encodeValues(value any, buf []byte) ([]byte, error) {
	list := value.([]T)
	if list == nil {
		return nil, nil
	}
	buf = c.begin(buf, len(list))
	for _, v := range list {
		buf = c.element(buf, v)
	}
	return buf, nil
}

func (c arrayCodec[T]) encodePointers(value any, buf []byte) ([]byte, error) {
	list := value.([]*T)
	if list == nil {
		return nil, nil
	}
	buf = c.begin(buf, len(list))
	for _, v := range list {
		if v == nil {
			buf = binary.BigEndian.AppendUint32(buf, ^uint32(0)) // a length of -1 is NULL
			continue
		}
		buf = c.element(buf, *v)
	}
	return buf, nil
}

// encodeNamed encodes a slice of a type such as a status, whose values are text.
func (c arrayCodec[T]) encodeNamed(value any, buf []byte) ([]byte, error) {
	list := reflect.ValueOf(value)
	if list.IsNil() {
		return nil, nil
	}
	buf = c.begin(buf, list.Len())
	for i := range list.Len() {
		text := list.Index(i).String()
		buf = append(binary.BigEndian.AppendUint32(buf, uint32(len(text))), text...)
	}
	return buf, nil
}

// begin appends the header of an array of one dimension, whose elements may be NULL.
func (c arrayCodec[T]) begin(buf []byte, length int) []byte {
	for _, n := range []uint32{1, 1, c.ElementType.OID, uint32(length), 1} {
		buf = binary.BigEndian.AppendUint32(buf, n)
	}
	return buf
}

// element appends a value behind its length in bytes.
func (c arrayCodec[T]) element(buf []byte, v T) []byte {
	at := len(buf)
	buf = c.add(append(buf, 0, 0, 0, 0), v)
	binary.BigEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	return buf
}

// isPlainText reports whether a type is a slice of strings that nothing but their text stands for.
func isPlainText(slice reflect.Type) bool {
	if slice == nil || slice.Kind() != reflect.Slice || slice.Elem().Kind() != reflect.String {
		return false
	}
	return !slice.Elem().Implements(reflect.TypeFor[driver.Valuer]()) &&
		!slice.Elem().Implements(reflect.TypeFor[pgtype.TextValuer]())
}

func appendUUID(buf []byte, id uuid.UUID) []byte { return append(buf, id[:]...) }

func appendText(buf []byte, text string) []byte { return append(buf, text...) }

// appendTime appends the microseconds from the year 2000 to a time.
func appendTime(buf []byte, t time.Time) []byte {
	const year2000 = 946_684_800 * 1_000_000
	return binary.BigEndian.AppendUint64(buf, uint64(t.Unix()*1_000_000+int64(t.Nanosecond())/1000-year2000))
}

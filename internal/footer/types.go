package footer

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Parquet's physical types.
const (
	physicalBoolean = iota
	physicalInt32
	physicalInt64
	physicalInt96
	physicalFloat
	physicalDouble
	physicalBytes
	physicalFixed
)

// Parquet's repetitions.
const (
	repeated        = 2
	mostRepetitions = repeated
)

// The numbers of the logical types that decide something. For the others, the converted type does.
const (
	logicalDecimal   = 5
	logicalTime      = 7
	logicalTimestamp = 8
	logicalUnknown   = 11
	logicalUUID      = 14
	logicalFloat16   = 15
	logicalVariant   = 16
	logicalGeometry  = 17
	logicalGeography = 18
)

// The units of times.
const (
	millis = 1
	micros = 2
	nanos  = 3
)

// Parquet's converted types.
const (
	convertedUTF8 = iota
	convertedMap
	convertedMapKeyValue
	convertedList
	convertedEnum
	convertedDecimal
	convertedDate
	convertedTimeMillis
	convertedTimeMicros
	convertedTimestampMillis
	convertedTimestampMicros
	convertedUint8
	convertedUint16
	convertedUint32
	convertedUint64
	convertedInt8
	convertedInt16
	convertedInt32
	convertedInt64
	convertedJSON
	convertedBSON
	convertedInterval
	convertedNull = 24 // of old files
)

// plain are the types by converted type, with the physical type that each needs.
var plain = map[int32]struct {
	physical int32
	name     string
}{
	convertedDate: {physicalInt32, "DATE"}, convertedTimeMillis: {physicalInt32, "TIME"},
	convertedTimeMicros: {physicalInt64, "TIME"}, convertedTimestampMillis: {physicalInt64, "TIMESTAMP"},
	convertedTimestampMicros: {physicalInt64, "TIMESTAMP"}, convertedUint8: {physicalInt32, "UTINYINT"},
	convertedUint16: {physicalInt32, "USMALLINT"}, convertedUint32: {physicalInt32, "UINTEGER"},
	convertedUint64: {physicalInt64, "UBIGINT"}, convertedInt8: {physicalInt32, "TINYINT"},
	convertedInt16: {physicalInt32, "SMALLINT"}, convertedInt32: {physicalInt32, "INTEGER"},
	convertedInt64: {physicalInt64, "BIGINT"}, convertedInterval: {physicalFixed, "INTERVAL"},
}

// bare are the types of columns without annotations, by physical type. INT96 is Spark's and Impala's timestamp.
var bare = [...]string{physicalBoolean: "BOOLEAN", physicalInt32: "INTEGER", physicalInt64: "BIGINT",
	physicalInt96: "TIMESTAMP", physicalFloat: "FLOAT", physicalDouble: "DOUBLE", physicalBytes: "BLOB",
	physicalFixed: "BLOB"}

// asNull is the type of columns that only have NULL.
const asNull = "INTEGER"

// schema finds DuckDB's types for a file's columns.
type schema struct {
	elements   []element
	geometries map[string]bool // columns that GeoParquet declares, and whether they are in CRS84
	leaves     int

	untyped []int // columns that have no type, as they only have NULL
	zoned   []Zoned
	column  int // index of the one that is being read

	next int    // the element to read next
	top  string // the column that it belongs to
	err  error
}

// columns returns the columns of a file.
func (s *schema) columns() ([]relations.Column, error) {
	if len(s.elements) < 2 {
		return nil, fault.New(fault.Invalid, "it has no columns")
	}
	root := s.elements[0]
	if root.physical >= 0 || root.annotated(convertedList) || root.annotated(convertedMap) ||
		root.annotated(convertedMapKeyValue) || root.is(logicalVariant) {
		return nil, fault.New(fault.Invalid, "its columns are not in a plain group")
	}

	s.next = 1
	var columns []relations.Column
	names := uniqueNames{}
	for range root.children {
		if s.next >= len(s.elements) {
			return nil, fault.New(fault.Invalid, "its schema ends in the middle of a group of columns")
		}
		s.top, s.column = s.elements[s.next].name, len(columns)
		c := relations.Column{Name: names.of(s.top)}
		if e := s.elements[s.next]; e.children == 0 && (e.is(logicalUnknown) || e.annotated(convertedNull)) {
			s.untyped = append(s.untyped, len(columns))
		}
		var b strings.Builder
		s.write(&b, 1)
		if s.err != nil {
			return nil, s.err
		}
		c.Type = b.String()
		columns = append(columns, c)
	}
	if s.next != len(s.elements) {
		return nil, fault.New(fault.Invalid, "its schema has %d columns too many", len(s.elements)-s.next)
	}
	return columns, nil
}

func (e element) annotated(converted int32) bool { return e.converted == converted }
func (e element) is(logical int) bool            { return e.logical&(1<<logical) != 0 }

// fail refuses the column that is being read.
func (s *schema) fail(hint, format string, args ...any) {
	if s.err != nil {
		return
	}
	err := fault.New(fault.Invalid, "column %q: %s", shortened(s.top), fmt.Sprintf(format, args...))
	if hint != "" {
		err = err.WithHint("%s", hint)
	}
	s.err = err
}

func shortened(name string) string {
	const most = 100
	if len(name) > most {
		return strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}

// write writes the type of the next element, with all below it.
func (s *schema) write(b *strings.Builder, depth int) {
	if s.err != nil {
		return
	}
	switch {
	case s.next >= len(s.elements):
		s.fail("", "its group ends too early")
		return
	case depth > mostLevels:
		s.fail("write a flatter table", "it is nested in more than %d levels", mostLevels)
		return
	}
	this := s.next
	e := s.elements[this]
	s.next++
	switch {
	case e.repetition > mostRepetitions:
		s.fail("", "it has repetition %d, which does not exist", e.repetition)
		return
	case e.converted > convertedInterval && e.converted != convertedNull:
		s.fail("", "it has converted type %d, which does not exist", e.converted)
		return
	}

	if e.physical < 0 || e.children > 0 {
		s.writeGroup(b, this, depth)
	} else {
		s.leaves++
		b.WriteString(s.leaf(e, depth))
	}
	if e.repetition == repeated && s.err == nil && !s.isEntries(this) {
		b.WriteString("[]")
	}
}

// isEntries reports whether an element holds the keys and values of a map: it says so, or is alone in a map.
func (s *schema) isEntries(i int) bool {
	before := s.elements[i-1]
	return s.elements[i].grouped() && (s.elements[i].annotated(convertedMapKeyValue) ||
		before.annotated(convertedMap) && before.children == 1)
}

func (e element) grouped() bool { return e.physical < 0 || e.children > 0 }

// writeGroup writes the type of a group. Lists and maps are groups in groups, of which only the inner ones count.
func (s *schema) writeGroup(b *strings.Builder, this, depth int) {
	e := s.elements[this]
	wraps := e.annotated(convertedList) || e.annotated(convertedMap) || e.repetition == repeated
	switch {
	case s.isEntries(this):
		if e.children != 2 || e.repetition != repeated {
			s.fail("", "a map needs a repeated group of keys and values")
			return
		}
		b.WriteString("MAP(")
		s.write(b, depth+1)
		b.WriteString(", ")
		s.write(b, depth+1)
		b.WriteString(")")

	case e.children == 0:
		s.fail("leave it out", "it is a group without columns")
	case e.is(logicalVariant):
		var members strings.Builder
		s.writeMembers(&members, this, depth)
		b.WriteString("VARIANT")
	case e.children == 1 && wraps:
		s.write(b, depth+1)
	default:
		s.writeMembers(b, this, depth)
	}
}

func (s *schema) writeMembers(b *strings.Builder, this, depth int) {
	names := uniqueNames{}
	unnamed := s.next < len(s.elements) && s.elements[s.next].name == ""

	b.WriteString("STRUCT(")
	for i := range s.elements[this].children {
		if s.err != nil || s.next >= len(s.elements) {
			s.fail("", "its group ends too early")
			return
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if name := names.of(s.elements[s.next].name); !unnamed {
			b.WriteString(sqltext.InType(name) + " ")
		}
		s.write(b, depth+1)
	}
	b.WriteString(")")
}

// uniqueNames gives names that were used before another end, as DuckDB does. It compares without case.
type uniqueNames map[string]int

func (u uniqueNames) of(name string) string {
	for {
		n, used := u[sqltext.Lower(name)]
		if !used {
			u[sqltext.Lower(name)] = 0
			return name
		}
		u[sqltext.Lower(name)] = n + 1
		name = fmt.Sprintf("%s_%d", name, n+1)
	}
}

// leaf returns the type of a column without parts.
func (s *schema) leaf(e element, depth int) string {
	if e.physical > physicalFixed {
		s.fail("", "it has physical type %d, which does not exist", e.physical)
		return ""
	}
	if e.physical == physicalFixed && e.length == 0 {
		s.fail("", "its values have a fixed length that is not given")
		return ""
	}
	if name, ok := s.geometry(e, depth); ok {
		return name
	}

	switch {
	case e.is(logicalUnknown):
		return asNull
	case e.is(logicalUUID):
		if e.physical != physicalFixed || e.length != 16 {
			s.fail("write 16 bytes of fixed length, or text", "it is a UUID that does not have 16 bytes")
		}
		return "UUID"
	case e.is(logicalFloat16):
		if e.physical == physicalFixed && e.length == 2 {
			return "FLOAT"
		}
	case e.is(logicalTimestamp):
		return s.timestamp(e)
	case e.is(logicalTime):
		return s.time(e)
	}
	if e.converted >= 0 {
		return s.converted(e)
	}
	if e.is(logicalDecimal) { // its scale would be lost
		s.fail("write the converted type as well, as format version 1.0 has it",
			"it is a DECIMAL in its logical type only")
	}
	return bare[e.physical]
}

func (s *schema) timestamp(e element) string {
	if e.physical != physicalInt64 {
		s.fail("write INT64", "it is a TIMESTAMP that is not of type INT64")
	}
	switch {
	case e.unit&(1<<millis|1<<micros|1<<nanos) == 0:
		s.fail("write microseconds", "it is a TIMESTAMP without a known unit")
	case e.utc && e.inNanoseconds():
		s.zoned = append(s.zoned, Zoned{s.column, int64(e.utcAt)})
		return "TIMESTAMP WITH TIME ZONE"
	case e.utc:
		return "TIMESTAMP WITH TIME ZONE"
	case e.inNanoseconds():
		return "TIMESTAMP_NS"
	}
	return "TIMESTAMP"
}

func (e element) inNanoseconds() bool {
	return e.unit&(1<<nanos) != 0 && e.unit&(1<<millis|1<<micros) == 0
}

func (s *schema) time(e element) string {
	wanted := int32(physicalInt64)
	if e.unit&(1<<millis) != 0 {
		wanted = physicalInt32
	}
	switch {
	case e.unit&(1<<millis|1<<micros|1<<nanos) == 0:
		s.fail("write microseconds", "it is a TIME without a known unit")
	case e.physical != wanted:
		s.fail("write INT64 for microseconds", "it is a TIME of another type than its unit has")
	case e.utc:
		return "TIME WITH TIME ZONE"
	case e.inNanoseconds():
		return "TIME_NS"
	}
	return "TIME"
}

// converted returns the type that a converted type says.
func (s *schema) converted(e element) string {
	if t, ok := plain[e.converted]; ok {
		if e.physical != t.physical || t.name == "INTERVAL" && e.length != 12 {
			s.fail("", "it is of physical type %d, which does not go with %s", e.physical, t.name)
		}
		return t.name
	}

	bytes := e.physical == physicalBytes || e.physical == physicalFixed
	switch e.converted {
	case convertedNull:
		return asNull
	case convertedDecimal:
		return s.decimal(e)
	case convertedUTF8, convertedEnum, convertedJSON:
		if !bytes || e.converted == convertedJSON && e.physical != physicalBytes {
			s.fail("write BYTE_ARRAY", "it is of physical type %d, which does not go with text", e.physical)
		}
		if e.converted == convertedJSON {
			return "JSON"
		}
		return "VARCHAR"
	case convertedBSON:
		s.fail("write JSON, or bytes without a converted type", "it is BSON, which cannot be read")
	default:
		s.fail("write it without one", "it has converted type %d, which does not go with a column", e.converted)
	}
	return ""
}

func (s *schema) decimal(e element) string {
	const mostDecimal = 38
	switch {
	case e.scale < 0 || e.precision < 1 || e.scale > e.precision:
		s.fail("", "it is a DECIMAL with precision %d and scale %d", e.precision, e.scale)
	case e.precision > mostDecimal:
		return "DOUBLE"
	case e.physical != physicalInt32 && e.physical != physicalInt64 && e.physical != physicalBytes &&
		e.physical != physicalFixed:
		s.fail("", "it is of physical type %d, which does not go with DECIMAL", e.physical)
	}
	return fmt.Sprintf("DECIMAL(%d,%d)", e.precision, e.scale)
}

// geometry returns the type of a geometry: one by its logical type, or by what GeoParquet declares.
func (s *schema) geometry(e element, depth int) (string, bool) {
	known, declared := s.geometries[e.name]
	native := e.is(logicalGeometry) || e.is(logicalGeography)
	if e.physical != physicalBytes || !native && (depth > 1 || !declared) {
		return "", false
	}
	if native {
		known = isCRS84(e.crs)
	}
	switch {
	case e.repetition == repeated:
		s.fail("write a list with its own group", "it is a repeated geometry")
	case known:
		return "GEOMETRY('OGC:CRS84')", true
	}
	return "GEOMETRY", true
}

// isCRS84 reports whether a text names the coordinate system of longitudes and latitudes, by its code or in PROJJSON.
func isCRS84(crs string) bool {
	var named struct {
		ID struct {
			Authority string          `json:"authority"`
			Code      json.RawMessage `json:"code"`
		} `json:"id"`
	}
	if len(crs) > mostCRS {
		return false
	}
	if json.Unmarshal([]byte(crs), &named) == nil {
		return named.ID.Authority == "OGC" && string(named.ID.Code) == `"CRS84"`
	}
	return strings.EqualFold(crs, "OGC:CRS84")
}

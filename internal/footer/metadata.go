package footer

import (
	"encoding/json"
	"unicode/utf8"
)

// metadata decodes Parquet's FileMetaData, of which it keeps what a Footer needs.
type metadata struct {
	decoder

	most int64 // where the rows must end, in bytes

	elements   []element
	rows       int64
	groups     []Group
	chunks     int             // how many columns each group has
	geometries map[string]bool // columns that GeoParquet declares; nil: it is not used
}

// element is a column or a group of columns, in the order of a walk from the root.
type element struct {
	name       string
	physical   int32 // -1: a group
	length     int32
	repetition int32
	children   int32
	converted  int32 // -1: none
	scale      int32 // -1: none
	precision  int32 // -1: none

	logical uint32 // bits by the numbers of LogicalType's fields
	unit    uint32 // of times, bits by the numbers of TimeUnit's fields
	utc     bool
	utcAt   int    // in the footer
	crs     string // of a geometry
}

// The fields of FileMetaData.
const (
	fileSchema = iota + 2
	fileRows
	fileGroups
	fileKeyValues
	fileEncryption = 8
)

func (m *metadata) read() {
	var seen [fileEncryption + 1]bool
	m.structure("the file", func(id int16, kind byte) bool {
		if id <= fileEncryption {
			seen[id] = true
		}
		switch {
		case id == fileSchema && m.want(kind, typeList):
			m.readSchema()
		case id == fileRows && m.want(kind, typeInt64):
			m.rows = m.count("rows")
		case id == fileGroups && m.want(kind, typeList):
			m.list(func(n int) { m.groups = make([]Group, 0, n) }, m.readGroup)
		case id == fileKeyValues && m.want(kind, typeList):
			m.list(nil, m.readKeyValue)
		case id == fileEncryption:
			m.fail("it is encrypted")
		default:
			return m.err != nil
		}
		return true
	})
	if !seen[fileSchema] || !seen[fileRows] || !seen[fileGroups] {
		m.fail("the footer has no schema, no number of rows or no row groups")
	}

	sum := int64(0)
	for _, g := range m.groups {
		if sum += g.Rows; sum < 0 {
			m.fail("the row groups have more than %d rows", int64(maxRows))
			return
		}
	}
	if sum != m.rows {
		m.fail("the footer says that there are %d rows, but its row groups have %d", m.rows, sum)
	}
}

func (m *metadata) readSchema() {
	kind, n := m.length()
	if n > mostColumns {
		m.fail("it has %d columns and groups of columns; %d are read at most", n, mostColumns)
	}
	if n == 0 || m.err != nil || !m.want(kind, typeStruct) {
		return
	}

	m.elements = make([]element, 0, n)
	names := 0
	for i := 0; i < n && m.err == nil; i++ {
		m.elements = append(m.elements, m.readElement())
		if names += len(m.elements[i].name); names > mostNames {
			m.fail("the names of its columns have more than %d bytes", mostNames)
		}
	}
}

// The fields of SchemaElement.
const (
	elementType = iota + 1
	elementLength
	elementRepetition
	elementName
	elementChildren
	elementConverted
	elementScale
	elementPrecision
	elementID
	elementLogical
)

func (m *metadata) readElement() element {
	e := element{physical: -1, converted: -1, scale: -1, precision: -1}
	named := false
	numbers := [...]*int32{elementType: &e.physical, elementLength: &e.length, elementRepetition: &e.repetition,
		elementChildren: &e.children, elementConverted: &e.converted, elementScale: &e.scale,
		elementPrecision: &e.precision}

	m.structure("a column", func(id int16, kind byte) bool {
		switch {
		case int(id) < len(numbers) && numbers[id] != nil && m.want(kind, typeInt32):
			if *numbers[id] = m.int32(); *numbers[id] < 0 {
				m.fail("a column has the number %d, which no column can have", *numbers[id])
			}
		case id == elementName && m.want(kind, typeBinary):
			named = true
			text := m.binary()
			if !utf8.Valid(text) {
				m.fail("the name of a column is not UTF-8")
				return true
			}
			e.name = string(text)
		case id == elementLogical && m.want(kind, typeStruct):
			m.readLogical(&e)
		default:
			return m.err != nil
		}
		return true
	})
	if !named {
		m.fail("a column has no name")
	}
	return e
}

// readLogical reads a LogicalType: one field, whose number says which it is.
func (m *metadata) readLogical(e *element) {
	m.structure("a logical type", func(id int16, kind byte) bool {
		if !m.want(kind, typeStruct) {
			return true
		}
		if id < 32 {
			e.logical |= 1 << id
		}

		switch id {
		case logicalTime, logicalTimestamp:
			m.readTime(e)
		case logicalGeometry, logicalGeography:
			m.structure("a geometry", func(id int16, kind byte) bool {
				if id == 1 && m.want(kind, typeBinary) {
					e.crs = string(m.binary())
					return true
				}
				return m.err != nil
			})
		default:
			return false
		}
		return true
	})
}

// readTime reads a TimeType or a TimestampType.
func (m *metadata) readTime(e *element) {
	m.structure("a time", func(id int16, kind byte) bool {
		switch {
		case id == 1:
			e.utc, e.utcAt = m.truth(kind), m.at-1 // the field's head, which is its value
		case id == 2 && m.want(kind, typeStruct):
			m.structure("a unit", func(id int16, _ byte) bool {
				if id < 32 {
					e.unit |= 1 << id
				}
				return false
			})
		default:
			return m.err != nil
		}
		return true
	})
}

func (m *metadata) readGroup() {
	var g Group
	chunks, counted := 0, false
	m.structure("a row group", func(id int16, kind byte) bool {
		switch {
		case id == 1 && m.want(kind, typeList):
			chunks = m.list(nil, func() { g.End = max(g.End, m.readChunk()) })
		case id == 3 && m.want(kind, typeInt64):
			counted = true
			g.Rows = m.count("rows in a row group")
		default:
			return m.err != nil
		}
		return true
	})

	if !counted {
		m.fail("a row group has no number of rows")
	}
	if len(m.groups) > 0 && chunks != m.chunks {
		m.fail("row group %d has %d columns, but others have %d", len(m.groups), chunks, m.chunks)
	}
	m.groups, m.chunks = append(m.groups, g), chunks
}

// readChunk reads a ColumnChunk and returns where it ends in the file.
func (m *metadata) readChunk() (end int64) {
	described := false
	m.structure("a column of a row group", func(id int16, kind byte) bool {
		switch {
		case id == 1 && m.want(kind, typeBinary):
			if len(m.binary()) > 0 {
				m.fail("the rows of a column are in another file")
			}
		case id == 3 && m.want(kind, typeStruct):
			described = true
			end = m.readChunkMetadata()
		case id == 8 || id == 9:
			m.fail("a column is encrypted")
		default:
			return m.err != nil
		}
		return true
	})

	if !described {
		m.fail("a column of a row group says nothing about itself")
	}
	return end
}

// readChunkMetadata reads a ColumnMetaData. A column begins with its dictionary, if it has one.
func (m *metadata) readChunkMetadata() (end int64) {
	var bytes, data, dictionary int64
	fields := [...]*int64{7: &bytes, 9: &data, 11: &dictionary}
	m.structure("a column's description", func(id int16, kind byte) bool {
		if int(id) < len(fields) && fields[id] != nil && m.want(kind, typeInt64) {
			*fields[id] = m.count("bytes in or before a column")
			return true
		}
		return m.err != nil
	})

	begin := data
	if dictionary > int64(len(magic))-1 {
		begin = min(begin, dictionary)
	}
	if bytes > m.most || begin > m.most-bytes {
		m.fail("a column has %d bytes from byte %d on, but the rows end at byte %d", bytes, begin, m.most)
	}
	return begin + bytes
}

// readKeyValue looks for what GeoParquet says about columns.
func (m *metadata) readKeyValue() {
	var key, value []byte
	m.structure("a key with its value", func(id int16, kind byte) bool {
		switch {
		case id == 1 && m.want(kind, typeBinary):
			key = m.binary()
		case id == 2 && m.want(kind, typeBinary):
			value = m.binary()
		default:
			return m.err != nil
		}
		return true
	})
	if string(key) != "geo" || m.geometries != nil {
		return
	}

	if len(value) > mostGeo {
		m.fail("what it says about geometries has %d bytes; %d are read at most", len(value), mostGeo)
		return
	}
	var geo struct {
		Columns map[string]json.RawMessage `json:"columns"`
	}
	m.geometries = map[string]bool{}
	if json.Unmarshal(value, &geo) == nil {
		for name, column := range geo.Columns {
			m.geometries[name] = inCRS84(column)
		}
	}
}

// inCRS84 reports whether a column of GeoParquet has the coordinates that it has if nothing is said about them.
func inCRS84(column json.RawMessage) bool {
	var said struct {
		CRS json.RawMessage `json:"crs"`
	}
	if json.Unmarshal(column, &said) != nil {
		return false
	}
	return len(said.CRS) == 0 || isCRS84(string(said.CRS))
}

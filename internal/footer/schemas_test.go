package footer

import (
	"math/rand/v2"
)

// annotated adds annotations to a column.
func (b thrift) annotated(repetition, converted int64) thrift {
	b = append(thrift(nil), b...)
	if repetition >= 0 {
		b = b.int(elementRepetition, repetition, typeInt32)
	}
	if converted >= 0 {
		b = b.int(elementConverted, converted, typeInt32)
	}
	return b
}

func (b thrift) timed(logical int64, utc byte, unit int64) thrift {
	of := thrift(nil).field(1, utc).in(2, thrift(nil).in(unit, nil))
	return append(thrift(nil), b...).in(elementLogical, thrift(nil).in(logical, of))
}

// RandomFile returns a file with a random schema, most of which makes some sense, and no rows.
func RandomFile(r *rand.Rand) []byte {
	var elements []thrift
	names := []string{"a", "A", "b", "list", "element", "key", "value", "a_1", "x y"}
	pick := func(of ...int64) int64 { return of[r.IntN(len(of))] }
	var add func(depth int)
	add = func(depth int) {
		name := names[r.IntN(len(names))]
		if depth < 4 && r.IntN(3) == 0 {
			children := 1 + r.IntN(3)
			elements = append(elements, column(name, -1, int64(children)).annotated(pick(-1, 0, 1, 2),
				pick(-1, -1, convertedList, convertedMap, convertedMapKeyValue)))
			for range children {
				add(depth + 1)
			}
			return
		}

		e := column(name, int64(r.IntN(8)), 0).annotated(pick(-1, 0, 1, 2), pick(-1, -1, r.Int64N(25)))
		if r.IntN(3) > 0 {
			e = e.int(elementLength, pick(2, 12, 16), typeInt32)
		}
		if r.IntN(3) > 0 {
			e = e.int(elementScale, r.Int64N(6), typeInt32).int(elementPrecision, pick(4, 9, 18, 38, 40), typeInt32)
		}
		switch r.IntN(4) {
		case 0:
			e = e.timed(pick(logicalTime, logicalTimestamp), byte(pick(typeTrue, typeFalse)), pick(1, 2, 3))
		case 1:
			e = e.in(elementLogical, thrift(nil).in(pick(1, 2, 4, 6, 11, 12, 14, 15), nil))
		}
		elements = append(elements, e)
	}

	columns := 1 + r.IntN(3)
	for range columns {
		add(0)
	}
	return whole(file(append([]thrift{column("root", -1, int64(columns))}, elements...)...))
}

// KnownSchema is a file of one column, v, and its type or what the error says.
type KnownSchema struct {
	File       []byte
	Type, Says string
}

// KnownSchemas returns schemas as other writers write them.
func KnownSchemas() map[string]KnownSchema {
	is := func(want string, elements ...thrift) KnownSchema {
		return KnownSchema{File: whole(file(append([]thrift{column("schema", -1, 1)}, elements...)...)), Type: want}
	}
	says := func(text string, elements ...thrift) KnownSchema {
		k := is("", elements...)
		k.Says = text
		return k
	}
	group := func(name string, children, repetition, converted int64) thrift {
		return column(name, -1, children).annotated(repetition, converted)
	}
	leaf := func(name string, physical, repetition, converted int64) thrift {
		return column(name, physical, 0).annotated(repetition, converted)
	}
	v := func(physical, converted int64) thrift { return leaf("v", physical, 1, converted) }
	fixed := func(e thrift, length int64) thrift { return e.int(elementLength, length, typeInt32) }
	decimal := func(e thrift, p, s int64) thrift {
		return e.int(elementPrecision, p, typeInt32).int(elementScale, s, typeInt32)
	}

	logical := func(e thrift, of int64, inner thrift) thrift {
		return append(thrift(nil), e...).in(elementLogical, thrift(nil).in(of, inner))
	}
	geometry := func(crs thrift) thrift { return logical(v(physicalBytes, -1), logicalGeometry, crs) }
	return map[string]KnownSchema{
		"pyarrow list": is("BIGINT[]", group("v", 1, 1, convertedList), group("list", 1, 2, -1),
			leaf("element", physicalInt64, 1, -1)),
		"Spark array": is("VARCHAR[]", group("v", 1, 1, convertedList), group("bag", 1, 2, -1),
			leaf("array", physicalBytes, 1, convertedUTF8)),
		"list of two levels": is("INTEGER[]", group("v", 1, 1, convertedList), leaf("array", physicalInt32, 2, -1)),
		"Avro list of structs": is("STRUCT(a INTEGER, b INTEGER)[]", group("v", 1, 1, convertedList),
			group("array", 2, 2, -1), leaf("a", physicalInt32, 0, -1), leaf("b", physicalInt32, 0, -1)),
		"repeated column": is("DOUBLE[]", leaf("v", physicalDouble, 2, -1)),
		"pyarrow map": is("MAP(VARCHAR, INTEGER)", group("v", 1, 1, convertedMap), group("key_value", 2, 2, -1),
			leaf("key", physicalBytes, 0, convertedUTF8), leaf("value", physicalInt32, 1, -1)),
		"map of maps": says("a map needs", group("v", 1, 1, convertedMapKeyValue),
			group("map", 2, 2, convertedMapKeyValue), leaf("key", physicalBytes, 0, convertedUTF8),
			leaf("value", physicalInt32, 1, -1)),
		"INT96":        is("TIMESTAMP", v(physicalInt96, -1)),
		"milliseconds": is("TIMESTAMP", v(physicalInt64, convertedTimestampMillis)),
		"nanoseconds":  is("TIMESTAMP_NS", v(physicalInt64, -1).timed(logicalTimestamp, typeFalse, nanos)),
		"instants": is("TIMESTAMP WITH TIME ZONE",
			v(physicalInt64, 10).timed(logicalTimestamp, typeTrue, micros)),
		"seconds": says("without a known unit",
			v(physicalInt64, -1).timed(logicalTimestamp, typeTrue, 7)),
		"binary text": is("BLOB", v(physicalBytes, -1)),
		"enum":        is("VARCHAR", v(physicalBytes, convertedEnum)),
		"JSON":        is("JSON", v(physicalBytes, convertedJSON)),
		"BSON": says(`column "v": it is BSON, which cannot be read`,
			v(physicalBytes, convertedBSON)),
		"Spark decimal":           is("DECIMAL(20,2)", decimal(fixed(v(physicalFixed, convertedDecimal), 9), 20, 2)),
		"decimal of 40 digits":    is("DOUBLE", decimal(fixed(v(physicalFixed, convertedDecimal), 17), 40, 2)),
		"decimal without a scale": says("precision -1", v(physicalInt32, convertedDecimal)),
		"logical decimal only": says("in its logical type only",
			logical(v(physicalInt32, -1), logicalDecimal, nil)),
		"half":     is("FLOAT", logical(fixed(v(physicalFixed, -1), 2), logicalFloat16, nil)),
		"UUID":     is("UUID", logical(fixed(v(physicalFixed, -1), 16), logicalUUID, nil)),
		"null":     is("INTEGER", logical(v(physicalInt32, -1), logicalUnknown, nil)),
		"geometry": is("GEOMETRY", geometry(thrift(nil).text(1, "EPSG:4326-x"))),
		"geometry in CRS84": is("GEOMETRY('OGC:CRS84')",
			geometry(thrift(nil).text(1, "OGC:CRS84"))),
		"geometry without a CRS":   is("GEOMETRY", geometry(nil)),
		"fixed without its length": says("a fixed length that is not given", v(physicalFixed, -1)),
	}
}

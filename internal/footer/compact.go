package footer

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Bounds of what is decoded. Lists say in a few bytes how long they are, so their lengths are checked before anything
// is made of them.
const (
	mostInList  = 1 << 20       // values of one list
	mostInLists = 12 << 20      // values of all lists together
	mostNested  = 32            // structures and lists in one another
	mostColumns = 1 << 16       // columns and groups of columns, at all depths
	mostLevels  = 64            // groups of columns in one another
	mostNames   = 4 << 20       // bytes of the names of all columns
	mostBytes   = 16 << 20      // bytes of a footer
	mostGeo     = 1 << 20       // bytes of what GeoParquet says
	mostCRS     = 64 << 10      // bytes of a coordinate system
	mostFields  = 64            // numbers of fields that are known; all of Parquet's are below
	mostDigits  = 10            // bytes of a number
	moreInList  = 0xf           // in place of a list's length: it follows
	typeOfField = 0xf           // the bits of a field's type
	maxRows     = math.MaxInt64 // of all row groups
)

// The types of values in Thrift's compact protocol.
const (
	typeTrue = iota + 1
	typeFalse
	typeByte
	typeInt16
	typeInt32
	typeInt64
	typeDouble
	typeBinary
	typeList
	typeSet
	typeMap
	typeStruct
	typeUUID
)

// decoder reads values in Thrift's compact protocol. After the first error it reads nothing any more, and everything is
// zero.
type decoder struct {
	data   []byte
	at     int
	inList int // values of all lists so far
	depth  int
	err    error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
		d.at = len(d.data)
	}
}

func (d *decoder) byte() byte {
	if d.at >= len(d.data) {
		d.fail("the footer ends in the middle of a value")
		return 0
	}
	b := d.data[d.at]
	d.at++
	return b
}

func (d *decoder) varint() uint64 {
	n, size := binary.Uvarint(d.data[d.at:min(d.at+mostDigits, len(d.data))])
	if size <= 0 {
		d.fail("the footer has a broken number")
		return 0
	}
	d.at += size
	return n
}

func (d *decoder) int64() int64 {
	n := d.varint()
	return int64(n>>1) ^ -int64(n&1)
}

func (d *decoder) int32() int32 {
	n := d.int64()
	if n != int64(int32(n)) {
		d.fail("the footer has a number that is too large")
		return 0
	}
	return int32(n)
}

// count reads a number that must not be negative.
func (d *decoder) count(what string) int64 {
	n := d.int64()
	if n < 0 {
		d.fail("the footer says that there are %d %s", n, what)
		return 0
	}
	return n
}

// binary returns bytes of the footer itself.
func (d *decoder) binary() []byte {
	n := d.varint()
	if n > uint64(len(d.data)-d.at) {
		d.fail("the footer has a text that is longer than itself")
		return nil
	}
	text := d.data[d.at : d.at+int(n)]
	d.at += int(n)
	return text
}

// structure reads a structure. Of each of its fields, field reads the value or returns false, which skips it. of names
// the structure in errors.
func (d *decoder) structure(of string, field func(id int16, kind byte) bool) {
	if d.depth++; d.depth > mostNested {
		d.fail("the footer has more than %d structures in one another", mostNested)
	}
	var (
		seen uint64
		id   int64
	)
	for d.err == nil {
		head := d.byte()
		if head == 0 {
			break
		}

		kind := head & typeOfField
		if delta := head >> 4; delta > 0 {
			id += int64(delta)
		} else {
			id = d.int64()
		}
		if id < 0 || id > math.MaxInt16 {
			d.fail("the footer has a field of number %d", id)
			break
		}
		if id < mostFields {
			if seen&(1<<id) != 0 {
				d.fail("the footer has field %d of %s twice", id, of)
				break
			}
			seen |= 1 << id
		}
		if !field(int16(id), kind) {
			d.skip(kind, false)
		}
	}
	d.depth--
}

// want reports whether a field has the type that its number stands for.
func (d *decoder) want(kind, wanted byte) bool {
	if kind != wanted {
		d.fail("the footer has a field of type %d where Parquet has type %d", kind, wanted)
	}
	return d.err == nil
}

// truth returns the value of a field that is true or false.
func (d *decoder) truth(kind byte) bool {
	if kind != typeTrue && kind != typeFalse {
		d.fail("the footer has a field of type %d where Parquet has true or false", kind)
	}
	return kind == typeTrue
}

// length reads the head of a list and returns the type and the number of its values.
func (d *decoder) length() (kind byte, n int) {
	head := d.byte()
	size := uint64(head >> 4)
	if size == moreInList {
		size = d.varint()
	}
	return head & typeOfField, d.bounded(size)
}

// bounded checks the number of a list's values.
func (d *decoder) bounded(size uint64) int {
	switch left := len(d.data) - d.at; {
	case d.err != nil:
		return 0
	case size > uint64(left): // each has at least a byte
		d.fail("the footer has a list of %d values in %d bytes", size, left)
	case size > mostInList:
		d.fail("the footer has a list of %d values; %d are read at most", size, mostInList)
	case d.inList+int(size) > mostInLists:
		d.fail("the footer has lists of more than %d values", mostInLists)
	default:
		d.inList += int(size)
		return int(size)
	}
	return 0
}

// list reads a list of structures, each by one. begin, if there is one, gets their number first.
func (d *decoder) list(begin func(n int), one func()) (n int) {
	kind, n := d.length()
	if n == 0 || !d.want(kind, typeStruct) {
		return 0
	}
	if begin != nil {
		begin(n)
	}
	for i := 0; i < n && d.err == nil; i++ {
		one()
	}
	return n
}

// skip reads a value and forgets it. In lists, true and false have a byte of their own.
func (d *decoder) skip(kind byte, listed bool) {
	switch kind {
	case typeTrue, typeFalse:
		if listed {
			d.byte()
		}
	case typeByte:
		d.byte()
	case typeInt16, typeInt32, typeInt64:
		d.varint()
	case typeDouble:
		d.pass(8)
	case typeUUID:
		d.pass(16)
	case typeBinary:
		d.binary()
	case typeList, typeSet:
		d.skipAll(func() (int, []byte) { of, n := d.length(); return n, []byte{of} })
	case typeMap:
		d.skipAll(func() (int, []byte) {
			size := d.varint()
			if size == 0 {
				return 0, nil
			}
			kinds := d.byte()
			n := d.bounded(size)
			return n, []byte{kinds >> 4, kinds & typeOfField}
		})
	case typeStruct:
		d.structure("a structure", func(int16, byte) bool { return false })
	default:
		d.fail("the footer has a value of type %d, which does not exist", kind)
	}
}

// skipAll reads the values of a list or a map, whose head returns their number and types.
func (d *decoder) skipAll(head func() (n int, kinds []byte)) {
	if d.depth++; d.depth > mostNested {
		d.fail("the footer has more than %d lists in one another", mostNested)
	}
	n, kinds := head()
	for i := 0; i < n && d.err == nil; i++ {
		for _, kind := range kinds {
			d.skip(kind, true)
		}
	}
	d.depth--
}

func (d *decoder) pass(n int) {
	if n > len(d.data)-d.at {
		d.fail("the footer ends in the middle of a value")
		return
	}
	d.at += n
}

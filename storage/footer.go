package storage

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"golang.org/x/sync/singleflight"
)

// maxFooter is the longest footer that is read, in bytes.
const maxFooter = 16 << 20

// footer is what a file's Parquet footer says.
type footer struct {
	rows   int64
	schema string // equal if and only if DuckDB finds the same columns
}

// readFooter reads a footer. An error only means that the columns cannot be found this way; DuckDB reports what is
// wrong with the file.
func readFooter(path string) (f footer, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some footers that no writer produces
			err = fmt.Errorf("read footer: %v", p)
		}
	}()

	file, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return f, err
	}

	const tail = 8 // the length of the footer and the magic number
	var end [tail]byte
	if _, err := file.ReadAt(end[:], info.Size()-tail); err != nil {
		return f, err
	}

	length := int64(binary.LittleEndian.Uint32(end[:]))
	if string(end[4:]) != "PAR1" || length > min(maxFooter, info.Size()-tail) {
		return f, errors.New("no plain footer")
	}
	data, err := io.ReadAll(io.NewSectionReader(file, info.Size()-tail-length, length))
	if err != nil {
		return f, err
	}

	meta, err := metadata.NewFileMetaData(data, nil)
	if err != nil {
		return f, err
	}
	if meta.KeyValueMetadata().FindValue("geo") != nil {
		return f, errors.New("its columns depend on more than the schema")
	}
	schema, err := json.Marshal(meta.FileMetaData.Schema)
	return footer{rows: meta.NumRows, schema: string(schema)}, err
}

// knownColumns remembers which columns DuckDB finds for a schema: what one job writes is nearly always the same, and
// asking DuckDB takes a millisecond of the processor.
type knownColumns struct {
	mu    sync.Mutex
	found map[string][]Column
	asked singleflight.Group
}

// manySchemas is how many schemas are remembered at most.
const manySchemas = 1000

func (k *knownColumns) get(schema string) ([]Column, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	columns, ok := k.found[schema]
	return slices.Clone(columns), ok
}

func (k *knownColumns) put(schema string, columns []Column) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.found == nil || len(k.found) >= manySchemas {
		k.found = map[string][]Column{}
	}
	k.found[schema] = columns
}

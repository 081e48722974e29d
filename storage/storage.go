// Package storage keeps the bytes of datasets: Parquet files under a folder, or rows in Postgres tables.
//
// Vocabulary: a generation (dataset version) holds partitions; each revision of a partition is a Manifest, the
// committed list of its files. An attempt writes to a location of its own, which is sealed (checked, measured,
// moved where readers can reach it) before the completion that names it, and published inside that completion's
// transaction. Readers use the committed list and never list a folder. It owns the data_<org slug> schemas.
package storage

import (
	"github.com/google/uuid"
)

// Kind is where a generation's bytes live.
type Kind string

// The kinds of storage.
const (
	Parquet  Kind = "parquet"
	Postgres Kind = "postgres"
)

// Generation is one dataset version, as far as its bytes go.
type Generation struct {
	OrgID     uuid.UUID
	OrgSlug   string
	Dataset   uuid.UUID
	Version   uuid.UUID
	Kind      Kind
	Indexes   [][]string // postgres: column lists
	UniqueKey []string   // append: the columns that identify a row
}

// Attempt is one try at one partition of an output. Its location is its own.
type Attempt struct {
	Generation Generation
	Partition  string // partition key
	Task       uuid.UUID
	Number     int // attempt number, from 1
	Output     int // output index
}

// Column is one column of a dataset, with its DuckDB type name.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// File is one committed Parquet file. Path is relative to the storage root, with forward slashes.
// Source of the figures: the file's own footer, read when it was sealed.
type File struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Rows  int64  `json:"rows"`
}

// Manifest is what a sealed attempt offers for publication, and what a published revision consists of.
type Manifest struct {
	Location   string   `json:"location"` // the attempt's own prefix or staging table
	Files      []File   `json:"files"`    // empty for postgres storage
	Rows       int64    `json:"rows"`
	Bytes      int64    `json:"bytes"`
	Schema     []Column `json:"schema"`
	SchemaHash string   `json:"schema_hash"`
}

// Partition is a published revision to read.
type Partition struct {
	Key      string `json:"key"`
	Revision int64  `json:"revision"`
	Files    []File `json:"files"`
}

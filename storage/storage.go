// Package storage keeps the bytes of datasets: Parquet files in a folder or in an S3 bucket, or rows in Postgres
// tables.
//
// Vocabulary: a generation (dataset version) holds partitions; each revision of a partition is a Manifest, the
// committed list of its files. An attempt writes to a location of its own. Its output is sealed (checked, measured,
// moved where readers can reach it) before the completion that names it, and published in that completion's
// transaction. Readers use the committed list and never list a folder. It owns the data_<org slug> schemas.
//
// The life of an attempt's bytes: Location (recorded at claim) → Seal → Verify → Publish, or Discard. What a task on
// another machine wrote reaches Seal through the upload area: PutUpload → FetchUploads → Seal → DropUploads.
package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// Kind is where a generation's bytes live.
type Kind string

// The kinds of storage.
const (
	Parquet  Kind = "parquet"
	Postgres Kind = "postgres"
)

// Generation is one dataset version, as far as its bytes are concerned.
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
	Part       int // number of the attempt's commit, from 1; 0 if it seals once, as in the server's own process
}

// name returns a name that is unique among the attempts that write to the same partition.
func (a Attempt) name() string {
	if a.Part == 0 {
		return fmt.Sprintf("%s-%d", a.Task, a.Number)
	}
	return fmt.Sprintf("%s-%d.%d", a.Task, a.Number, a.Part)
}

// Column is one column of a dataset, with its DuckDB type name.
type Column = relations.Column

// File is one committed Parquet file. Path is relative to the storage root, with forward slashes.
// Source of the figures: the file's own footer, read when it was sealed.
type File struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Rows  int64  `json:"rows"`
	// ETag of the object in S3, without quotes. One with another ETag is the committed object only if its content is:
	// an object that was brought back in other parts has another ETag.
	ETag   string `json:"etag,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of the content of the object in S3, in hex; empty: not known
}

// Manifest lists the content of a sealed attempt, and later that of the published revision.
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

// Config configures where bytes live.
type Config struct {
	// Folder of the Parquet files, or with S3 of local copies. It is created if it does not exist
	Root           string
	S3             *S3Config     // bucket of the Parquet files; nil: they are in Root
	Pool           *pgxpool.Pool // for generations in Postgres; nil: there are none, as on a worker
	Rows           Rows          // required with Pool; nil: nothing is previewed
	MaxUploadBytes int64         // of one uploaded file; default DefaultMaxUploadBytes
}

// Storage reads and writes generations of every kind.
type Storage struct {
	backends map[Kind]backend
	files    *files
	s3       *bucket // nil: there is none
	uploads  uploadArea
	rows     Rows

	maxUpload int64
}

// backend is one kind of storage. It gets only generations, attempts and manifests of its kind.
type backend interface {
	location(a Attempt) string
	// seal makes the measured local files readable at the attempt's location, all or none.
	// It may move them.
	seal(ctx context.Context, a Attempt, local []string, measured Manifest) (Manifest, error)
	verify(ctx context.Context, m Manifest) error
	publish(ctx context.Context, tx pgx.Tx, a Attempt, revision int64, m Manifest) error
	discard(ctx context.Context, location string) error
	open(ctx context.Context, g Generation, partitions []Partition, dir string) ([][]string, error)
	openSealed(ctx context.Context, g Generation, m Manifest, dir string) ([]string, error)
	// head returns files that hold at least the first n rows of the partitions, in their order.
	head(ctx context.Context, g Generation, partitions []Partition, n int, dir string) ([]string, error)
	// drop removes a generation whose locations have been discarded already.
	drop(ctx context.Context, g Generation, locations []string) error
	// forget removes what was published of a partition up to a revision, unless discard does that.
	forget(ctx context.Context, g Generation, partition string, revision int64) error
	renumber(ctx context.Context, tx pgx.Tx, g Generation, partition string, revision int64) error
	// takeOver copies another generation's revision into the attempt's generation.
	takeOver(ctx context.Context, tx pgx.Tx, from Generation, a Attempt, revision int64, m Manifest) (Manifest, error)
	verifyPublished(ctx context.Context, g Generation, partition string, revision int64, m Manifest) error
	// owns reports whether a location belongs to this kind.
	owns(location string) bool
}

// New checks the config and opens the root folder. It does not access the bucket: see Check.
func New(cfg Config) (*Storage, error) {
	if cfg.Pool != nil && cfg.Rows == nil {
		return nil, errors.New("storage: rows are needed with a pool")
	}
	files, err := newFiles(cfg.Root)
	if err != nil {
		return nil, err
	}

	s := &Storage{
		rows: cfg.Rows, files: files, backends: map[Kind]backend{Parquet: files}, uploads: files,
		maxUpload: cmp.Or(cfg.MaxUploadBytes, DefaultMaxUploadBytes),
	}

	if cfg.S3 != nil {
		if s.s3, err = newBucket(*cfg.S3, files.root, cfg.Rows); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.backends[Parquet], s.uploads = s.s3, s.s3
	}
	if cfg.Pool != nil {
		s.backends[Postgres] = &tables{pool: cfg.Pool, rows: cfg.Rows}
	}
	return s, nil
}

// Close releases what New opened.
func (s *Storage) Close() error { return s.files.close() }

func (s *Storage) of(kind Kind) (backend, error) {
	b, ok := s.backends[kind]
	if !ok {
		return nil, fault.New(fault.Invalid, "storage %q is not available here", kind)
	}
	return b, nil
}

func (s *Storage) at(location string) (backend, error) {
	for _, b := range s.backends {
		if b.owns(location) {
			return b, nil
		}
	}
	return nil, fault.New(fault.Invalid, "no storage that is available here has location %q", location)
}

// Copies reports whether Open copies data of a kind to this machine, so that reading costs time and space here.
func (s *Storage) Copies(kind Kind) bool { return kind == Postgres || s.s3 != nil }

// Location returns where the attempt's bytes will be. It depends on the attempt alone, so it can be recorded before
// anything is written, and the record leads to what must be cleaned up.
func (s *Storage) Location(a Attempt) string {
	b, err := s.of(a.Generation.Kind)
	if err != nil {
		return ""
	}
	return b.location(a)
}

// Seal checks and measures the attempt's local Parquet files and moves them to its location, all or none. They are
// durable when it returns. A second Seal of the same attempt returns the same manifest if its bytes are the same, so
// that a completion may be repeated; otherwise it is a conflict.
func (s *Storage) Seal(ctx context.Context, a Attempt, localFiles []string) (Manifest, error) {
	b, err := s.of(a.Generation.Kind)
	if err != nil {
		return Manifest{}, err
	}
	measured, err := measure(localFiles)
	if err != nil {
		return Manifest{}, err
	}
	m, err := b.seal(ctx, a, localFiles, measured)
	if err != nil {
		return Manifest{}, fmt.Errorf("store partition %s: %w", a.Partition, err)
	}
	return m, nil
}

// Verify checks that all files of the manifest exist with their sizes. It runs before the completion's transaction.
func (s *Storage) Verify(ctx context.Context, m Manifest) error {
	b, err := s.at(m.Location)
	if err != nil {
		return err
	}
	return b.verify(ctx, m)
}

// Publish makes a sealed attempt a revision of the partition, in the transaction that records the revision.
func (s *Storage) Publish(ctx context.Context, tx pgx.Tx, a Attempt, revision int64, m Manifest) error {
	b, err := s.of(a.Generation.Kind)
	if err != nil {
		return err
	}
	if a.Part = partOf(m.Location); m.Location != b.location(a) {
		return fault.New(fault.Invalid, "the manifest of %q does not belong to attempt %d of task %s", m.Location,
			a.Number, a.Task)
	}
	return b.publish(ctx, tx, a, revision, m)
}

// partOf returns the part of a location: what follows the number of the attempt after a dot, or the number of the
// output in the name of a staging table.
func partOf(location string) int {
	text := ""
	if parts := stagingPattern.FindStringSubmatch(location); parts != nil {
		text = parts[3]
	} else {
		name := path.Base(location)
		text = name[strings.LastIndexByte(name, '.')+1:]
	}
	part, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return part
}

// Discard removes what an attempt wrote at its locations, if anything. Discard a location only when no manifest that is
// kept names a file under it: an appended revision shares files with the one before.
func (s *Storage) Discard(ctx context.Context, locations ...string) error {
	for _, location := range locations {
		b, err := s.at(location)
		if err != nil {
			return err
		}
		if err := b.discard(ctx, location); err != nil {
			return err
		}
	}
	return nil
}

// Open returns local Parquet files for each of the published partitions. It creates new files in dir. A revision that
// has been replaced meanwhile, in storage that keeps only one, is a fault.Conflict.
func (s *Storage) Open(ctx context.Context, g Generation, partitions []Partition, dir string) ([][]string, error) {
	b, err := s.of(g.Kind)
	if err != nil {
		return nil, err
	}
	return b.open(ctx, g, partitions, dir)
}

// KeysOf returns the key of the partition of each file that was opened for some partitions, in the order of the files.
func KeysOf(partitions []Partition, opened [][]string) (keys []string) {
	for i, files := range opened {
		for range files {
			keys = append(keys, partitions[i].Key)
		}
	}
	return keys
}

// OpenSealed returns local Parquet files of a revision that is sealed but not published: one that is held for its
// checks.
func (s *Storage) OpenSealed(ctx context.Context, g Generation, m Manifest, dir string) ([]string, error) {
	b, err := s.of(g.Kind)
	if err != nil {
		return nil, err
	}
	return b.openSealed(ctx, g, m, dir)
}

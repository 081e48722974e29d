// Package dag turns a DAG file into a typed, validated document, and computes from it everything that
// can be computed without the outside world: the canonical form, its hash, the jobs' fingerprints and the
// mapping of partitions. It is pure: no I/O beyond the fs.FS it is given, no clock, no database.
//
// Vocabulary: a Document holds Jobs; a job has outputs, by index, and inputs, which are edges from other
// jobs' outputs or from published datasets of other DAGs. A fingerprint is the hash of all that can change
// a job's output. A partition is addressed by its key. A Problem is one fault of a file, with its place. It owns no tables.
//
// The way of a file, which is also the way to read the code: load.go (text → plain tree), vars.go (${var.name}),
// grammar.go made of the shapes in shape.go (what may stand where; Schema and Format use it too), decode_*.go and
// config.go (what a job says by itself), link.go and link_mapping.go (what follows from other jobs). Then hash.go and
// fingerprint.go, partition.go and mapping.go stand on the finished Document. Limits are in limits.go.
//
// To add a field to jobs: a line in the grammar, a field of Job, a line in decode_job.go, and its class in
// TestFingerprintFields; testdata/valid/everything.yaml must show it.
package dag

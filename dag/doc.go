// Package dag turns a DAG file into a typed, validated document, and computes from it everything that
// can be computed without the outside world: the canonical form, its hash, the jobs' fingerprints and the
// mapping of partitions. It is pure: no I/O beyond the fs.FS it is given, no clock, no database.
//
// Vocabulary: a Document holds Jobs; a job has outputs, by index, and inputs, which are edges from other
// jobs' outputs or from published datasets of other DAGs. A fingerprint is the hash of all that can change
// a job's output. A partition is addressed by its key. It owns no tables.
package dag

// Package dag turns a DAG file into a typed, validated document, and computes everything that follows from it alone:
// the canonical form, its hash, the jobs' fingerprints and the mapping of partitions. It is pure: it reads files only
// from the fs.FS that the caller passes, and uses neither a clock nor a database. It owns no tables.
//
// Vocabulary: a Document holds Jobs. A job has outputs, by index, and inputs, which are edges from other jobs' outputs
// or from published datasets of other DAGs. A fingerprint is the hash of all that can change a job's output. A
// partition is addressed by its key. A Problem is one fault of a file, with its position.
//
// Read the code in the order in which it handles a file: load.go (from text to a plain tree), vars.go (${var.name}),
// grammar.go, made of the shapes in shape*.go (the fields and their types; Schema and Format use it too), decode_*.go
// and config.go (each job by itself), link.go and link_mapping.go (what follows from other jobs). hash.go,
// fingerprint.go, partition.go and mapping.go work on the finished Document. limits.go has the limits.
//
// To add a field to jobs, add a line to the grammar, a field to Job, a line to decode_job.go, and its class to
// TestFingerprintFields, and show it in testdata/valid/everything.yaml.
package dag

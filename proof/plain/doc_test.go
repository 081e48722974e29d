// Package plain_test compares random pipelines with a plain evaluator, which knows the meaning of a DAG file and
// nothing of the engine: no tasks, no revisions, no SQL. It computes every partition anew, from the files alone.
package plain_test

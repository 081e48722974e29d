// Package proof_test holds deploys to what they promise, with everything real: PostgreSQL, files, DuckDB, dispatchers
// that run, HTTP. What a single package promises is proved beside it; here is what only the whole can show: that no
// reader ever sees two deploys mixed, that a rollback computes nothing, that what was planned is what was run.
//
// The long versions of the tests have the build tag soak: `make soak`.
package proof_test

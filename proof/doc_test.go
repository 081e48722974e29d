// Package proof_test checks what deploys promise, with everything real: PostgreSQL, files, DuckDB, running dispatchers,
// HTTP. The promises of a single package are tested beside it. This package has what only the whole can show: that no
// reader ever sees two deploys mixed, that a rollback computes nothing, that what ran is what was planned.
package proof_test

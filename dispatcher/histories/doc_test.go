// Package histories_test compares random histories of three DAGs with a simple model.
//
// Two producers, anna and bert, read the same source and publish under three names, which move between their jobs and
// between the DAGs; carl reads a name. A history is a list of steps: late and replaced files, edits, renames,
// takeovers, checks, other storage, other partitions, versions that wait for their promotion, rollbacks, purges, data
// computed anew, and garbage collection. Before a step, the model says whether it may or must be refused; after it,
// what a reader must see under each name, through the read path and through the stable view. A refused step changes
// nothing.
package histories_test

import (
	"testing"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

func TestMain(m *testing.M) { dispatchertest.Main(m) }

// Package enginetest has engines for tests of packages that need some. They run in the test's own process, where
// starting one costs little; engine, query and cmd are tested with engines that are processes.
package enginetest

import (
	"sync"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/inside"
)

// Engines returns the engines of this test process. They take turns in more slots than a server has, since all tests
// of a package share them.
var Engines = sync.OnceValue(func() *engine.Engines {
	e, err := engine.New(engine.Config{Inside: inside.Serve,
		Slots: map[engine.Kind]int{engine.Parse: 16, engine.Job: 64, engine.Query: 16, engine.Copy: 64}})
	if err != nil {
		panic(err) // nothing but the slots can be wrong
	}
	return e
})

// Package memory_test looks for leaks of a server: real processes under work that never ends, whose resident memory has
// to stay flat.
package memory_test

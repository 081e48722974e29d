package main

import (
	"os"
	"testing"

	"github.com/dagctl/dagctl/query"
)

func TestMain(m *testing.M) {
	query.Child()
	os.Exit(m.Run())
}

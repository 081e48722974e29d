package main

import (
	"os"
	"testing"

	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Stage()
	inside.Main()
	os.Exit(m.Run())
}

package main

import (
	"os"
	"testing"

	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
)

func TestMain(m *testing.M) {
	sandbox.Stage()
	inside.Main()
	operators.BinderMain()
	os.Exit(m.Run())
}

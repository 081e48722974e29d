package proof_test

import (
	"os"
	"testing"

	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
)

func TestMain(m *testing.M) {
	sandbox.Stage()
	query.Child()
	operators.BinderMain()
	bootstrap()
	os.Exit(m.Run())
}

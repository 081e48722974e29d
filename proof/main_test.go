package proof_test

import (
	"os"
	"testing"

	"github.com/dagctl/dagctl/query"
)

func TestMain(m *testing.M) {
	query.Child()
	bootstrap()
	os.Exit(m.Run())
}

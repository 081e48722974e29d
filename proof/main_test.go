package proof_test

import (
	"os"
	"testing"

	"github.com/dagctl/dagctl/query"
)

func TestMain(m *testing.M) {
	query.Child()
	os.Exit(m.Run())
}

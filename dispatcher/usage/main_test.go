package usage_test

import (
	"testing"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

func TestMain(m *testing.M) { dispatchertest.Main(m) }

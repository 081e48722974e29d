//go:build noscope

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

func TestTheSecondWallIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	require.True(t, authz.Caller{}.ReadsAll(), "the conditions of the code leave nothing out")
}

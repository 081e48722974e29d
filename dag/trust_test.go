package dag

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUploadedCodeIsNotTrusted(t *testing.T) {
	t.Parallel()
	require.True(t, Trusted("lambda", "sql"))
	require.True(t, Trusted("ecs_platform", "handler"))
	require.False(t, Trusted("lambda", "udf"))
	require.False(t, Trusted("ecs_udf", "udf"))
	require.False(t, Trusted("ecs_udf", "sql"))
}

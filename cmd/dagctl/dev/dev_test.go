package dev

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/backends"
)

func TestOnlyLoopbackAddresses(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"127.0.0.1:7070", "localhost:0", "[::1]:7070", "127.9.9.9:1"} {
		require.NoError(t, requireLoopback(good), good)
	}
	for _, bad := range []string{"0.0.0.0:7070", ":7070", "[::]:1", "192.168.1.1:1", "example.com:80", "7070"} {
		require.Error(t, requireLoopback(bad), bad)
	}
}

func TestRuntimesThatTheConfigDoesNotMap(t *testing.T) {
	t.Parallel()
	configured := server.RuntimesConfig{
		"dispatcher": {{Kind: backends.InProcess}}, "lambda": {{Kind: backends.Lambda, Function: "f"}},
	}
	doc := &dag.Document{Jobs: []dag.Job{{Runtime: "python"}, {Runtime: "dispatcher"}, {Runtime: "lambda"}}}
	all, own := mapRuntimes(configured, []*dagfile.File{{Doc: doc}, {}})
	require.Equal(t, []string{"ecs_platform", "ecs_udf", "python"}, own)
	require.Equal(t, backends.Lambda, all["lambda"][0].Kind)
	require.Equal(t, backends.Poll, all["python"][0].Kind)
	require.Len(t, configured, 2, "the config stays as it is")
}

func TestFew(t *testing.T) {
	t.Parallel()
	require.Empty(t, few([]string{dag.WholeKey}))
	require.Equal(t, "a, b, c", few([]string{"c", "a", "b"}))
	require.Equal(t, "a, b, c and 2 more", few([]string{"e", "d", "c", "a", "b"}))
}

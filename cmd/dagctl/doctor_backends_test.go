package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/testaws"
)

// Not parallel: AWS's settings come from the environment of the process.
func TestDoctorLooksAtTheQueuesOfAConfig(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret",
		"AWS_REGION": testaws.Region} {
		t.Setenv(name, value)
	}
	q := testaws.SQS(t)
	good, _ := q.NewWithDLQ(t, 5, nil)
	bad := q.New(t, nil)
	key := filepath.Join(t.TempDir(), "task.pem")
	_, err := authz.EnsureTaskKey(key)
	require.NoError(t, err)
	for url, want := range map[string]struct {
		code int
		text string
	}{
		good: {cli.ExitOK, "ok   runtime    ecs_platform, queue " + good},
		bad:  {cli.ExitFailed, "FAIL runtime    ecs_platform, queue " + bad + ": it has no redrive policy"},
	} {
		out, code := diagnose(t, fmt.Sprintf("database_url: postgres://x@127.0.0.1/x\nstorage: {root: "+
			"/tmp}\nbase_url: https://dagctl.example.com\n"+
			"runtimes:\n  ecs_platform: { kind: sqs, queue_url: %q, endpoint: %q }\ntasks: { key_files: [%s] }\n", url,
			q.Endpoint, key))
		require.Equal(t, want.code, code, out)
		require.Contains(t, out, want.text)
	}
}

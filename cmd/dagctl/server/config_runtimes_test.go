package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/internal/fault"
)

// configFile returns the config of a file with this text.
func configFile(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return loadConfig(path, noEnv)
}

func TestRuntimesOfTheConfigFile(t *testing.T) {
	t.Parallel()
	cfg, err := configFile(t, `
runtimes:
  python: poll
  ecs_platform: { kind: sqs, queue_url: "https://sqs.eu-west-1.amazonaws.com/1/tasks", dlq_url: "https://sqs.eu-west-1.amazonaws.com/1/dead", region: eu-west-1, resend_seconds: 60, tasks_per_message: 10 }
  lambda:
    - { kind: lambda, function: heavy, operators: [sql, http_source], orgs: [acme] }
    - { kind: lambda, function: dagctl, qualifier: live, concurrency: 7, endpoint: "http://127.0.0.1:3002" }
`)
	require.NoError(t, err)
	m := cfg.RuntimeMap()
	require.Empty(t, m.Check([]string{"sql", "http_source"}))
	require.Equal(t, backends.RuntimeMap{
		"dispatcher": {{Kind: backends.InProcess}},
		"python":     {{Kind: backends.Poll}},
		"ecs_platform": {{Kind: backends.SQS, QueueURL: "https://sqs.eu-west-1.amazonaws.com/1/tasks",
			DLQURL: "https://sqs.eu-west-1.amazonaws.com/1/dead", Region: "eu-west-1", ResendSeconds: 60,
			TasksPerMessage: 10}},
		"lambda": {
			{Kind: backends.Lambda, Function: "heavy", Operators: []string{"sql", "http_source"},
				Orgs: []string{"acme"}, Concurrency: 100},
			{Kind: backends.Lambda, Function: "dagctl", Qualifier: "live", Concurrency: 7,
				Endpoint: "http://127.0.0.1:3002"},
		},
	}, m)
	require.Equal(t, []string{"dispatcher", "ecs_platform", "lambda", "python"}, m.Names())
	require.Equal(t, []string{"dispatcher"}, m.Of(backends.InProcess))
	for _, tc := range []struct{ operator, org, function string }{
		{"sql", "acme", "heavy"}, {"sql", "umbrella", "dagctl"}, {"udf", "acme", "dagctl"},
	} {
		b, ok := m.Backend("lambda", tc.operator, tc.org)
		require.True(t, ok)
		require.Equal(t, tc.function, b.Function, tc)
	}
	_, ok := m.Backend("moon", "sql", "acme")
	require.False(t, ok)
	require.Equal(t, RuntimesConfig{"dispatcher": {{Kind: backends.InProcess}}}, DefaultConfig.Runtimes,
		"the defaults stay as they are")
}

func TestRuntimesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, err := configFile(t, `
runtimes:
  a: { kind: sqs, queueurl: x }
  b: [[poll]]
  c: { kind: lambda, concurrency: many }
  d: { kind: { x: y } }
`)
	for _, want := range []string{
		`line 3: runtimes.a has no field "queueurl"; there are [concurrency dlq_url`,
		`line 4: runtimes.b[0] is not a kind`,
		`line 5: runtimes.c.concurrency has the wrong type`, `line 6: runtimes.d.kind has the wrong type`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.True(t, fault.Is(err, fault.Invalid))
	_, err = configFile(t, "runtimes: [poll]\n")
	require.ErrorContains(t, err, "line 1: runtimes is not a mapping")
}

func TestRuntimesThatCannotBe(t *testing.T) {
	t.Parallel()
	const queue = `queue_url: "http://127.0.0.1:9324/000000000000/tasks"`
	for text, want := range map[string]string{
		`a: [] `:                             "runtimes.a: is mapped to nothing",
		`a: moon`:                            `runtimes.a: "moon" is not a kind of runtime: use in-process, poll, sqs or lambda`,
		`a: `:                                `runtimes.a: "" is not a kind`,
		`A B: poll`:                          `runtimes: "A B" is not a runtime's name`,
		`a: { kind: sqs }`:                   `runtimes.a.queue_url: "" is not a queue's URL`,
		`a: { kind: sqs, queue_url: tasks }`: `runtimes.a.queue_url: "tasks" is not a queue's URL`,
		`a: { kind: sqs, ` + queue + `, dlq_url: "http://127.0.0.1:9324/000000000000/tasks" }`: "runtimes.a.dlq_url",
		`a: { kind: sqs, ` + queue + `, function: f }`: "runtimes.a.function: " +
			"does not belong to kind sqs",
		`a: { kind: poll, region: x }`: "runtimes.a.region: " +
			"does not belong to kind poll",
		`a: { kind: sqs, ` + queue + `, resend_seconds: -1 }`:    "runtimes.a.resend_seconds: -1 is not between 1 and 86400",
		`a: { kind: lambda, function: f, resend_seconds: 5 }`:    "runtimes.a.resend_seconds: does not belong to kind lambda",
		`a: { kind: sqs, ` + queue + `, tasks_per_message: 11 }`: "runtimes.a.tasks_per_message: 11 is not between 1 and 10",
		`a: { kind: poll, tasks_per_message: 5 }`:                "runtimes.a.tasks_per_message: does not belong to kind poll",
		`a: { kind: lambda }`:                                    `runtimes.a.function: "" is not a function's name or ARN`,
		`a: { kind: lambda, function: "x y" }`:                   "runtimes.a.function",
		`a: { kind: lambda, function: f, concurrency: -1 }`:      "runtimes.a.concurrency: -1 is not between 1 and 10000",
		`a: { kind: lambda, function: f, endpoint: "ftp://x" }`:  "runtimes.a.endpoint",
		`a: { kind: poll, operators: [sqll] }`:                   `runtimes.a.operators: there is no operator "sqll"`,
		`a: { kind: poll, orgs: [acme] }`: "runtimes.a: " +
			"tasks of any operator have nowhere to go for orgs that are not named",
		`a: [{ kind: poll, orgs: [acme], operators: [sql] }, { kind: poll, operators: [command] }]`: "runtimes.a: " +
			"tasks of operator sql have nowhere to go",
		`a: [poll, { kind: poll, orgs: [acme] }]`: "runtimes.a[1]: " +
			"never gets a task: the entry [0] before it takes all of them",
		`a: [{ kind: sqs, operators: [sql], ` + queue + ` }, in-process]`: "runtimes.a[1]: " +
			"is in-process, and the entry before it sqs: a runtime has one kind, or mixes in-process and poll",
	} {
		cfg, err := configFile(t, "runtimes:\n  "+text+"\n")
		require.NoError(t, err, text)
		problems := cfg.RuntimeMap().Check([]string{"sql", "command"})
		require.Len(t, problems, 1, "%s: %v", text, problems)
		require.Contains(t, problems[0].Location+": "+problems[0].Message, want, text)
	}
}

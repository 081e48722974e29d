package examples_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

// TestFlightsOnAFleet deploys one file to two servers. On the first, the server itself runs all built-in operators, and
// files are in a folder. On the second, each job has a runtime of its own, and files are in a bucket: the server runs
// the sources, `dagctl worker` behind SQS the delays of airports, and a Lambda function those of routes. A polling
// Python worker makes the ranking of both. Both servers publish the same data.
func TestFlightsOnAFleet(t *testing.T) {
	t.Parallel()
	here := newFleet(t, nil, "ecs_platform: in-process", "lambda: in-process", "python: poll")
	here.python(t)
	here.deploy(t)

	queues := testaws.SQS(t)
	queue, dlq := queues.NewWithDLQ(t, 5, nil)
	there := newFleet(t, tests3.Start(t),
		fmt.Sprintf("ecs_platform: { kind: sqs, queue_url: %q, dlq_url: %q, endpoint: %q, region: %s }", queue, dlq,
			queues.Endpoint, testaws.Region),
		fmt.Sprintf("lambda: { kind: lambda, function: dagctl, endpoint: %q, region: %s, concurrency: 1 }",
			lambdaFunction(t), testaws.Region),
		"python: poll")

	there.python(t)
	there.start(t, there.dagctl(t, "worker", "--runtime", "ecs_platform", "--queue", queue, "--endpoint",
		queues.Endpoint, "--region", testaws.Region))
	there.deploy(t)

	here.settle(t)
	there.settle(t)
	require.Equal(t, []string{"airport_delays server", "airport_ranking worker", "airports server",
		"flights_raw server", "route_delays server"}, here.ran(t))
	require.Equal(t, []string{"airport_delays worker", "airport_ranking worker", "airports server",
		"flights_raw server", "route_delays lambda:dagctl"}, there.ran(t))

	s := session(t)
	for _, p := range document(t, "us-flights").Publish {
		require.NoError(t, s.Exec(t.Context(), fmt.Sprintf("CREATE TABLE %s AS FROM %s", p.Name,
			duck.ReadParquet(here.files(t, p.Name)))))
		there.equal(t, s, p.Name, p.Name)
	}
	require.Empty(t, queues.Receive(t, dlq, 0))

	require.DirExists(t, filepath.Join(here.data, "storage", "local"))
	require.NoDirExists(t, filepath.Join(there.data, "storage", "local"), "all files are in the bucket")
}

// fleet is a server with runtimes outside its process, and three days of flights.
type fleet struct {
	*world
	url    string
	env    []string // of commands and workers
	worker string   // token
}

// newFleet starts a server whose files are in the bucket, if there is one. runtimes are lines of its config.
func newFleet(t *testing.T, bucket *tests3.Server, runtimes ...string) *fleet {
	t.Helper()
	f := &fleet{world: newWorld(t, "us-flights"), env: processtest.Environment(t)}
	f.spread(t)
	f.url = "http://" + processtest.FreeAddress(t)
	f.env = append(f.env, "DAGCTL_URL="+f.url, "DAGCTL_SECRETS_KEY="+authz.NewVaultKey(),
		"AWS_ACCESS_KEY_ID=AKIATEST", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION="+testaws.Region)
	files := ""
	if bucket != nil {
		f.s3 = &storage.S3Config{Bucket: bucket.Bucket, Region: bucket.Region, Endpoint: bucket.Endpoint,
			PathStyle:   true,
			AccessKeyID: bucket.AccessKeyID, SecretAccessKey: bucket.SecretAccessKey}
		files = fmt.Sprintf(", s3: { bucket: %s, region: %s, endpoint: %q, path_style: true, access_key_id: %q, "+
			"secret_access_key: %q }",
			bucket.Bucket, bucket.Region, bucket.Endpoint, bucket.AccessKeyID, bucket.SecretAccessKey)
	}

	key := filepath.Join(t.TempDir(), "task.pem")
	_, err := authz.EnsureTaskKey(key)
	require.NoError(t, err)

	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
database_url: %q
listen: %s
base_url: %s
storage: { root: %q%s }
tasks: { key_files: [%q] }
file_roots: { local: [%q] }
log: { format: text }
runtimes:
  dispatcher: in-process
  %s
`, f.dbURL, strings.TrimPrefix(f.url, "http://"), f.url, filepath.Join(f.data, "storage"), files, key, f.dir,
		strings.Join(runtimes, "\n  ")), 0o600))

	f.start(t, f.dagctl(t, "serve", "--config", config))
	processtest.Eventually(t, "the server is ready", func() bool {
		answer, err := http.Get(f.url + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})

	var first, made struct{ Secret string }
	f.decode(t, &first, "admin", "bootstrap", "--org", "local", "--database-url", f.dbURL)
	f.env = append(f.env, "DAGCTL_TOKEN="+first.Secret)
	f.decode(t, &made, "tokens", "create", "fleet", "--kind", "worker", "--runtime", "ecs_platform", "--runtime",
		"python")
	f.worker = made.Secret
	return f
}

// spread reduces the example to three days and gives each job a runtime.
func (w *world) spread(t *testing.T) {
	t.Helper()
	days, err := filepath.Glob(filepath.Join(w.dir, "data", "flights", "*.csv.gz"))
	require.NoError(t, err)

	for _, day := range days[3:] {
		require.NoError(t, os.Remove(day))
	}
	file := filepath.Join(w.dir, "dag.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)

	ranking, err := os.ReadFile(filepath.Join(w.dir, "sql", "airport_ranking.sql"))
	require.NoError(t, err)
	for old, changed := range map[string]string{
		"- name: airport_delays\n":  "- name: airport_delays\n    runtime: ecs_platform\n",
		"- name: route_delays\n":    "- name: route_delays\n    runtime: lambda\n",
		"- name: airport_ranking\n": "- name: airport_ranking\n    runtime: python\n",
		// A handler's config is free-form
		"config: { query_file: sql/airport_ranking.sql }": fmt.Sprintf(`config: { handler: "flights:rank", query: %q }`,
			ranking),
		"map: { window: month }": "map: { window: month, require: available }",
	} {
		require.Equal(t, 1, bytes.Count(text, []byte(old)), old)
		text = bytes.Replace(text, []byte(old), []byte(changed), 1)
	}

	job := bytes.Index(text, []byte("- name: airport_ranking\n"))
	text = append(text[:job:job], bytes.Replace(text[job:], []byte("operator: sql"), []byte("operator: handler"), 1)...)
	require.NoError(t, os.WriteFile(file, text, 0o600))
}

// dagctl returns a command with the environment's token.
func (f *fleet) dagctl(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, _, _ := strings.Cut(strings.TrimPrefix(f.env[0], "PATH="), string(os.PathListSeparator))
	cmd := exec.Command(filepath.Join(path, "dagctl"), args...)
	cmd.Env = append([]string{}, f.env...)
	if args[0] == "worker" {
		cmd.Env = append(cmd.Env, "DAGCTL_TOKEN="+f.worker)
	}
	return cmd
}

func (f *fleet) decode(t *testing.T, into any, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := f.dagctl(t, append(args, "--output", "json")...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "dagctl %s\n%s%s", strings.Join(args, " "), &out, &errs)
	require.NoError(t, json.Unmarshal(out.Bytes(), into), out.String())
}

// deploy deploys without waiting for the build.
func (f *fleet) deploy(t *testing.T) {
	t.Helper()
	var deployed any
	f.decode(t, &deployed, "deploy", f.dir, "--yes", "--wait=false", "--var", "landing="+filepath.Join(f.dir, "data"))
}

// python starts the worker that makes the ranking.
func (f *fleet) python(t *testing.T) {
	t.Helper()
	sdk, err := filepath.Abs("../sdk/python")
	require.NoError(t, err)
	cmd := exec.Command("python3", filepath.Join("testdata", "rank.py"))
	cmd.Env = append(append([]string{}, f.env...), "DAGCTL_TOKEN="+f.worker, "PYTHONPATH="+sdk,
		"PYTHONDONTWRITEBYTECODE=1")
	f.start(t, cmd)
}

// start starts a process. It stops at the test's end, and must not have failed by then.
func (f *fleet) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("%s\n%s", cmd, &said)
		}
		require.NoError(t, err)
	})
}

// ran returns the kind of worker that each job's completed attempts ran on.
func (f *fleet) ran(t *testing.T) (jobs []string) {
	t.Helper()
	rows, err := f.owner.Query(t.Context(), `SELECT DISTINCT j.name || ' ' || CASE
		WHEN t.worker_id LIKE 'lambda:%' THEN t.worker_id
			WHEN a.given IS NULL THEN 'server' ELSE 'worker' END
		FROM tasks t JOIN jobs j ON j.id = t.job_id LEFT JOIN task_attempts a ON a.task_id = t.id
			AND a.attempt = t.attempt
		WHERE t.status = 'Completed' AND t.kind <> 'check' ORDER BY 1`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var job string
		require.NoError(t, rows.Scan(&job))
		jobs = append(jobs, job)
	}
	require.NoError(t, rows.Err())
	return jobs
}

// lambdaFunction returns the endpoint of function `dagctl`, the real bootstrap with aws-lambda-go's loop.
func lambdaFunction(t *testing.T) (endpoint string) {
	t.Helper()
	bootstraps := testaws.NewBootstraps(t)
	program := filepath.Join(t.TempDir(), "bootstrap")
	output, err := exec.Command("go", "build", "-ldflags=-w", "-o", program,
		"github.com/dagctl/dagctl/cmd/dagctl-lambda").CombinedOutput()
	require.NoError(t, err, string(output))

	cmd := exec.Command(program)
	cmd.Env = append(processtest.Environment(t), "AWS_LAMBDA_RUNTIME_API="+bootstraps.Address(t))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start())

	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill()) // as Lambda ends an idle function
		_ = cmd.Wait()
	})
	return testaws.Lambda(t, map[string]testaws.Function{"dagctl": bootstraps.Function()})
}

package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/worker/protocol"
)

// TestMain makes this binary the bootstrap too, with its real loop, and an engine, and the first stage of the code that
// it confines.
func TestMain(m *testing.M) {
	inside.Main()
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") != "" || len(os.Args) == 2 && os.Args[1] == "sandbox-stage" {
		main()
		return
	}
	os.Exit(m.Run())
}

// capability is that of the task.
const capability = "capability-of-the-task"

// machine imitates the machine of a function: its bootstrap runs as an ordinary user, and nothing else runs.
type machine struct {
	cmd    *exec.Cmd
	key    string // credentials of the function's role, as no other machine of the tests has them
	folder string // of temporary files
	api    string // Runtime API
	server string // the dagctl server, as far as a task sees it

	events      chan []byte
	results     chan string
	completions chan protocol.Completion
	archive     []byte // of the code
}

const stranger = 64532

func newMachine(t *testing.T, env ...string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "dagctl-lambda-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, removeAll(dir)) })
	m := &machine{key: "role-key-" + uuid.NewString(), folder: filepath.Join(dir, "tmp"),
		events: make(chan []byte), results: make(chan string),
		completions: make(chan protocol.Completion, 1)}
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Mkdir(m.folder, 0o700))
	program := filepath.Join(dir, "bootstrap")
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, self, 0o755))
	api := httptest.NewServer(http.HandlerFunc(m.runtimeAPI))
	t.Cleanup(api.Close)
	m.api = strings.TrimPrefix(api.URL, "http://")
	server := httptest.NewServer(m.tasks(t))
	t.Cleanup(server.Close)
	m.server = server.URL

	m.cmd = exec.Command(program)
	m.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + m.folder, "AWS_LAMBDA_RUNTIME_API=" + m.api,
		"AWS_SECRET_ACCESS_KEY=" + m.key}, env...)
	m.cmd.Dir, m.cmd.Stdout, m.cmd.Stderr = "/", t.Output(), t.Output()
	if os.Geteuid() == 0 {
		m.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
		require.NoError(t, os.Chown(m.folder, stranger, stranger))
	}
	return m
}

func (m *machine) start(t *testing.T) {
	t.Helper()
	require.NoError(t, m.cmd.Start())
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
	})
}

// runtimeAPI imitates the API that Lambda offers a bootstrap:
// https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html.
func (m *machine) runtimeAPI(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/invocation/next") {
		select {
		case e := <-m.events:
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", uuid.NewString())
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
			_, _ = w.Write(e)
		case <-r.Context().Done():
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	w.WriteHeader(http.StatusAccepted)
	m.results <- r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] + " " + string(body)
}

// tasks imitates the server for one task of operator udf.
func (m *machine) tasks(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	answer := func(path string, body any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, capability, r.Header.Get(protocol.CapabilityHeader))
			assert.NoError(t, json.NewEncoder(w).Encode(body))
		})
	}
	answer("POST /v1/task/heartbeat", protocol.HeartbeatAnswer{LeaseExpiresAt: time.Now().Add(time.Minute)})
	answer("POST /v1/task/logs", protocol.LogsAnswer{Accepted: 1 << 30})
	answer("PUT /v1/task/outputs/0/{file}", protocol.UploadedFile{Name: "0.parquet", ETag: "etag"})
	mux.HandleFunc("GET /v1/task/udf", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(m.archive) })
	mux.HandleFunc("POST /v1/task/complete", func(w http.ResponseWriter, r *http.Request) {
		var c protocol.Completion
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&c))
		m.completions <- c
		assert.NoError(t, json.NewEncoder(w).Encode(protocol.TaskState{Status: c.Status}))
	})
	return mux
}

// run invokes the function with a task that runs the code of testdata/NAME.
func (m *machine) run(t *testing.T, name, entrypoint string, params map[string]any) protocol.Completion {
	t.Helper()
	bundle, err := dag.ReadBundle(os.DirFS("testdata"), name)
	require.NoError(t, err)
	var archive bytes.Buffer
	files := zip.NewWriter(&archive)
	for path, data := range bundle.Files {
		w, err := files.Create(path)
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, files.Close())
	m.archive = archive.Bytes()
	lease := uuid.New()
	event, err := json.Marshal(protocol.Claim{Status: protocol.Claimed, Attempt: 1, LeaseToken: &lease,
		CapabilityToken: capability, BaseURL: m.server,
		Task: &protocol.Task{TaskID: uuid.New(), Attempt: 1, Org: "acme", Job: protocol.Job{DAGName: "d", Name: "j"},
			Kind: "manual", Operator: dag.OwnCode, OperatorVersion: "1.0.0",
			Config:    map[string]any{"params": params, "memory_mb": 256},
			UDF:       &protocol.UDF{Hash: bundle.Hash, Entrypoint: entrypoint},
			Outputs:   []protocol.Output{{Index: 0, Name: "j", UpdateStrategy: "replace", Storage: "parquet"}},
			TimeoutAt: time.Now().Add(time.Minute), LeaseSeconds: 30}})
	require.NoError(t, err)
	m.events <- event
	select {
	case c := <-m.completions:
		require.Equal(t, "response null", <-m.results)
		return c
	case result := <-m.results:
		require.Fail(t, "it ended without telling the server", result)
		return protocol.Completion{}
	}
}

// Somebody else's code runs in a function, twice, and reaches nothing: not the credentials of the function's role, not
// the task's capability, not the Runtime API, which would give it the next task, and not the files of the run before
// it.
func TestOwnCodeInAFunctionGetsAtNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "AWS_LAMBDA_FUNCTION_NAME=own-code", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=1024", "DAGCTL_UDF=on")
	m.start(t)
	for range 2 {
		c := m.run(t, "attack", "attack.py", map[string]any{"wanted": []string{m.key, capability},
			"runtime_api": m.api, "folder": m.folder, "address": 0x400000})
		require.Equal(t, "Completed", c.Status, c.Error)
		var result struct {
			Got   []string
			UID   int
			Stays int
		}
		require.NoError(t, json.Unmarshal(c.Result, &result))
		require.Empty(t, result.Got)
		require.NotZero(t, result.UID)
		require.Eventually(t, func() bool { return over(result.Stays) }, time.Minute, 10*time.Millisecond,
			"what it started ends with it")
	}
	if os.Geteuid() == 0 { // who may read everything
		environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.cmd.Process.Pid), "environ"))
		require.NoError(t, err)
		require.Contains(t, string(environment), m.key, "it was there to be read")
	}
}

// over reports whether a process has ended, even if its parent has not waited for it yet.
func over(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// A function without DAGCTL_UDF runs no such code, and one that cannot confine the code does not start.
func TestOwnCodeNeedsItsOwnFunction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  []string
		root bool
		says string
	}{
		"no function": {[]string{"DAGCTL_UDF=on"}, false, "is for Lambda functions"},
		"others beside it": {[]string{"DAGCTL_UDF=on", "AWS_LAMBDA_FUNCTION_NAME=f", "DAGCTL_OPERATORS=sql,udf"},
			false, "runs operator udf alone"},
		"root hides nothing": {[]string{"DAGCTL_UDF=on", "AWS_LAMBDA_FUNCTION_NAME=f"}, true, "rights of root"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.root && os.Geteuid() != 0 {
				return // nobody here is root
			}
			m := newMachine(t, c.env...)
			var said bytes.Buffer
			m.cmd.Stderr = &said
			if c.root {
				m.cmd.SysProcAttr = nil
			}
			require.Error(t, m.cmd.Run())
			require.Contains(t, said.String(), c.says)
		})
	}
}

package blockfollower_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/testgeth"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/blockfollower"
)

const loopback = "127.0.0.0/8"

func operator(t *testing.T, allowed ...string) operators.Enumerator {
	t.Helper()
	op, err := blockfollower.New(operators.Options{Engines: enginetest.Engines(), AllowedAddresses: allowed})
	require.NoError(t, err)
	return op.(operators.Enumerator)
}

// front stands between the operator and a node, as a provider's load balancer does.
type front struct {
	*httptest.Server
	node    *testgeth.Node
	refuse  atomic.Int64 // status to answer with; 0: the node answers
	refused atomic.Int64 // how many requests were refused
	once    atomic.Bool  // refuse one request only
	end     atomic.Int64 // the highest block that the node is said to have
	lies    atomic.Int64 // added to the number of the last block
	calls   atomic.Int64
	header  atomic.Pointer[http.Header] // of the last request
}

func newFront(t *testing.T, node *testgeth.Node) *front {
	t.Helper()
	f := &front{node: node}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

type call struct {
	ID     int    `json:"id"`
	Method string `json:"method"`
	Params []any  `json:"params"`
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := r.Header.Clone()
	f.header.Store(&header)
	if code := f.refuse.Load(); code != 0 {
		f.refused.Add(1)
		if f.once.Load() {
			f.refuse.Store(0)
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(int(code))
		return
	}

	body, _ := io.ReadAll(r.Body)
	var calls []call
	if json.Unmarshal(body, &calls) != nil {
		calls = make([]call, 1)
		_ = json.Unmarshal(body, &calls[0])
	}
	f.calls.Add(int64(len(calls)))
	answers := make([]map[string]any, len(calls))
	for i, c := range calls {
		var result json.RawMessage
		f.node.Call(&result, c.Method, c.Params...)
		answers[len(calls)-1-i] = map[string]any{"jsonrpc": "2.0", "id": c.ID, "result": f.cut(c, result)}
	}
	if strings.HasPrefix(string(body), "{") {
		_ = json.NewEncoder(w).Encode(answers[0])
		return
	}
	_ = json.NewEncoder(w).Encode(answers)
}

// cut returns a result as a node would give it that does not have the blocks after the end.
func (f *front) cut(c call, result json.RawMessage) json.RawMessage {
	end := f.end.Load()
	var text string
	switch {
	case c.Method == "eth_getBlockByNumber":
		if n, err := strconv.ParseInt(c.Params[0].(string), 0, 64); err == nil && n > end {
			return json.RawMessage("null")
		}
	case c.Method == "eth_blockNumber" && json.Unmarshal(result, &text) == nil:
		n, _ := strconv.ParseInt(text, 0, 64)
		return json.RawMessage(fmt.Sprintf(`"0x%x"`, min(n, end)+f.lies.Load()))
	}
	return result
}

// newChain starts a node whose blocks are seen through a front, so that tests know exactly where the chain ends.
func newChain(t *testing.T) *front {
	t.Helper()
	f := newFront(t, testgeth.Start(t))
	f.end.Store(0)
	return f
}

// mine makes the chain longer.
func (f *front) mine(blocks int64) {
	f.node.MineTo(f.end.Load() + blocks)
	f.end.Add(blocks)
}

// setHead takes back all blocks after one.
func (f *front) setHead(block int64) {
	f.node.SetHead(block)
	f.end.Store(block)
}

// world is a dataset that a follower makes, with what the platform keeps of it: the versions and files of partitions.
type world struct {
	t       *testing.T
	op      operators.Enumerator
	config  map[string]any
	by      dag.Partitioning
	known   map[string]string
	files   map[string][]string // by partition, of the last run
	secrets map[string]secret.Value
}

func newWorld(t *testing.T, url string, more map[string]any) *world {
	t.Helper()
	config := map[string]any{"url": url, "chain_id": testgeth.ChainID}
	for name, value := range more {
		config[name] = value
	}
	return &world{t: t, op: operator(t, loopback), config: config, known: map[string]string{},
		by:    dag.Partitioning{Kind: dag.ByRange, Size: 4, Column: "block_number"},
		files: map[string][]string{}}
}

// poll lists the units, as the platform does, and returns those that it would make tasks for.
func (w *world) poll() ([]operators.Unit, error) {
	units, err := w.op.Enumerate(w.t.Context(), operators.Enumeration{Config: w.config, PartitionBy: w.by,
		Known: w.known, Secrets: w.secrets})
	var wanted []operators.Unit
	for _, u := range units {
		require.NoError(w.t, w.by.Valid(u.Partition))
		if w.known[u.Partition] != u.Version {
			wanted = append(wanted, u)
		}
	}
	return wanted, err
}

// run does the task of a unit.
func (w *world) run(u operators.Unit) error {
	w.t.Helper()
	out := w.t.TempDir()
	task := &operators.Task{Assignment: operators.Assignment{TaskID: uuid.New(), Attempt: 1, OrgSlug: "acme", DAG: "d",
		Job: "j", Config: w.config, PartitionBy: w.by, Partition: &operators.PartitionRange{Key: u.Partition},
		Payload: u.Payload, Secrets: w.secrets}, Scratch: w.t.TempDir(), OutputDirs: []string{out},
		Progress: func(int, string) {}, Log: slog.New(slog.DiscardHandler)}
	result, err := w.op.Run(w.t.Context(), task)
	if err != nil {
		return err
	}
	w.known[u.Partition] = result.SourceVersion
	files, err := filepath.Glob(filepath.Join(out, "*.parquet"))
	w.files[u.Partition] = files
	return err
}

// follow polls once, does the tasks, and returns their partitions.
func (w *world) follow() (made []string) {
	w.t.Helper()
	units, err := w.poll()
	require.NoError(w.t, err)
	made = []string{}
	for _, u := range units {
		require.NoError(w.t, w.run(u))
		require.Equal(w.t, u.Version, w.known[u.Partition])
		made = append(made, u.Partition)
	}
	return made
}

// isTheChain requires that the dataset has the node's blocks from one to another, and no others.
func (w *world) isTheChain(f *front, from, to int64) {
	w.t.Helper()
	s, err := duck.Open(w.t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(w.t, err)
	defer s.Close()
	var files []string
	for _, some := range w.files {
		files = append(files, some...)
	}
	rows, err := s.Query(w.t.Context(), "SELECT block_number, hash FROM "+duck.ReadParquet(files)+" ORDER BY ALL")
	require.NoError(w.t, err)
	defer rows.Close()

	got, want := []string{}, []string{}
	for rows.Next() {
		var number int64
		var hash string
		require.NoError(w.t, rows.Scan(&number, &hash))
		got = append(got, fmt.Sprint(number, " ", hash))
	}
	require.NoError(w.t, rows.Err())
	for number := from; number <= to; number++ {
		var b struct{ Hash string }
		f.node.Call(&b, "eth_getBlockByNumber", fmt.Sprintf("0x%x", number), false)
		want = append(want, fmt.Sprint(number, " ", b.Hash))
	}
	require.Equal(w.t, want, got)
}

// Package testgeth starts a real Ethereum node for a test: go-ethereum in developer mode, a chain of its own that mines
// a block for each transaction and whose head can be set back. It owns no tables.
//
// The node's version is pinned in tools/geth/go.mod. The first test that needs it builds it, once per machine, in
// .cache of the repository.
package testgeth

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/dagctl/dagctl/internal/testserver"
)

// ChainID is the id of developers' chains.
const ChainID = 1337

// Node is a running node, whose chain has its first block, 0, only.
type Node struct {
	URL string // http://127.0.0.1:port

	t       testing.TB
	account string // has all the money
	mined   int64  // the value of the last transaction, so that no two are alike
}

// Start starts a node that ends with the test.
func Start(t testing.TB) *Node {
	t.Helper()
	binary, err := testserver.Build("geth", "github.com/ethereum/go-ethereum/cmd/geth", "CGO_ENABLED=0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	process := testserver.NewProcess(t, binary, "/", filepath.Join(dir, "geth.log"))
	err = process.Begin(t.Context(), func(address string) ([]string, error) {
		host, port, err := net.SplitHostPort(address)
		return []string{"--dev", "--datadir", filepath.Join(dir, "data"), "--http", "--http.addr", host, "--http.port",
			port, "--http.api", "eth,debug", "--authrpc.port", "0", "--port", "0", "--ipcdisable", "--nodiscover",
			"--maxpeers", "0", "--cache", "32", "--verbosity", "2"}, err
	})
	if err != nil {
		t.Fatalf("start the Ethereum node of the tests: %v", err)
	}

	n := &Node{URL: process.URL(), t: t}
	var accounts []string
	n.Call(&accounts, "eth_accounts")
	n.account = accounts[0]
	return n
}

// Call calls a method and reads its result.
func (n *Node) Call(result any, method string, params ...any) {
	n.t.Helper()
	if params == nil {
		params = []any{}
	}
	if err := n.call(result, method, params); err != nil {
		n.t.Fatalf("%s: %v", method, err)
	}
}

func (n *Node) call(result any, method string, params []any) error {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, n.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	var answer struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return fmt.Errorf("the node says: %s", answer.Error.Message)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

// Quantity returns a number as JSON-RPC writes it.
func Quantity(n int64) string { return "0x" + strconv.FormatInt(n, 16) }

// Tip returns the number of the last block.
func (n *Node) Tip() int64 {
	n.t.Helper()
	var text string
	n.Call(&text, "eth_blockNumber")
	tip, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return tip
}

// MineTo mines until the chain has at least a block of this number. The node decides how transactions come into
// blocks: now and then it adds a block without any, even a moment later.
func (n *Node) MineTo(block int64) {
	n.t.Helper()
	for n.Tip() < block {
		n.mined++
		n.Send(map[string]string{"to": "0x000000000000000000000000000000000000dead",
			"value": Quantity(n.mined)})
	}
}

// Send sends a transaction of the account that has all the money, and waits for a block. After SetHead it may not come
// into that one.
func (n *Node) Send(transaction map[string]string) {
	n.t.Helper()
	transaction["from"] = n.account
	before, end := n.Tip(), time.Now().Add(patience)
	n.Call(nil, "eth_sendTransaction", transaction)
	for n.Tip() == before && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
}

// patience is how long a transaction may take. One that was sent while the node took back others waits for a next one.
const patience = time.Second

// SetHead takes back all blocks after one. Others come in their place, and never the same.
func (n *Node) SetHead(block int64) {
	n.t.Helper()
	n.Call(nil, "debug_setHead", Quantity(block))
}

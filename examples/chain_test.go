package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/testgeth"
)

// chain is the example at work beside a node.
type chain struct {
	*world
	t      *testing.T
	node   *testgeth.Node
	root   string // the folder that holds examples/chain, in which a reader of its README is
	readme string
	env    []string
}

// runs runs the commands of a block of the README, which has this name, and returns what they print.
func (c *chain) runs(block string) string {
	c.t.Helper()
	_, text, found := strings.Cut(c.readme, "```sh "+block+"\n")
	require.True(c.t, found, block)
	text, _, _ = strings.Cut(text, "```")
	cmd := exec.CommandContext(c.t.Context(), "sh", "-ec", text)
	cmd.Dir, cmd.Env = c.root, c.env
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
	return string(out)
}

// hash returns the hash of a block, and false if the node does not have it.
func (c *chain) hash(block int64) (hash string, ok bool) {
	var b *struct{ Hash string }
	c.node.Call(&b, "eth_getBlockByNumber", testgeth.Quantity(block), false)
	if b == nil {
		return "", false
	}
	return b.Hash, true
}

// follows waits until the published blocks are those of the node, up to two before its last one, and all is computed.
func (c *chain) follows() (last int64) {
	c.t.Helper()
	s := session(c.t)
	processtest.Eventually(c.t, "the blocks are those of the node", func() bool {
		c.settle(c.t)
		last = c.node.Tip() - 2
		rows, err := s.Query(c.t.Context(), "SELECT block_number, hash FROM "+duck.ReadParquet(c.files(c.t, "blocks"))+
			" ORDER BY block_number")
		require.NoError(c.t, err)
		defer rows.Close()

		next := int64(0)
		for rows.Next() {
			var number int64
			var hash string
			require.NoError(c.t, rows.Scan(&number, &hash))
			if is, ok := c.hash(number); number != next || !ok || is != hash {
				return false
			}
			next++
		}
		require.NoError(c.t, rows.Err())
		return next == last+1
	})
	return last
}

// made returns how many tasks of each job completed by partition, as "job partition".
func (c *chain) made() map[string]int {
	c.t.Helper()
	rows, err := c.owner.Query(c.t.Context(), `
		SELECT j.name || ' ' || t.partitions[1], count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE t.status = 'Completed' AND t.kind <> 'check' GROUP BY 1`)
	require.NoError(c.t, err)
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		require.NoError(c.t, rows.Scan(&name, &n))
		counts[name] = n
	}
	require.NoError(c.t, rows.Err())
	return counts
}

// since returns the partitions that jobs made anew since then, in their order.
func since(before, after map[string]int, job string) (partitions []string) {
	for name, n := range after {
		if partition, ok := strings.CutPrefix(name, job+" "); ok && n > before[name] {
			partitions = append(partitions, partition)
		}
	}
	slices.Sort(partitions)
	return partitions
}

// ranges are the partitions from one block to another.
func ranges(from, to int64) (keys []string) {
	for at := from - from%10; at <= to; at += 10 {
		keys = append(keys, fmt.Sprintf("%d-%d", at, at+10))
	}
	slices.Sort(keys)
	return keys
}

// TestChain runs the README of examples/chain: blocks of a go-ethereum node are followed, a re-organisation rewrites
// the ranges that it changed and what was computed from them, and one that is too deep stops the source.
func TestChain(t *testing.T) {
	t.Parallel()
	node := testgeth.Start(t)
	w := newWorld(t, "chain")
	root := t.TempDir()
	c := &chain{world: w, t: t, node: node, root: root, env: append(processtest.Environment(t), "NODE="+node.URL)}
	w.dir, w.data = filepath.Join(root, "examples", "chain"), filepath.Join(root, ".dagctl")
	require.NoError(t, os.CopyFS(w.dir, os.DirFS("chain")))
	text, err := os.ReadFile(filepath.Join(w.dir, "README.md"))
	require.NoError(t, err)
	c.readme = string(text)
	c.runs("send")
	server := processtest.Dev(t, w.dir, w.data, "--database-url", w.dbURL, "--var", "node="+node.URL)

	// The history is read, the chain is followed, and every range and what depends on it is there.
	last := c.follows()
	require.Greater(t, last, int64(40))
	require.Equal(t, ranges(0, last), since(nil, c.made(), "activity"))
	require.Equal(t, ranges(0, 9), since(nil, c.made(), "history"))
	require.Equal(t, ranges(10, last), since(nil, c.made(), "follower"))
	shown := c.runs("look")
	require.Contains(t, shown, "0x000000000000000000000000000000000000beef")

	// A re-organisation: only the ranges from block 26 on are made anew.
	before := c.made()
	c.runs("reorganise")
	if tip := last + 3; node.Tip() < tip {
		node.MineTo(tip)
	}
	last = c.follows()
	after := c.made()
	for _, job := range []string{"follower", "payments", "activity"} {
		require.Equal(t, ranges(20, last), since(before, after, job), job)
	}
	require.Contains(t, c.runs("look"), "0x000000000000000000000000000000000000cafe")
	require.Contains(t, c.runs("tasks"), "20-30")

	// One that is too deep: nothing is made, the source says why, and what is published stays.
	published := c.files(t, "blocks")
	node.SetHead(12)
	node.MineTo(22)
	processtest.Eventually(t, "the source has an error", func() bool {
		return w.count(t, `SELECT count(*) FROM sources WHERE error LIKE '%replaced more than the last 32 blocks%'`) == 1
	})
	require.Contains(t, c.runs("sources"), "replaced more than the last 32 blocks")
	require.Equal(t, after, c.made())
	require.Len(t, c.files(t, "blocks"), len(published))

	// With a deeper max_reorg it is followed, and nothing but what changed is made.
	node.MineTo(last + 4)
	file := filepath.Join(w.dir, "dag.yaml")
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	deeper := strings.Replace(string(text), "max_reorg: 32", "max_reorg: 1000", 1)
	require.NoError(t, os.WriteFile(file, []byte(deeper), 0o600))
	processtest.Eventually(t, "the change is deployed", func() bool {
		return w.count(t, `SELECT count(*) FROM dag_versions WHERE status = 'Active'`) == 1 &&
			w.count(t, `SELECT count(*) FROM dag_versions`) == 2
	})
	last = c.follows()
	for _, job := range []string{"follower", "payments", "activity"} {
		require.Equal(t, ranges(10, last), since(after, c.made(), job), job)
	}
	require.Empty(t, since(before, c.made(), "history"), "it is read once")
	server.Stop(t)
}

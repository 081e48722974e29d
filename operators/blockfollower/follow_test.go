package blockfollower_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
)

func TestTheTipIsFollowed(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"confirmations": 2})
	n.mine(1)
	require.Empty(t, w.follow(), "block 0 has one block after it")

	n.mine(11) // 12, of which 10 have two after them
	require.Equal(t, []string{"0-4", "4-8", "8-12"}, w.follow())
	w.isTheChain(n, 0, 10)
	require.Empty(t, w.follow())

	n.mine(1)
	require.Equal(t, []string{"8-12"}, w.follow(), "it grows")
	n.mine(1)
	require.Equal(t, []string{"12-16"}, w.follow())
	w.isTheChain(n, 0, 12)
}

func TestWholeRangesOnly(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"partial": false, "start_block": 2})
	n.mine(6)
	require.Equal(t, []string{"0-4"}, w.follow())
	w.isTheChain(n, 2, 3)
	n.mine(1)
	require.Equal(t, []string{"4-8"}, w.follow())
	w.isTheChain(n, 2, 7)
}

func TestGapsAreFilled(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, nil)
	n.mine(15)
	w.follow()
	delete(w.known, "4-8")
	delete(w.files, "4-8")
	w.known["8-12"] = "" // made by hand, of nobody knows what
	require.Equal(t, []string{"4-8", "8-12"}, w.follow())
	w.isTheChain(n, 0, 15)
}

func TestAReorganisationRewritesWhatItChanged(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, nil)
	n.mine(21)
	require.Len(t, w.follow(), 6)

	n.setHead(13)
	n.mine(7) // 20: one less than before
	require.Empty(t, w.follow(), "until the other branch is as long, the dataset stays a chain that was")
	n.mine(1)
	require.Equal(t, []string{"12-16", "16-20", "20-24"}, w.follow())
	w.isTheChain(n, 0, 21)
	require.Empty(t, w.follow())

	// At the border of a range: the one before stays.
	n.setHead(15)
	n.mine(10)
	require.Equal(t, []string{"16-20", "20-24", "24-28"}, w.follow())
	w.isTheChain(n, 0, 25)
}

func TestAReorganisationDuringItsRewriting(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, nil)
	n.mine(15)
	w.follow()

	n.setHead(5)
	n.mine(10)
	units, err := w.poll()
	require.NoError(t, err)
	require.Len(t, units, 3) // 4-8, 8-12, 12-16
	require.NoError(t, w.run(units[2]))

	// The last range alone is of the new branch: those before it are not vouched for by it.
	require.Equal(t, []string{"4-8", "8-12"}, w.follow())
	w.isTheChain(n, 0, 15)

	// Blocks that were listed are others when they are read: what is read counts, and the next poll compares.
	n.mine(4)
	units, err = w.poll()
	require.NoError(t, err)
	require.Len(t, units, 1)
	n.setHead(14)
	n.mine(5)
	require.NoError(t, w.run(units[0]))
	require.NotEqual(t, units[0].Version, w.known["16-20"])
	require.Equal(t, []string{"12-16"}, w.follow())
	w.isTheChain(n, 0, 19)
}

func TestAReorganisationThatIsTooDeep(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"max_reorg": 6})
	n.mine(20)
	w.follow()

	n.setHead(14) // six blocks are replaced
	n.mine(6)
	require.Equal(t, []string{"12-16", "16-20", "20-24"}, w.follow())

	before := maps.Clone(w.known)
	n.setHead(13) // and now seven, all of them in the same ranges
	n.mine(9)
	for range 2 {
		_, err := w.poll()
		require.ErrorContains(t, err, "the node has another block 14")
		require.True(t, fault.Is(err, fault.Conflict))
	}
	require.Equal(t, before, w.known)

	w.config["max_reorg"] = 7
	require.Equal(t, []string{"12-16", "16-20", "20-24"}, w.follow())
	w.isTheChain(n, 0, 22)

	// Deeper than the range in which the tip is, and the new branch is not even as long: it is an error at once.
	n.setHead(2)
	n.mine(17)
	_, err := w.poll()
	require.ErrorContains(t, err, "replaced more than the last 7 blocks")

	// A task that was listed before does not let it in, either.
	n.setHead(2)
	n.mine(22)
	w = newWorld(t, n.URL, map[string]any{"max_reorg": 6})
	w.follow()
	n.mine(3)
	units, err := w.poll()
	require.NoError(t, err)
	require.Len(t, units, 1)
	n.setHead(3)
	n.mine(30)
	require.ErrorContains(t, w.run(units[0]), "replaced more than the last 6 blocks")
}

func TestALaggingNodeTakesNothingBack(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, nil)
	n.mine(14)
	w.follow()
	n.mine(4)

	for _, end := range []int64{0, 3, 5, 13} {
		n.end.Store(end)
		require.Empty(t, w.follow(), "the node ends at %d", end)
	}
	// One node says where the chain ends, and another one behind the same address does not have those blocks.
	n.end.Store(12)
	n.lies.Store(6)
	require.Empty(t, w.follow())

	n.end.Store(18)
	n.lies.Store(0)
	units, err := w.poll()
	require.NoError(t, err)
	require.Len(t, units, 2)
	n.end.Store(16)
	require.ErrorContains(t, w.run(units[1]), "the node lags behind: its last block is 16, and block 18 is known")
	n.lies.Store(2)
	require.ErrorContains(t, w.run(units[1]), "the node does not have block 17")

	n.end.Store(18)
	n.lies.Store(0)
	require.Equal(t, []string{"12-16", "16-20"}, w.follow())
	w.isTheChain(n, 0, 18)
}

func TestANodeThatIsAwayOrBusy(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, nil)
	n.mine(9)

	n.refuse.Store(http.StatusTooManyRequests)
	n.once.Store(true)
	require.Equal(t, []string{"0-4", "4-8", "8-12"}, w.follow(), "it is asked again")
	require.EqualValues(t, 1, n.refused.Load())

	n.once.Store(false)
	n.refuse.Store(http.StatusServiceUnavailable)
	n.mine(4)
	_, err := w.poll()
	require.ErrorContains(t, err, "the node answered 503 Service Unavailable, 3 times")
	n.refuse.Store(0)
	require.Equal(t, []string{"8-12", "12-16"}, w.follow(), "what was mined meanwhile is made up for")
	w.isTheChain(n, 0, 13)

	n.Close()
	_, err = w.poll()
	require.ErrorContains(t, err, "the node does not answer")
	require.True(t, fault.Is(err, fault.Unavailable))
}

// What a node says of its tip is not kept in memory without a bound.
func TestATipBeyondAllChainsIsRefused(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, nil)
	n.mine(9)
	n.lies.Store(1 << 62)
	_, err := w.poll()
	require.ErrorContains(t, err, "at most 250000 are allowed")
	n.lies.Store(0)
	require.Equal(t, []string{"0-4", "4-8", "8-12"}, w.follow())
}

func TestALongChainCostsFewCalls(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"max_reorg": 100})
	n.mine(79)
	require.Len(t, w.follow(), 20)

	n.calls.Store(0)
	require.Empty(t, w.follow())
	require.EqualValues(t, 3, n.calls.Load(), "the chain's id, its tip, and the last block")

	n.setHead(61)
	n.mine(18)
	n.calls.Store(0)
	units, err := w.poll()
	require.NoError(t, err)
	require.Len(t, units, 5)
	require.Less(t, n.calls.Load(), int64(25), "the beginning of what changed is found by halves")
}

func TestSecretsGoToTheNode(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"batch": 1,
		"headers": map[string]any{"X-Token": map[string]any{"secret": "NODE"}}})
	n.mine(2)

	w.secrets = map[string]secret.Value{"NODE": secret.New("NODE", "hunter22", []string{"node.example.com"})}
	_, err := w.poll()
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.Nil(t, n.header.Load())

	w.secrets = map[string]secret.Value{"NODE": secret.New("NODE", "hunter22", []string{"http://*"})}
	require.Equal(t, []string{"0-4"}, w.follow())
	require.Equal(t, "hunter22", n.header.Load().Get("X-Token"))
}

func TestOtherChainsAreRefused(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"chain_id": 1})
	_, err := w.poll()
	require.ErrorContains(t, err, "is a node of chain 1337, and the config says chain_id 1")
}

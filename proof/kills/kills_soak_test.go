//go:build soak

package kills_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
)

var (
	killsFor   = flag.Duration("kills-for", 2*time.Hour, "how long the installation is disturbed")
	killsRound = flag.Duration("kills-round", 3*time.Minute,
		"after how long it is left alone, until what it serves is exact")
	killsMonths = flag.Int("kills-months", 3,
		"months of 2026, each day of which has a file: the last job waits for whole months")
	killsSeed = flag.Uint64("kills-seed", 0, "of the choices; 0: another one each time")
)

func TestMain(m *testing.M) { os.Exit(processtest.Main(m)) }

// TestKills disturbs an installation for hours, in rounds. In each, files are written anew, versions are deployed and
// rolled back, servers and workers are killed and stopped; after it, everything that is served has to be what the files
// and the version that serves say, to the row.
func TestKills(t *testing.T) {
	seed := *killsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	random, begun := rand.New(rand.NewPCG(seed, 0)), time.Now()
	f, l := newFleet(t), ledger{}
	for _, day := range days() {
		l.rewrite(t, f.landing, day, random)
	}
	require.Zero(t, f.deploy(t, 1, random))
	f.settle(t, l, random)

	for factor := int64(2); time.Since(begun) < *killsFor; factor++ {
		f.round(t, l, factor, random)
		f.settle(t, l, random)
		for _, p := range f.all {
			t.Logf("after %v: %s was killed %d times, and stopped %d", time.Since(begun).Round(time.Second), p.name,
				p.kills, p.stops)
		}
	}
}

// days lists the days that have a file.
func days() (all []string) {
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := first; day.Before(first.AddDate(0, *killsMonths, 0)); day = day.AddDate(0, 0, 1) {
		all = append(all, day.Format(time.DateOnly))
	}
	return all
}

// round disturbs the installation for a while.
func (f *fleet) round(t *testing.T, l ledger, factor int64, random *rand.Rand) {
	t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for end := time.Now().Add(*killsRound); time.Now().Before(end); {
		<-tick.C
		f.disturb(t, random)
		for range random.IntN(4) {
			l.rewrite(t, f.landing, days()[random.IntN(len(days()))], random)
		}
		switch random.IntN(20) {
		case 0:
			f.deploy(t, 1000*factor+int64(random.IntN(1000)), random)
		case 1:
			r := f.run(t, f.some(random), "rollback", "ledger", "--yes")
			t.Logf("rollback: %d %s", r.Code, r.Err)
		}
	}
}

// deploy deploys a factor, and returns how that ended: a server that is killed meanwhile may not answer.
func (f *fleet) deploy(t *testing.T, factor int64, random *rand.Rand) (code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ledger.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, ledgerDAG, factor), 0o600))
	r := f.run(t, f.some(random), "deploy", file, "--yes", "--supersede", "--wait=false")
	t.Logf("deploy of factor %d: %d %s", factor, r.Code, r.Err)
	return r.Code
}

// settle leaves the installation alone, with all of its parts at work, until what it serves is exact.
func (f *fleet) settle(t *testing.T, l ledger, random *rand.Rand) {
	t.Helper()
	begun := time.Now()
	for _, p := range f.all {
		select {
		case <-p.ended:
			p.start(t)
		default:
		}
	}
	f.ready(t)

	said := begun
	processtest.Within(t, 10*time.Minute, "what is served is exact", func() bool {
		err := f.differs(t, f.some(random), l)
		if err != nil && time.Since(said) > time.Minute {
			t.Logf("not exact yet: %v\n%s", err, f.why(t, random))
			said = time.Now()
		}
		return err == nil
	})

	var dead struct{ Items []struct{ Error string } }
	require.NoError(t, get(t, f.some(random)+"/v1/tasks?dead=true", f.token, &dead))
	require.Empty(t, dead.Items)
	t.Logf("exact after %v", time.Since(begun).Round(time.Second))
}

// why says what the last job of the ledger waits for.
func (f *fleet) why(t *testing.T, random *rand.Rand) string {
	t.Helper()
	r := f.run(t, f.some(random), "why", "ledger/monthly")
	return r.Out + r.Err
}

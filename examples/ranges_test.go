package examples_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/duck"
)

// TestRangesExample runs the commands of the README: uploads come late, overlap, lack a number and come twice.
func TestRangesExample(t *testing.T) {
	t.Parallel()
	s := newStory(t, "ranges")
	server := s.serve(t)
	s.settle(t)
	s.shows(t, "look")
	require.NoDirExists(t, filepath.Join(s.data, "exports", "landlord"), "a deploy exports nothing")

	s.do(t, "late")
	s.shows(t, "tens")
	s.shows(t, "findings")
	s.do(t, "again")
	s.shows(t, "whole")
	s.settle(t)

	s.do(t, "twice")
	s.shows(t, "logged")
	s.settle(t)
	s.shows(t, "whole")
	require.Len(t, s.files(t, "logged"), 1, "five uploads are one file")

	s.shows(t, "shared")
	db := session(t)
	shared := duck.ReadParquet([]string{filepath.Join(s.data, "exports", "landlord", "consumption", "data.parquet")})
	require.NoError(t, db.Exec(t.Context(), "CREATE VIEW shared AS SELECT * FROM "+shared))
	s.equal(t, db, "consumption", "shared")
	s.do(t, "clean")
	server.Stop(t)
}

// TestRangesInAnotherOrder sends the uploads from the last to the first, several at once, and compares the consumption
// with what DuckDB makes of all files.
func TestRangesInAnotherOrder(t *testing.T) {
	t.Parallel()
	s := newStory(t, "ranges")
	uploads, later := filepath.Join(s.dir, "uploads"), filepath.Join(s.dir, "later")
	first := filepath.Join(later, "a.csv")
	require.NoError(t, os.Rename(filepath.Join(uploads, "a.csv"), first))
	require.NoError(t, os.Rename(filepath.Join(uploads, "c.csv"), filepath.Join(later, "c.csv")))
	require.NoError(t, os.Rename(filepath.Join(later, "d.csv"), filepath.Join(uploads, "d.csv")))
	server := s.serve(t)
	s.settle(t)
	require.Equal(t, 3, s.tens(t), "those of the archive")

	for _, name := range []string{"c.csv", "b.csv"} {
		require.NoError(t, os.Rename(filepath.Join(later, name), filepath.Join(uploads, name)))
	}
	processtest.Eventually(t, "the ten from 40 on is whole", func() bool { return s.tens(t) == 4 })
	require.NoError(t, os.Rename(first, filepath.Join(uploads, "a.csv")))
	processtest.Eventually(t, "all tens are whole", func() bool { return s.tens(t) == 5 })
	s.settle(t)

	db := session(t)
	require.NoError(t, db.Exec(t.Context(), `CREATE VIEW expected AS
		SELECT number // 10 * 10 AS first, first + 10 AS past, place, meter, sum(pulses * per_pulse) AS amount,
			any_value(unit) AS unit
		FROM (SELECT DISTINCT number, meter, pulses::INTEGER AS pulses FROM read_csv('`+s.dir+`/[au]*/*.csv'))
		JOIN read_csv('`+s.dir+`/meters.csv', types = {'per_pulse': 'DECIMAL(9,3)'}) USING (meter)
		GROUP BY ALL`))
	s.equal(t, db, "consumption", "expected")
	server.Stop(t)
}

// tens returns how many tens have a consumption.
func (s *story) tens(t *testing.T) (count int) {
	t.Helper()
	require.NoError(t, session(t).Value(t.Context(), &count,
		"SELECT count(DISTINCT first) FROM "+duck.ReadParquet(s.files(t, "consumption"))))
	return count
}

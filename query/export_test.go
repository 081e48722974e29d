package query

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/storage"
)

// passed counts bytes that pass, and the largest piece of them.
type passed struct{ bytes, largest int }

func (p *passed) Write(b []byte) (int, error) {
	p.bytes += len(b)
	p.largest = max(p.largest, len(b))
	return len(b), nil
}

// More passes through an engine than it may hold, whatever the format. The race detector takes a part of the memory.
func TestExportsAreBoundedInMemory(t *testing.T) {
	t.Parallel()
	file := table(t, "SELECT range AS n, md5(range::VARCHAR) || md5((range + 1)::VARCHAR) || "+
		"sha256(range::VARCHAR) AS text FROM range(1100000)")
	limits := Limits{Memory: 128 << 20, Threads: 1, Timeout: time.Minute, ExportTime: time.Hour}
	for format, as := range streamedAs {
		a, names, err := asking(t, limits).begin(t.Context(), uuid.New(), "tester", relations.UTC,
			Statement{SQL: "FROM big", export: true})
		require.NoError(t, err)
		require.Len(t, names, 1)
		inside, err := a.In(file)
		require.NoError(t, err)
		x := &Export{asker: a, format: format, ctx: t.Context(),
			given: []relations.Relation{{Name: "big", Files: inside}}}
		var out passed
		rows, truncated, err := x.Write(&out)
		a.Discard()

		require.NoError(t, err, as)
		require.Equal(t, 1_100_000, rows, as)
		require.False(t, truncated, as)
		if format != Parquet {
			require.Greater(t, out.bytes, 128<<20, as)
		}
		require.LessOrEqual(t, out.largest, engine.MaxPiece, as)
	}
}

func TestPicked(t *testing.T) {
	t.Parallel()
	all := []storage.Partition{{Key: "a"}, {Key: "b"}, {Key: "c"}}
	for text, want := range map[string]string{"a": "a", "b..": "bc", "a..b": "ab", "..b": "ab", "a..a": "a"} {
		found, err := picked("d", all, []string{text})
		require.NoError(t, err, text)
		keys := ""
		for _, p := range found {
			keys += p.Key
		}
		require.Equal(t, want, keys, text)
	}

	both, err := picked("d", all, []string{"c", "a"})
	require.NoError(t, err)
	require.Len(t, both, 2)
	for text, kind := range map[string]fault.Kind{"d": fault.NotFound, "x..y": fault.NotFound, "b..a": fault.Invalid} {
		_, err := picked("d", all, []string{text})
		require.Equal(t, kind, fault.KindOf(err), text)
	}
}

// What is a key is that partition, whatever stands in it.
func TestPartitionsArePickedByKeyFirst(t *testing.T) {
	t.Parallel()
	all := []storage.Partition{{Key: "a"}, {Key: "a,b"}, {Key: "a..c"}, {Key: "b"}, {Key: "c"}, {Key: "z..y"}}
	for text, want := range map[string][]string{
		"a..c": {"a..c"}, "z..y": {"z..y"}, "a,b": {"a,b"}, "a,c": {"a", "c"}, "b..c": {"b", "c"}, "c..": {"c", "z..y"},
		"a": {"a"},
	} {
		found, err := picked("d", all, []string{text})
		require.NoError(t, err, text)
		var keys []string
		for _, p := range found {
			keys = append(keys, p.Key)
		}
		require.Equal(t, want, keys, text)
	}
	ranges := []storage.Partition{{Key: "0-100"}, {Key: "100-200"}, {Key: "1000-1100"}, {Key: "200-300"}}
	for text, want := range map[string]int{"100-200..200-300": 2, "200-300..1000-1100": 2, "100-200..": 3} {
		found, err := picked("d", ranges, []string{text})
		require.NoError(t, err, text)
		require.Len(t, found, want, text)
	}
	for text, says := range map[string]string{"x": `no partition "x"`, "c..b": "ends before it begins", "a,x": `"x"`} {
		_, err := picked("d", all, []string{text})
		require.ErrorContains(t, err, says, text)
	}
}

package registry

import (
	"archive/zip"
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

func TestUnzipNamesWhatIsThereTwice(t *testing.T) {
	t.Parallel()
	for second, says := range map[string]string{
		"code/main.py":   "the archive has code/main.py twice",
		"code/main.py/x": "the archive has code/main.py as a file and as a folder",
	} {
		var archive bytes.Buffer
		w := zip.NewWriter(&archive)
		for _, name := range []string{"code/", "code/main.py", second} {
			_, err := w.Create(name)
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		_, err := unzip(archive.Bytes())
		require.EqualError(t, err, says)
	}
}

// An archive is refused, or is a bundle within its limits that reaches workers without any change.
func FuzzUnzip(f *testing.F) {
	var seed bytes.Buffer
	w := zip.NewWriter(&seed)
	for _, name := range []string{"code/main.py", "code/lib/x.txt", "code/empty/"} {
		_, err := w.Create(name)
		require.NoError(f, err)
	}
	require.NoError(f, w.Close())
	f.Add(seed.Bytes())
	f.Add([]byte("PK\x05\x06" + string(make([]byte, 18))))

	f.Fuzz(func(t *testing.T, archive []byte) {
		bundle, err := unzip(archive)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(bundle.Files), dag.MaxUDFFiles)

		packed, err := zipped(bundle)
		require.NoError(t, err)
		files, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
		require.NoError(t, err)
		again, err := dag.ReadBundle(files, ".") // as a worker does
		require.NoError(t, err)
		require.Equal(t, bundle.Hash, again.Hash)
	})
}

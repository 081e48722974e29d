package dag

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// seed adds every YAML file of the test data.
func seed(f *testing.F) {
	for _, folder := range []string{"broken", "valid", "format"} {
		files, err := filepath.Glob("testdata/" + folder + "/*.yaml")
		require.NoError(f, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(f, err)
			f.Add(text)
		}
	}
}

// FuzzParse checks that Parse ends for any text, and returns a document that can be hashed or problems with positions.
func FuzzParse(f *testing.F) {
	seed(f)
	catalog := testCatalog()
	f.Fuzz(func(t *testing.T, text []byte) {
		doc, problems := Parse(File{Name: "dag.yaml", Text: text, Files: os.DirFS("testdata/valid")}, catalog)
		require.Equal(t, doc == nil, len(problems) > 0)

		lines := len(splitLines(string(text)))
		for _, p := range problems {
			require.Equal(t, "dag.yaml", p.File)
			require.GreaterOrEqual(t, p.Line, 1)
			require.LessOrEqual(t, p.Line, lines)
			require.GreaterOrEqual(t, p.Column, 1)
			require.NotEmpty(t, p.Message)
			require.NotEmpty(t, p.Code)
		}

		require.Equal(t, doc != nil, problems.Pretty() == "")
		if doc == nil {
			return
		}
		require.Len(t, Hash(doc, nil, nil), 64)
		definitions, err := Define(doc, catalog)
		require.NoError(t, err)
		_, err = definitions.Fingerprints(nil)
		require.NoError(t, err)
	})
}

// FuzzFormat checks that Format keeps the meaning of a text, and that formatting again changes nothing.
func FuzzFormat(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		formatted, problems := Format(text)
		require.Equal(t, formatted == nil, len(problems) > 0)
		if formatted == nil {
			return
		}
		require.True(t, utf8.Valid(formatted))
		again, problems := Format(formatted)
		require.Empty(t, problems)
		require.Equal(t, string(formatted), string(again))
	})
}

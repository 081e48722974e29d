package dagfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

// file is a DAG file that publishes one dataset of its own name.
func file(name string, reads ...string) *File {
	doc := &dag.Document{Name: name, Publish: []dag.Publication{{Name: name}}}
	for _, dataset := range reads {
		doc.Jobs = append(doc.Jobs, dag.Job{Inputs: []dag.Input{{Dataset: dataset}}})
	}
	return &File{Doc: doc}
}

func TestProducersComeBeforeConsumers(t *testing.T) {
	t.Parallel()
	broken := &File{}
	var names []string
	for _, f := range inOrder([]*File{file("c", "b"), broken, file("b", "a", "elsewhere"), file("a")}) {
		if f.Doc == nil {
			names = append(names, "broken")
			continue
		}
		names = append(names, f.Doc.Name)
	}
	require.Equal(t, []string{"a", "b", "c", "broken"}, names)
}

func TestCircle(t *testing.T) {
	t.Parallel()
	require.Nil(t, Circle([]*File{file("c", "b"), file("b", "a"), file("a"), file("d", "a", "c")}))
	require.Equal(t, []string{"b", "c", "b"}, Circle([]*File{file("a", "b"), file("b", "c"), file("c", "b")}))
	require.Equal(t, []string{"a", "a"}, Circle([]*File{file("a", "a")}))
}

func TestParseVars(t *testing.T) {
	t.Parallel()
	vars, err := ParseVars([]string{"region=eu", "empty=", "with=a=b"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"region": "eu", "empty": "", "with": "a=b"}, vars)
	for _, bad := range []string{"region", "=eu", ""} {
		_, err := ParseVars([]string{bad})
		require.Error(t, err, bad)
	}
}

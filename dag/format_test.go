package dag

import (
	"fmt"
	"github.com/stretchr/testify/require"
	"testing"
)

func TestFmt(t *testing.T) {
	out, ps := Format([]byte(example))
	require.Empty(t, ps)
	fmt.Println(string(out))
	out, ps = Format([]byte(`# head comment

# about name
name: x
jobs:
  # first
  - operator: sql   # op
    # the name
    name: a
    inputs:
      - {from: {job: b}}
    config:
      query: |
        select 1

        # not a comment
          - x
      z: >
        folded text
        goes on

        here
    # trailing of a

  # about b
  - operator: file_source
    name: b
    source:
        every: 10s
        kind: poll
    # end of b
# the end
publish:
  x:
    description: "quoted"
    from: {job: a}
# foot
`))
	fmt.Println(string(out), ps.Pretty())
}

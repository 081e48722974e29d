package docs_test

import (
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// calculation is `A = B` or `A ≈ B` in a code span, of numbers and + - × / ( ).
var calculation = regexp.MustCompile("`([0-9.,()+× /-]+[+×/-][0-9.,()+× /-]+) (=|≈) ([0-9.,]+)`")

// TestArithmetic recomputes the calculations on the pages, to half a percent, or to five percent if they say ≈.
func TestArithmetic(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"docs/aws.md", "docs/scaling.md"} {
		found := calculation.FindAllStringSubmatch(pageAt(t, name).text, -1)
		require.Greater(t, len(found), 5, name)
		for _, match := range found {
			within := 0.005
			if match[2] == "≈" {
				within = 0.05
			}
			assert.InEpsilon(t, value(t, match[1]), value(t, match[3]), within, "%s: %s", name, match[0])
		}
	}
}

var number = regexp.MustCompile(`[0-9.]+`)

func value(t *testing.T, expression string) float64 {
	t.Helper()
	expression = strings.NewReplacer(",", "", "×", "*").Replace(expression)
	// Go would divide whole numbers without a remainder.
	expression = number.ReplaceAllStringFunc(expression, func(n string) string {
		if strings.Contains(n, ".") {
			return n
		}
		return n + ".0"
	})
	result, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
	require.NoError(t, err, expression)
	f, _ := constant.Float64Val(result.Value)
	return f
}

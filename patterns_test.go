package dagctl_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A regular expression of a package is compiled when it is first used (internal/late), since every engine would compile
// all of them at its start. So nothing else than this looks at those that are rarely used.
func TestPatternsCompile(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range goFiles(t) {
		if f.test || !inBinary(f.room) || f.room == "internal/late" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !makesPattern(call.Fun) {
				return true
			}
			if text, ok := written(call.Args[0]); ok {
				found++
				_, err := regexp.Compile(text)
				assert.NoError(t, err, "%s:%d", f.path, f.line(call.Pos()))
			}
			return true
		})
		for _, decl := range f.syntax.Decls {
			vars, ok := decl.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			ast.Inspect(vars, func(n ast.Node) bool {
				if _, ok := n.(*ast.FuncLit); ok {
					return false // it runs later
				}
				if of, ok := n.(*ast.SelectorExpr); ok && of.Sel.Name == "MustCompile" {
					assert.Fail(t, "compiled at start", "%s:%d: late.Pattern compiles it when it is used", f.path,
						f.line(of.Pos()))
				}
				return true
			})
		}
	}
	require.Greater(t, found, 100)
}

// inBinary reports whether the binary of dagctl may have the code of a room.
func inBinary(room string) bool {
	switch room {
	case "bench", "proof", "tools", "examples":
		return false
	}
	return true
}

// makesPattern reports whether a function's first argument is a regular expression: late.Pattern's, and that of the
// one that makes shapes of fields from them.
func makesPattern(function ast.Expr) bool {
	if of, ok := function.(*ast.SelectorExpr); ok {
		return of.Sel.Name == "Pattern"
	}
	name, ok := function.(*ast.Ident)
	return ok && name.Name == "pattern"
}

// written returns the text that an expression of literals and constants stands for, with a word for each constant; not
// if it is a variable alone.
func written(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, _ := written(e.X)
		right, _ := written(e.Y)
		return left + right, true
	case *ast.Ident, *ast.SelectorExpr:
		return "word", false
	}
	return "", false
}

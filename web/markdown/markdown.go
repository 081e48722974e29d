// Package markdown turns the Markdown that people write about datasets into HTML that does no harm. It owns no tables.
package markdown

import (
	"bytes"
	"html/template"
	"net/url"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// What people write about datasets is Markdown. HTML in it is left out, an image becomes a link to it, and links lead
// only where linkSchemes allows, without telling from where.

// linkSchemes are where links may lead; those without one lead to pages of this server.
var linkSchemes = []string{"http", "https", "mailto"}

// firstHeading is the level of the document's first headings: the page has those above.
const firstHeading = 3

// deepest bounds how deep quotes, lists and emphasis may lie in each other; what is deeper is left out.
const deepest = 50

// mostMarkdown bounds the bytes of a text; the rest is cut off.
const mostMarkdown = 64 << 10

var documents = goldmark.New(
	goldmark.WithExtensions(extension.Linkify, extension.Strikethrough, extension.NewTable(
		extension.WithTableCellAlignMethod(extension.TableCellAlignNone))),
	goldmark.WithParserOptions(parser.WithASTTransformers(util.Prioritized(tamer{}, 1000))),
	goldmark.WithRendererOptions(html.WithHardWraps()),
)

// HTML renders a text. It never returns what the text did not escape.
func HTML(source string) template.HTML {
	if len(source) > mostMarkdown {
		source = strings.ToValidUTF8(source[:mostMarkdown], "")
	}
	var b bytes.Buffer
	if err := documents.Convert([]byte(source), &b); err != nil {
		return template.HTML(template.HTMLEscapeString(source)) //nolint:gosec // escaped
	}
	return template.HTML(b.String()) //nolint:gosec // the renderer leaves HTML out, and the tamer cleans links
}

// tamer changes a parsed document into one that may stand on a page.
type tamer struct{}

func (tamer) Transform(document *ast.Document, reader text.Reader, _ parser.Context) {
	var raw, links, images []ast.Node
	depth := 0
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			depth--
			return ast.WalkContinue, nil
		}
		if depth++; depth > deepest {
			raw = append(raw, n)
			return ast.WalkSkipChildren, nil
		}

		switch n := n.(type) {
		case *ast.RawHTML, *ast.HTMLBlock:
			raw = append(raw, n)
		case *ast.Link, *ast.AutoLink:
			links = append(links, n)
		case *ast.Image:
			images = append(images, n)
		case *ast.Heading:
			n.Level = min(n.Level+firstHeading-1, 6)
		}
		return ast.WalkContinue, nil
	}) // the function returns no error

	for _, n := range raw {
		n.Parent().RemoveChild(n.Parent(), n)
	}
	for _, n := range images {
		if linked(n) {
			replaced(n, ast.NewEmphasis(1))
			continue
		}
		links = append(links, replaced(n, linkTo(n.(*ast.Image).Destination)))
	}
	for _, n := range links {
		tame(n, reader.Source())
	}
}

// tame sets what a link tells, or leaves only its text if it leads where it may not.
func tame(n ast.Node, source []byte) {
	var to []byte
	switch n := n.(type) {
	case *ast.Link:
		to = n.Destination
	case *ast.AutoLink:
		to = n.URL(source)
	}
	if mayLead(string(to)) {
		n.SetAttributeString("rel", []byte("nofollow noopener noreferrer"))
		return
	}

	if auto, ok := n.(*ast.AutoLink); ok {
		n.Parent().ReplaceChild(n.Parent(), n, ast.NewString(auto.Label(source)))
		return
	}
	replaced(n, ast.NewEmphasis(1))
}

// linked reports whether a node is in a link.
func linked(n ast.Node) bool {
	for at := n.Parent(); at != nil; at = at.Parent() {
		if at.Kind() == ast.KindLink {
			return true
		}
	}
	return false
}

// linkTo returns a link without text.
func linkTo(to []byte) *ast.Link {
	link := ast.NewLink()
	link.Destination = to
	return link
}

// replaced puts a node in the place of another one, with its children, and returns it.
func replaced(n, by ast.Node) ast.Node {
	for child := n.FirstChild(); child != nil; child = n.FirstChild() {
		by.AppendChild(by, child)
	}
	if by.FirstChild() == nil {
		by.AppendChild(by, ast.NewString([]byte("image")))
	}
	n.Parent().ReplaceChild(n.Parent(), n, by)
	return by
}

// mayLead reports whether a link may lead to an address.
func mayLead(address string) bool {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || strings.ContainsAny(address, "\\\x00\t\r\n") {
		return false
	}
	if u.Scheme == "" {
		return u.Host == "" && !strings.HasPrefix(u.Path, "//")
	}
	return slices.Contains(linkSchemes, strings.ToLower(u.Scheme))
}

// Summary returns the first paragraph of a Markdown text without its marks, for tables.
func Summary(source string) string {
	const most = 200
	if len(source) > 4*most {
		source = strings.ToValidUTF8(source[:4*most], "")
	}
	reader := text.NewReader([]byte(source))
	document := documents.Parser().Parse(reader)
	first := document.FirstChild()
	for first != nil && first.Kind() != ast.KindParagraph {
		first = first.NextSibling()
	}
	if first == nil {
		first = document
	}

	words := []rune(strings.Join(strings.Fields(plainText(first, reader.Source())), " "))
	if len(words) > most {
		return string(words[:most]) + "…"
	}
	return string(words)
}

// plainText returns what a part of a document says.
func plainText(part ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(part, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}

		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		case *ast.AutoLink:
			b.Write(n.Label(source))
		}
		return ast.WalkContinue, nil
	}) // the function returns no error
	return b.String()
}

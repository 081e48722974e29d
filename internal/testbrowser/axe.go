package testbrowser

import (
	"fmt"
	"strings"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/dagctl/dagctl/internal/testserver"
)

// Look is how somebody looks at pages.
type Look struct {
	Name  string
	Width int64 // of the window, in CSS pixels
	Dark  bool
}

// Looks are those that every page has to serve: a wide window and a phone, light and dark.
var Looks = []Look{{"light", 1280, false}, {"dark", 1280, true}, {"phone", 390, false}, {"phone-dark", 390, true}}

// Show makes the browser show pages so.
func (b *Browser) Show(l Look) {
	b.t.Helper()
	scheme := "light"
	if l.Dark {
		scheme = "dark"
	}
	b.Run("show pages "+l.Name, emulation.SetDeviceMetricsOverride(l.Width, 844, 1, l.Width < 600),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
}

// Violation is a rule of accessibility that a page breaks.
type Violation struct {
	Rule, Help string
	Nodes      []string // the elements, as HTML, and what is wrong with them
}

// String is the violation for people.
func (v Violation) String() string {
	return v.Rule + ": " + v.Help + "\n  " + strings.Join(v.Nodes, "\n  ")
}

// violations runs the rules of WCAG 2.2 AA and the best practices within the page.
const violations = `axe.run(document, {resultTypes: ["violations"], rules: {"target-size": {enabled: true}}}).then(
	found => found.violations.map(v => ({
	Rule: v.id, Help: v.help, Nodes: v.nodes.map(n => n.html.slice(0, 200) + " | " + n.failureSummary)})))`

// Violations returns what axe-core finds wrong with the page that the browser shows.
func (b *Browser) Violations() (found []Violation) {
	b.t.Helper()
	rules, err := testserver.PackageFile("axe", "axe-core/axe.min.js")
	if err != nil {
		b.t.Fatal(err)
	}
	b.Run("look for faults", chromedp.Evaluate(string(rules), nil), chromedp.Evaluate(violations, &found,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return found
}

// Width says how wide the page is beyond the window, in CSS pixels: 0 where nothing scrolls sideways.
func (b *Browser) Width() (beyond int) {
	b.t.Helper()
	b.Run("measure the page", chromedp.Evaluate(`document.documentElement.scrollWidth - innerWidth`, &beyond))
	return max(0, beyond)
}

// Picture returns the whole page as a PNG.
func (b *Browser) Picture() (png []byte) {
	b.t.Helper()
	b.Run(fmt.Sprintf("take a picture of %s", b.URL()), chromedp.FullScreenshot(&png, 100))
	return png
}

// Package testbrowser opens pages in a real browser for tests: Chromium or Chrome, without a window, which
// scripts/test_servers.sh installs. A browser has a profile of its own, reaches this machine only, starts in about a
// second, and ends with its test. It owns no tables.
//
// Elements are named by CSS selectors. What a test names it gets as soon as the page has it and shows it; a test fails
// when that takes too long.
package testbrowser

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// patience is how long a page may take to show what a test asks for.
const patience = 30 * time.Second

// Browser is a browser with one tab.
type Browser struct {
	t   testing.TB
	ctx context.Context // of chromedp
}

// Start starts a browser that ends with the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		// The sandbox wants user namespaces, or not to be root. These pages are our own.
		chromedp.NoSandbox,
		chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
	)
	allocator, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)

	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("start a browser: %v; scripts/test_servers.sh installs one", err)
	}
	return &Browser{t: t, ctx: ctx}
}

// Open opens a page and returns when it is loaded, whatever its status.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.Run("open "+url, chromedp.Navigate(url))
}

// URL returns the address of the page.
func (b *Browser) URL() string {
	b.t.Helper()
	var url string
	b.Run("read the address", chromedp.Location(&url))
	return url
}

// Text returns the text of an element as a reader sees it.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	var text string
	b.Run("read "+selector, chromedp.Text(selector, &text, chromedp.ByQuery, chromedp.NodeVisible))
	return text
}

// WaitText returns when an element has a text in it. It is for pages that change by themselves.
func (b *Browser) WaitText(selector, text string) {
	b.t.Helper()
	b.Run(fmt.Sprintf("wait for %q in %s", text, selector),
		chromedp.PollFunction("(selector, text) => document.querySelector(selector)?.innerText.includes(text)", nil,
			chromedp.WithPollingArgs(selector, text), chromedp.WithPollingTimeout(patience)))
}

// Fill types a text into a field in place of what it has.
func (b *Browser) Fill(selector, text string) {
	b.t.Helper()
	b.Run("fill "+selector, chromedp.Clear(selector, chromedp.ByQuery, chromedp.NodeVisible),
		chromedp.SendKeys(selector, text, chromedp.ByQuery))
}

// Click clicks an element of a page that stays.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	b.Run("click "+selector, chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible))
}

// Follow clicks a link, or the button of a form, and returns when the page that it leads to is loaded.
func (b *Browser) Follow(selector string) {
	b.t.Helper()
	b.leave("follow "+selector, chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible))
}

// Enter does what Follow does with the keyboard: it puts the focus on the element and presses the key Enter.
func (b *Browser) Enter(selector string) {
	b.t.Helper()
	b.leave("press Enter on "+selector, chromedp.Focus(selector, chromedp.ByQuery, chromedp.NodeVisible),
		chromedp.KeyEvent(kb.Enter))
}

// Press presses keys, wherever the focus is, and returns when the page that they lead to is loaded.
func (b *Browser) Press(keys string) {
	b.t.Helper()
	b.leave("press "+keys, chromedp.KeyEvent(keys))
}

// leave runs actions that lead to another page, and returns when that is loaded.
func (b *Browser) leave(what string, actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, actions...); err != nil {
		b.fail(what, err)
	}
}

// Run runs actions that have no method here. What says in an error what they are for.
func (b *Browser) Run(what string, actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.fail(what, err)
	}
}

// fail fails the test, with the page that the browser shows.
func (b *Browser) fail(what string, err error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	var page string
	_ = chromedp.Run(ctx, chromedp.OuterHTML("html", &page, chromedp.ByQuery)) // there may be none
	b.t.Fatalf("browser: %s: %v; it shows: %s", what, err, page)
}

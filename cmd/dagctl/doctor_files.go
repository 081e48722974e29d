package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/dagctl/dagctl/registry"
)

// mostLost is how many lost revisions doctor names one by one.
const mostLost = 20

// checkFiles has the server compare every committed revision with its files.
func (c *cli) checkFiles(ctx context.Context) []finding {
	t, err := c.resolveTarget()
	if err != nil {
		return []finding{failed("files", err)}
	}
	api := newClient(t)
	var (
		lost    []registry.LostRevision
		checked int
	)
	query := url.Values{"limit": {"500"}}
	for {
		var page registry.VerifiedPage
		if err := api.get(ctx, "/v1/lost-revisions", query, &page); err != nil {
			return []finding{failed("files", err)}
		}
		lost, checked = append(lost, page.Items...), checked+page.Checked
		if page.NextCursor == "" {
			break
		}
		query.Set("cursor", page.NextCursor)
	}
	if len(lost) == 0 {
		return []finding{{Check: "files", OK: true, Detail: fmt.Sprintf("all of %s are there", count(checked, "committed revision"))}}
	}
	var findings []finding
	for _, l := range lost[:min(len(lost), mostLost)] {
		f := finding{Check: "files", Detail: fmt.Sprintf("%s partition %s revision %d: %s", l.Dataset, l.Key, l.Revision, l.Problem),
			Hint: "an earlier dataset version: readers do not see it, but a rollback to it would"}
		if l.Served {
			f.Hint = fmt.Sprintf("bring the file back, or run `dagctl rematerialize %s`", l.Dataset)
		}
		findings = append(findings, f)
	}
	return append(findings, finding{Check: "files", Detail: fmt.Sprintf("%d of %s lack something", len(lost), count(checked, "committed revision")),
		Hint: "docs/operations.md, Restoring a backup"})
}

package server

import (
	"context"
	"fmt"
	"net/url"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// mostLost is how many lost revisions doctor lists one by one.
const mostLost = 20

// checkFiles lets the server compare every committed revision with its files.
func checkFiles(ctx context.Context, c *cli.CLI) []finding {
	t, err := c.ResolveTarget()
	if err != nil {
		return []finding{failed("files", err)}
	}

	api := cli.NewClient(t)
	var (
		lost    []registry.LostRevision
		checked int
	)
	query := url.Values{"limit": {"500"}}

	for {
		var page registry.VerifiedPage
		if err := api.Get(ctx, "/v1/lost-revisions", query, &page); err != nil {
			return []finding{failed("files", err)}
		}
		lost, checked = append(lost, page.Items...), checked+page.Checked
		if page.NextCursor == "" {
			break
		}
		query.Set("cursor", page.NextCursor)
	}

	if len(lost) == 0 {
		detail := plural.Of(checked, "committed revision") + ": no file is missing"
		return []finding{{Check: "files", OK: true, Detail: detail}}
	}
	var findings []finding
	for _, l := range lost[:min(len(lost), mostLost)] {
		f := finding{
			Check:  "files",
			Detail: fmt.Sprintf("%s partition %s revision %d: %s", l.Dataset, l.Key, l.Revision, l.Problem),
			Hint:   "it is in an earlier dataset version, which readers see only after a rollback",
		}
		if l.Served {
			f.Hint = "restore the file"
			if l.Remedy != "" {
				f.Hint += ", or " + l.Remedy
			}
		}
		findings = append(findings, f)
	}

	return append(findings, finding{
		Check: "files", Hint: "docs/operations.md, Restoring a backup",
		Detail: fmt.Sprintf("%d of %s lack files", len(lost), plural.Of(checked, "committed revision")),
	})
}

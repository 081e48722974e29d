package cli

import (
	"context"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// Page limits how much of a list a command shows.
type Page struct {
	Limit int
}

// AddFlags adds --limit.
func (p *Page) AddFlags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.Limit, "limit", 100, "maximum number of items to show")
}

// mostPerRequest is how many items one request asks for at most; the API sets the limit.
const mostPerRequest = 500

// Fetch reads a list from the API, page by page, up to the limit.
func Fetch[T any](ctx context.Context, api *Client, path string, query url.Values, page Page) ([]T, error) {
	if query == nil {
		query = url.Values{}
	}
	if page.Limit < 1 {
		return nil, fault.New(fault.Invalid, "--limit %d shows nothing", page.Limit).WithHint("give at least 1")
	}
	all := []T{}
	for len(all) < page.Limit {
		query.Set("limit", strconv.Itoa(min(page.Limit-len(all), mostPerRequest)))
		var list rest.List[T]
		if err := api.Get(ctx, path, query, &list); err != nil {
			return nil, err
		}

		all = append(all, list.Items...)
		if list.NextCursor == "" {
			break
		}
		query.Set("cursor", list.NextCursor)
	}
	return all, nil
}

// FetchWhole returns the items of a list that has no pages.
func FetchWhole[T any](ctx context.Context, api *Client, path string) ([]T, error) {
	var list rest.List[T]
	err := api.Get(ctx, path, nil, &list)
	return list.Items, err
}

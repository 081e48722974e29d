package main

import (
	"context"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/rest"
)

// pageFlags say how much of a list is wanted.
type pageFlags struct {
	limit int
}

func (p *pageFlags) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", 100, "how many to show at most")
}

// fetch reads a list, page by page, up to the limit.
func fetch[T any](ctx context.Context, api *client, path string, query url.Values, page pageFlags) ([]T, error) {
	if query == nil {
		query = url.Values{}
	}
	all := []T{}
	for len(all) < page.limit {
		query.Set("limit", strconv.Itoa(min(page.limit-len(all), 500)))
		var list rest.List[T]
		if err := api.get(ctx, path, query, &list); err != nil {
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

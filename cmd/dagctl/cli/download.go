package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// Download posts a body as JSON and copies an answer of a media type, which may be large. It returns the answer's
// headers.
func (c *Client) Download(
	ctx context.Context, path string, body any, accept string, to io.Writer,
) (http.Header, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("POST %s: %w", path, err)
	}
	return c.download(ctx, http.MethodPost, path, bytes.NewReader(text), accept, to)
}

// GetTo is like Download, for a GET request.
func (c *Client) GetTo(
	ctx context.Context, path string, query url.Values, accept string, to io.Writer,
) (http.Header, error) {
	return c.download(ctx, http.MethodGet, path+"?"+query.Encode(), nil, accept, to)
}

func (c *Client) download(
	ctx context.Context, method, path string, body io.ReadSeeker, accept string, to io.Writer,
) (http.Header, error) {
	for {
		header, wait, err := c.tryDownload(ctx, method, path, body, accept, to)
		if wait == 0 || !c.waits {
			return header, err
		}
		if body != nil {
			if _, err := body.Seek(0, io.SeekStart); err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
		}
		if err := Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// tryDownload is download, once; wait is as of try. The headers are also those that follow the answer.
func (c *Client) tryDownload(
	ctx context.Context, method, path string, body io.ReadSeeker, accept string, to io.Writer,
) (header http.Header, wait time.Duration, err error) {
	var content io.Reader
	if body != nil {
		content = body
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Target.URL+path, content)
	if err != nil {
		return nil, 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	request.Header = c.header.Clone()
	request.Header.Set("Accept", accept)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}

	response, err := c.send(request)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, 0, ctx.Err()
	case err != nil:
		return nil, 0, c.unanswered(err)
	}
	defer response.Body.Close()
	err = c.copyAnswer(method, path, accept, response, to)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	maps.Copy(response.Header, response.Trailer)
	return response.Header, waitOf(response), err
}

// copyAnswer copies an answer of the media type, and returns the error that another one is.
func (c *Client) copyAnswer(method, path, accept string, response *http.Response, to io.Writer) error {
	if response.StatusCode >= 300 {
		text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		if err == nil {
			err = c.refusal(method, path, response, text)
		}
		return err
	}

	if kind := response.Header.Get("Content-Type"); kind != accept {
		return fault.New(fault.Unavailable, "the answer to %s %s is %q, not %s", method, path, kind, accept).
			WithHint("check that %s is a dagctl server of this version", c.Target.URL)
	}
	here := &noted{to: to}
	switch _, err := io.Copy(here, response.Body); {
	case here.err != nil: // a closed pipe or a full disk is no failure of the server
		return fmt.Errorf("write the answer: %w", here.err)
	case err != nil:
		return c.brokenOff(method, path, err)
	}
	return nil
}

// noted is a writer that keeps its error.
type noted struct {
	to  io.Writer
	err error
}

func (n *noted) Write(p []byte) (written int, err error) {
	written, n.err = n.to.Write(p)
	return written, n.err
}

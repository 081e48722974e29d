package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/patience"
)

// Call is one call of a method. Params are its parameters.
type Call struct {
	Method string
	Params []any
}

// Client sends calls to a node. A node that is away, busy or has an error of its own is asked again for a while; what
// the error of a call then says may pass, unless it is permanent. Errors name the host only: a URL may carry a key.
type Client struct {
	node    Node
	http    *http.Client
	url     *url.URL
	headers http.Header
	tries   patience.Tries
	pace    patience.Pace
}

// How often runs ask again, and enumerations, which hold up others of their org and come again soon.
const (
	runTries, runPatience   = 6, 10 * time.Minute
	listTries, listPatience = 3, 5 * time.Second
	hint                    = "lower config.requests_per_second"
)

// NewClient returns a client for the run of a task.
func NewClient(t *operators.Task, n Node, over *http.Client) (*Client, error) {
	c, err := newClient(t.SecretTo, n, over)
	if err != nil {
		return nil, err
	}
	c.tries = patience.Tries{Most: runTries, Longest: runPatience, Hint: hint,
		Tell: func(text string) { t.Progress(0, text) }}
	return c, nil
}

// NewListing returns a client for an enumeration.
func NewListing(e operators.Enumeration, n Node, over *http.Client) (*Client, error) {
	c, err := newClient(e.SecretTo, n, over)
	if err != nil {
		return nil, err
	}
	c.tries = patience.Tries{Most: listTries, Longest: listPatience, Hint: hint}
	return c, nil
}

func newClient(secretTo func(*url.URL, any, string) (string, error), n Node, over *http.Client) (*Client, error) {
	c := &Client{node: n, http: over, headers: http.Header{}}
	var err error
	if c.url, err = url.Parse(n.URL); err != nil {
		return nil, operators.Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}
	c.headers.Set("User-Agent", "dagctl")
	c.headers.Set("Content-Type", "application/json")
	return c, operators.SetHeaders(c.headers, c.url, n.Headers, secretTo)
}

// request and response are those of JSON-RPC 2.0.
type request struct {
	Version string `json:"jsonrpc"`
	ID      int    `json:"id"`
	Method  string `json:"method"`
	Params  []any  `json:"params"`
}

type response struct {
	ID     *int            `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// Do sends calls, as many in a request as the config says, and passes on each result in the order of the calls.
func (c *Client) Do(ctx context.Context, calls []Call, result func(i int, result json.RawMessage) error) error {
	for from := 0; from < len(calls); from += c.node.Batch {
		some := calls[from:min(from+c.node.Batch, len(calls))]
		var results []json.RawMessage
		err := c.tries.Do(ctx, func() (err error) {
			results, err = c.send(ctx, some)
			return err
		})
		if err != nil {
			return err
		}
		for i, r := range results {
			if err := result(from+i, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// send sends calls in one request and returns their results.
func (c *Client) send(ctx context.Context, calls []Call) ([]json.RawMessage, error) {
	if err := c.pace.Turn(ctx, c.node.Rate); err != nil {
		return nil, err
	}
	requests := make([]request, len(calls))
	for i, call := range calls {
		requests[i] = request{"2.0", i, call.Method, call.Params}
	}
	var body any = requests
	if c.node.Batch == 1 {
		body = requests[0]
	}
	answer, err := c.post(ctx, body)
	if err != nil {
		return nil, err
	}

	var responses []response
	if bytes.HasPrefix(answer, []byte("[")) {
		err = json.Unmarshal(answer, &responses)
	} else { // a single call, or one error for all of a batch
		responses = make([]response, 1)
		err = json.Unmarshal(answer, &responses[0])
	}
	if err != nil {
		return nil, patience.NewLater(fault.New(fault.Unavailable, "%s does not answer JSON-RPC", c.url.Host), 0)
	}
	return c.inOrder(calls, responses)
}

// inOrder returns the results of calls. A batch may be answered in any order.
func (c *Client) inOrder(calls []Call, responses []response) ([]json.RawMessage, error) {
	results := make([]json.RawMessage, len(calls))
	for _, r := range responses {
		at := -1
		if r.ID != nil && *r.ID >= 0 && *r.ID < len(calls) {
			at = *r.ID
		}
		switch {
		case r.Error != nil:
			method := "the request"
			if at >= 0 {
				method = calls[at].Method
			}
			return nil, c.refused(method, r.Error.Code, r.Error.Message)
		case at >= 0 && len(r.Result) > 0:
			results[at] = r.Result
		}
	}

	for i, r := range results {
		if r == nil {
			return nil, patience.NewLater(fault.New(fault.Unavailable, "%s: the node left %s unanswered", c.url.Host,
				calls[i].Method), 0)
		}
	}
	return results, nil
}

// refused returns the error of a call that a node refuses. What the protocol calls a faulty request stays one; anything
// else (limits, a busy node, a block that another node behind the same address does not have yet) may pass.
func (c *Client) refused(method string, code int, message string) error {
	err := fault.New(fault.Unavailable, "%s: the node refuses %s: %s (%d)", c.url.Host, method,
		strings.Trim(shown(message), `"`), code)
	switch code {
	case -32700, -32600, -32601, -32602:
		return operators.Permanent(err.WithHint("does the node serve this method, and batches? `batch: 1` sends " +
			"calls one by one"))
	}
	return patience.NewLater(err, 0)
}

// post sends a body and returns that of the answer, without the space around it.
func (c *Client) post(ctx context.Context, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(text))
	if err != nil {
		return nil, operators.Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}
	request.Header = c.headers.Clone()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, patience.Unanswered(ctx, c.url.Host+": the node does not answer", err)
	}
	defer response.Body.Close()

	if code := response.StatusCode; code < 200 || code > 299 {
		err := fault.New(fault.Unavailable, "%s: the node answered %s", c.url.Host, response.Status)
		if patience.Passes(code) {
			return nil, patience.NewLater(err, patience.AskedToWait(response, time.Now()))
		}
		return nil, operators.Permanent(err)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, c.node.MaxBytes+1))
	switch {
	case err != nil:
		return nil, patience.Unanswered(ctx, c.url.Host+": the node does not answer", err)
	case int64(len(answer)) > c.node.MaxBytes:
		return nil, operators.Permanent(fault.New(fault.TooLarge, "%s: an answer has more than %d bytes", c.url.Host,
			c.node.MaxBytes).WithHint("lower config.batch, or raise config.max_bytes"))
	}
	return bytes.TrimSpace(answer), nil
}

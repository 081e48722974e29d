package evm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Header is what says where a block stands in its chain. Its hash vouches for all blocks before it.
type Header struct {
	Number int64
	Hash   string // 0x and 64 digits in lower case
	Parent string // hash of the block before it
}

// Tip returns the number of the highest block that the node has. A node of another chain than the config says is
// refused.
func (c *Client) Tip(ctx context.Context) (tip int64, err error) {
	calls := []Call{{"eth_chainId", []any{}}, {"eth_blockNumber", []any{}}}
	return tip, c.Do(ctx, calls, func(i int, result json.RawMessage) error {
		n, err := c.number(result)
		switch {
		case err != nil:
			return err
		case i == 0 && n != c.node.ChainID:
			return operators.Permanent(fault.New(fault.Invalid, "%s is a node of chain %d, and the config says "+
				"chain_id %d", c.url.Host, n, c.node.ChainID).WithHint("give the url of a node of that chain"))
		}
		tip = n
		return nil
	})
}

func (c *Client) number(result json.RawMessage) (n int64, err error) {
	var text string
	err = decode(result, &text, "text")
	if err == nil {
		n, err = ParseInt(text)
	}
	if err != nil {
		err = c.odd("a number", err)
	}
	return n, err
}

// odd returns the error of an answer that is not what the protocol says.
func (c *Client) odd(what string, err error) error {
	return fault.New(fault.Unavailable, "%s: the node does not answer with %s: %w", c.url.Host, what, err)
}

// Headers returns the headers of blocks by their numbers. Those that the node does not have are missing.
func (c *Client) Headers(ctx context.Context, numbers []int64) (map[int64]Header, error) {
	calls := make([]Call, len(numbers))
	for i, n := range numbers {
		calls[i] = Call{"eth_getBlockByNumber", []any{Quantity(n), false}}
	}

	found := make(map[int64]Header, len(numbers))
	return found, c.Do(ctx, calls, func(i int, result json.RawMessage) error {
		if string(result) == "null" {
			return nil
		}
		_, h, err := c.block(numbers[i], result)
		if err == nil {
			found[h.Number] = h
		}
		return err
	})
}

// block returns the fields and the header of the block with a number.
func (c *Client) block(n int64, result json.RawMessage) (b fields, h Header, err error) {
	if err = decode(result, &b, "object"); err == nil {
		h, err = b.header()
	}
	if err == nil && h.Number != n {
		err = fmt.Errorf("it is block %d", h.Number)
	}
	if err != nil {
		err = c.odd(fmt.Sprintf("block %d", n), err)
	}
	return b, h, err
}

// decode decodes a value of an answer. Its error shows the value, and says what it should be.
func decode(value json.RawMessage, into any, want string) error {
	switch err := json.Unmarshal(value, into); {
	case err == nil:
		return nil
	case len(value) == 0:
		return fmt.Errorf("there is no %s", want)
	}
	return fmt.Errorf("%s is no %s", shown(string(value)), want)
}

// fields are those of a JSON object: a block, a transaction or a log.
type fields map[string]json.RawMessage

// text returns a field that is a text; empty if it is missing or null.
func (f fields) text(name string) string {
	var text string
	_ = json.Unmarshal(f[name], &text) // anything else is no value of a field that is asked for as text
	return text
}

func (f fields) header() (h Header, err error) {
	if h.Number, err = ParseInt(f.text("number")); err != nil {
		return h, err
	}
	if h.Hash, err = parseData(f.text("hash"), 32); err != nil {
		return h, err
	}
	h.Parent, err = parseData(f.text("parentHash"), 32)
	return h, err
}

// NoParent is the parent of the first block of a chain.
const NoParent = "0x0000000000000000000000000000000000000000000000000000000000000000"

package dag

import (
	"encoding/json"
	"iter"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/literal"
)

// value reads a node of the tree. A node that is absent or of the wrong type, which the grammar has reported already,
// reads as the zero value, so that decoding can go on and find the other faults.
type value struct{ node *yaml.Node }

func (v value) present() bool { return v.node != nil }

func (v value) pairs() iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, val *yaml.Node) bool) {
		if v.node == nil || v.node.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(v.node.Content); i += 2 {
			if !yield(v.node.Content[i], v.node.Content[i+1]) {
				return
			}
		}
	}
}

func (v value) key(name string) *yaml.Node {
	for key := range v.pairs() {
		if key.Value == name {
			return key
		}
	}
	return nil
}

func (v value) get(name string) value {
	for key, val := range v.pairs() {
		if key.Value == name {
			return value{val}
		}
	}
	return value{}
}

func (v value) has(name string) bool { return v.key(name) != nil }

func (v value) scalar() bool {
	return v.node != nil && v.node.Kind == yaml.ScalarNode && v.node.Tag != "!!null"
}

func (v value) text() string {
	if !v.scalar() {
		return ""
	}
	return v.node.Value
}

func (v value) integer() int64 {
	var n int64
	if v.scalar() {
		_ = plain(v.node.Value).Decode(&n)
	}
	return n
}

func (v value) number() float64 {
	if !v.scalar() {
		return 0
	}
	n, _ := number(v.node.Value)
	return n
}

func (v value) boolean(otherwise bool) bool {
	if v.scalar() {
		_ = plain(v.node.Value).Decode(&otherwise)
	}
	return otherwise
}

func (v value) seconds() time.Duration { return time.Duration(v.number() * float64(time.Second)) }

func (v value) duration() time.Duration {
	d, _ := ParseDuration(v.text())
	return d
}

// items returns the entries of a list. A single value stands for a list of one.
func (v value) items() []value {
	if v.node == nil || v.node.Tag == "!!null" {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		return []value{v}
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = value{n}
	}
	return items
}

func (v value) texts() []string {
	var texts []string
	for _, item := range v.items() {
		texts = append(texts, item.text())
	}
	return texts
}

// json returns the value as a JSON type: string, bool, json.Number, nil, []any or map[string]any. Numbers keep all
// their digits, in the one text that equal numbers have.
func (v value) json() any {
	if v.node == nil {
		return nil
	}
	switch v.node.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		for key, val := range v.pairs() {
			m[key.Value] = value{val}.json()
		}
		return m
	case yaml.SequenceNode:
		list := make([]any, len(v.node.Content))
		for i, n := range v.node.Content {
			list[i] = value{n}.json()
		}
		return list
	}

	switch v.node.Tag {
	case "!!null":
		return nil
	case "!!bool":
		return v.boolean(false)
	case "!!int", "!!float":
		if n, err := exactNumber(v.node); err == nil {
			return n
		}
	}
	return v.node.Value
}

// exactNumber returns the number that a node holds.
func exactNumber(n *yaml.Node) (json.Number, error) {
	if n.Tag == "!!int" {
		return literal.Whole(n.Value)
	}
	return literal.Number(strings.ReplaceAll(n.Value, "_", ""))
}

func (v value) scalars() Values {
	var list Values
	for _, item := range v.items() {
		list = append(list, item.json())
	}
	return list
}

// position returns the position of the value in the file.
func (v value) position(file string) Position {
	if v.node == nil {
		return Position{File: file, Line: 1, Column: 1}
	}
	return Position{File: file, Line: v.node.Line, Column: v.node.Column}
}

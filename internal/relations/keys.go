package relations

import "strings"

// Keys is a condition on the keys of partitions.
type Keys struct {
	Op  Op
	Key string // that a key is compared with
	Of  []Keys // of All and Any
}

// Op is how a key is compared.
type Op string

// The comparisons. Keys are compared byte by byte, as DuckDB compares text.
const (
	All     Op = "all" // of some conditions
	Any     Op = "any"
	Equal   Op = "="
	Below   Op = "<"
	AtMost  Op = "<="
	Above   Op = ">"
	AtLeast Op = ">="
	Begins  Op = "begins"
)

// Hold reports whether a key meets the condition.
func (k Keys) Hold(key string) bool {
	switch k.Op {
	case All:
		for _, c := range k.Of {
			if !c.Hold(key) {
				return false
			}
		}
		return true
	case Any:
		for _, c := range k.Of {
			if c.Hold(key) {
				return true
			}
		}
		return false
	case Equal:
		return key == k.Key
	case Below:
		return key < k.Key
	case AtMost:
		return key <= k.Key
	case Above:
		return key > k.Key
	case AtLeast:
		return key >= k.Key
	case Begins:
		return strings.HasPrefix(key, k.Key)
	}
	return true // what is not known leaves nothing out
}

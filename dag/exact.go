package dag

import (
	"fmt"

	"github.com/dagctl/dagctl/internal/literal"
)

// Config is the configuration of an operator, as JSON types. Its numbers are json.Numbers, which keep all their digits
// when a definition is stored and read again.
type Config map[string]any

// UnmarshalJSON reads a config with exact numbers.
func (c *Config) UnmarshalJSON(text []byte) error {
	v, err := literal.Decode(text)
	if err != nil {
		return err
	}
	object, ok := v.(map[string]any)
	if !ok && v != nil {
		return fmt.Errorf("a config is an object, not %T", v)
	}
	*c = object
	return nil
}

// Values are JSON scalars. Their numbers are json.Numbers, like those of a Config.
type Values []any

// UnmarshalJSON reads values with exact numbers.
func (l *Values) UnmarshalJSON(text []byte) error {
	v, err := literal.Decode(text)
	if err != nil {
		return err
	}
	list, ok := v.([]any)
	if !ok && v != nil {
		return fmt.Errorf("values are a list, not %T", v)
	}
	*l = list
	return nil
}

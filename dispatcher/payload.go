package dispatcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/dagctl/dagctl/registry"
)

// schema is a job's compiled payload schema.
type schema struct{ compiled *jsonschema.Schema }

// payloadSchema compiles the schema of a job's payload; nil where it has none. The document was refused if it did not
// compile, so an error is ours.
func payloadSchema(job *registry.Job) (*schema, error) {
	text := job.Def.PayloadSchema
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("payload schema of %s: %w", job.Address(), err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("payload.json", parsed); err != nil {
		return nil, fmt.Errorf("payload schema of %s: %w", job.Address(), err)
	}
	compiled, err := compiler.Compile("payload.json")
	if err != nil {
		return nil, fmt.Errorf("payload schema of %s: %w", job.Address(), err)
	}
	return &schema{compiled}, nil
}

// check says in one line what is wrong with a payload.
func (s *schema) check(payload json.RawMessage) error {
	if len(payload) == 0 {
		payload = json.RawMessage("null")
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if err := s.compiled.Validate(value); err != nil {
		lines := strings.Split(err.Error(), "\n")
		return fmt.Errorf("%s", strings.TrimSpace(strings.Join(lines[min(1, len(lines)-1):], " ")))
	}
	return nil
}

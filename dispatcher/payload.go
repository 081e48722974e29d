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

// PayloadSchema compiles the schema of a job's payload. It returns nil if the job has none. A deploy refuses schemas
// that do not compile, so an error is a fault of the server.
func PayloadSchema(job *registry.Job) (*schema, error) {
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

// Check returns an error of one line if a payload does not match the schema.
func (s *schema) Check(payload json.RawMessage) error {
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

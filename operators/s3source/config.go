package s3source

import (
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/bucket"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["bucket", "pattern", "format"],
  "properties": {` + bucket.Schema + `,
    "prefix": {"type": "string", "minLength": 1, "maxLength": 1024,
      "description": "What the keys of the objects begin with, as it is; a folder's ends in a slash."},
    "pattern": {"type": "string", "minLength": 1, "maxLength": 1024,
      "description": "The rest of the keys; * and ? match within names; {date}, {hour}, {month} and others set the partition."},
    "ascending_keys": {"type": "boolean",
      "description": "New objects come last in the order of keys, so a listing goes on where all was read; false by default."},
    "list_all_every": {"type": "string", "minLength": 2,
      "description": "ascending_keys: how often all objects are listed all the same, to find what came late; 1h by default."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 1099511627776,
      "description": "The most bytes of a partition's objects; 16 GiB by default."},` + operators.FileRowsSchema + `
  }
}`

const (
	defaultMaxBytes = 16 << 30
	defaultListAll  = time.Hour
)

type config struct {
	operators.FileRows
	bucket.Address
	Prefix        string `json:"prefix"`
	Pattern       string `json:"pattern"`
	AscendingKeys bool   `json:"ascending_keys"`
	ListAllEvery  string `json:"list_all_every"`
	MaxBytes      int64  `json:"max_bytes"`

	names   operators.NamePattern
	listAll time.Duration
}

func parse(given map[string]any) (c config, fault *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if err := c.FileRows.Check(); err != nil {
		return c, err
	}
	if err := c.Address.Check(); err != nil {
		return c, err
	}

	var err error
	if c.names, err = operators.CompileNamePattern(c.Pattern); err != nil {
		return c, &dag.ConfigError{Key: "pattern", Message: err.Error()}
	}
	if c.listAll = defaultListAll; c.ListAllEvery != "" {
		if c.listAll, err = time.ParseDuration(c.ListAllEvery); err != nil || c.listAll <= 0 {
			return c, &dag.ConfigError{Key: "list_all_every", Message: "it must be a duration, such as 6h"}
		}
	}
	return c, nil
}

// checkJob refuses a pattern whose objects could never be given to a partition, and one in whose order of keys a
// listing cannot go on.
func checkJob(job *dag.Job) *dag.ConfigError {
	c, configFault := parse(job.Config)
	if configFault != nil {
		return configFault
	}
	if err := c.names.Partitions(job.TasksBy()); err != nil {
		return &dag.ConfigError{Key: "pattern", Message: err.Error()}
	}
	if c.AscendingKeys && !c.names.Together(job.TasksBy()) {
		return &dag.ConfigError{Key: "ascending_keys", Message: "the objects of a partition have to follow each " +
			"other in the order of keys: partition by time or by key, and let the pattern begin with what makes the " +
			"partition, as \"{date}/*.csv\" does"}
	}
	return nil
}

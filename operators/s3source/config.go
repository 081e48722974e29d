package s3source

import (
	"cmp"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["bucket", "pattern", "format"],
  "properties": {
    "bucket": {"type": "string", "minLength": 1, "description": "The bucket to read."},
    "prefix": {"type": "string", "minLength": 1, "maxLength": 1024,
      "description": "What the keys of the objects begin with, as it is; a folder's ends in a slash."},
    "pattern": {"type": "string", "minLength": 1, "maxLength": 1024,
      "description": "The rest of the keys; * and ? match within names; {date}, {month}, {hour}, {key} set the partition."},
    "endpoint": {"type": "string", "pattern": "^https?://",
      "description": "URL of the S3 server; that of AWS in the region by default."},
    "region": {"type": "string", "pattern": "^[a-z0-9-]{1,63}$",
      "description": "The bucket's region; us-east-1 by default."},
    "access_key_id": {"type": "string", "minLength": 1,
      "description": "The id of the key to sign with; it may be {secret: NAME}. Without one, requests are not signed."},
    "secret_access_key": {"type": "string", "minLength": 1, "description": "The key, as {secret: NAME}."},
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
	defaultRegion   = "us-east-1"
	defaultListAll  = time.Hour
)

type config struct {
	operators.FileRows
	Bucket          string `json:"bucket"`
	Prefix          string `json:"prefix"`
	Pattern         string `json:"pattern"`
	Endpoint        string `json:"endpoint"`
	Region          string `json:"region"`
	AccessKeyID     any    `json:"access_key_id"`
	SecretAccessKey any    `json:"secret_access_key"`
	AscendingKeys   bool   `json:"ascending_keys"`
	ListAllEvery    string `json:"list_all_every"`
	MaxBytes        int64  `json:"max_bytes"`

	names   operators.NamePattern
	url     *url.URL // of the server
	listAll time.Duration
}

var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`)

func parse(given map[string]any) (c config, fault *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if err := c.FileRows.Check(); err != nil {
		return c, err
	}
	if !bucketName.MatchString(c.Bucket) {
		return c, &dag.ConfigError{Key: "bucket", Message: "it must be the name of a bucket alone, such as acme-data"}
	}
	if err := operators.WrittenOut("secret_access_key", "key", c.SecretAccessKey); err != nil {
		return c, err
	}
	if (c.AccessKeyID == nil) != (c.SecretAccessKey == nil) {
		return c, &dag.ConfigError{Key: "secret_access_key", Message: "access_key_id and secret_access_key go together"}
	}

	var err error
	if c.names, err = operators.CompileNamePattern(c.Pattern); err != nil {
		return c, &dag.ConfigError{Key: "pattern", Message: err.Error()}
	}
	if c.url, err = url.Parse(endpoint(given)); err != nil || c.url.Host == "" || c.url.User != nil ||
		path.Clean("/"+c.url.Path) != "/" || c.url.RawQuery != "" {
		return c, &dag.ConfigError{Key: "endpoint", Message: "it must be the URL of a server alone, such as " +
			"https://s3.example.com"}
	}
	if c.listAll = defaultListAll; c.ListAllEvery != "" {
		if c.listAll, err = time.ParseDuration(c.ListAllEvery); err != nil || c.listAll <= 0 {
			return c, &dag.ConfigError{Key: "list_all_every", Message: "it must be a duration, such as 6h"}
		}
	}
	return c, nil
}

// endpoint returns the URL of the server that a config names.
func endpoint(given map[string]any) string {
	text, _ := given["endpoint"].(string)
	region, _ := given["region"].(string)
	return cmp.Or(strings.TrimSuffix(text, "/"), "https://s3."+cmp.Or(region, defaultRegion)+".amazonaws.com")
}

// checkJob refuses a pattern whose objects could never be given to a partition, and one in whose order of keys a
// listing cannot go on.
func checkJob(job *dag.Job) *dag.ConfigError {
	c, configFault := parse(job.Config)
	if configFault != nil {
		return configFault
	}
	if err := c.names.Partitions(job.PartitionBy); err != nil {
		return &dag.ConfigError{Key: "pattern", Message: err.Error()}
	}
	if c.AscendingKeys && !c.names.Together(job.PartitionBy) {
		return &dag.ConfigError{Key: "ascending_keys", Message: "the objects of a partition have to follow each " +
			"other in the order of keys: partition by time or by key, and let the pattern begin with what makes the " +
			"partition, as \"{date}/*.csv\" does"}
	}
	return nil
}

package parquetexport

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/bucket"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["path"],
  "properties": {` + bucket.Schema + `,
    "folder": {"type": "string", "minLength": 1, "maxLength": 1024,
      "description": "The folder to write to, in place of a bucket: inside one of those that the org may write on this server."},
    "path": {"type": "string", "minLength": 1, "maxLength": 512,
      "description": "Where a partition goes, such as sales/day={partition}; {year} to {minute}, {dag} and {job} are its parts."},
    "max_rows": {"type": "integer", "minimum": 1, "maximum": 1000000000000,
      "description": "The most rows of a file: a partition is several files, which its manifest lists; one file by default."}
  }
}`

type config struct {
	bucket.Address
	Folder  string `json:"folder"`
	Path    string `json:"path"`
	MaxRows int64  `json:"max_rows"`

	layout layout
}

// bucketKeys are the keys of a bucket that a folder has not.
var bucketKeys = []string{"bucket", "endpoint", "region", "path_style", "access_key_id", "secret_access_key"}

func parseConfig(given map[string]any) (c config, fault *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if c.Folder != "" {
		for _, key := range bucketKeys {
			if given[key] != nil {
				return c, &dag.ConfigError{Key: key, Message: "`folder` and a bucket exclude each other: give each " +
					"target a job"}
			}
		}
		if name := filepath.FromSlash(c.Folder); !filepath.IsAbs(name) && !filepath.IsLocal(name) {
			return c, &dag.ConfigError{Key: "folder", Message: "it leads out of the folders that the org may write: " +
				"give one inside, relative to the first of them or absolute"}
		}
	} else if c.Bucket == "" {
		return c, &dag.ConfigError{Message: "name the target: `bucket`, or a `folder` of the server"}
	} else if err := c.Address.Check(); err != nil {
		return c, err
	}

	var err error
	if c.layout, err = parseLayout(c.Path); err != nil {
		return c, &dag.ConfigError{Key: "path", Message: err.Error()}
	}
	return c, nil
}

// secretsTo is the SecretsTo: the keys of a bucket go to its server.
func secretsTo(given map[string]any) string {
	if folder, _ := given["folder"].(string); folder != "" {
		return ""
	}
	return bucket.SecretsTo(given)
}

// checkJob refuses jobs with other inputs and outputs than an export has.
func checkJob(job *dag.Job) *dag.ConfigError {
	if _, fault := parseConfig(job.Config); fault != nil {
		return fault
	}
	switch {
	case len(job.Outputs) > 0:
		return &dag.ConfigError{Message: "parquet_export writes files for others only: give the job `outputs: 0`"}
	case len(job.Inputs) != 1:
		return &dag.ConfigError{Message: "parquet_export exports one input: give each dataset a job"}
	}
	return nil
}

// checkPartitions refuses jobs whose partitions would overwrite each other.
func checkPartitions(job *dag.Job) *dag.ConfigError {
	c, fault := parseConfig(job.Config)
	if fault != nil {
		return fault
	}
	if job.PartitionBy.Kind == dag.ByCursor {
		return &dag.ConfigError{Message: "segments of a cursor overlap once it is rewound: give the job " +
			"`partition_by: none`, or a job before it partitions of ranges"}
	}
	if err := c.layout.partitions(job.PartitionBy); err != nil {
		return &dag.ConfigError{Key: "path", Message: err.Error()}
	}
	return nil
}

// targets returns where a job writes to. roots are the folders that its org may write, as far as they are known.
func targets(roots []string, dagName string, job *dag.Job) []dag.Target {
	c, fault := parseConfig(job.Config)
	if fault != nil {
		return nil
	}

	t := dag.Target{Key: "path", Harm: "each would replace files of the other, or its readers would find them; give " +
		"each a folder that is in none of the other's"}
	if c.Folder == "" {
		t.Name = "s3://" + c.Bucket + "/" + c.Path
		t.Path = []string{"bucket", strings.ToLower(c.URL.Host), c.Bucket}
	} else {
		folder := filepath.FromSlash(c.Folder)
		if root, name, err := within(roots, c.Folder); err == nil {
			folder = filepath.Join(root, name)
		}
		t.Name = "folder " + c.Folder + "/" + c.Path
		t.Path = append([]string{"folder"}, strings.Split(filepath.ToSlash(filepath.Clean(folder)), "/")...)
		if filepath.Clean(folder) == "." {
			t.Path = t.Path[:1]
		}
	}

	t.Path = append(t.Path, c.layout.anyFolder(job.PartitionBy, dagName, job.Name)...)
	return []dag.Target{t}
}

// shape says that a job writes nothing here, and refuses a column that `path` has, too.
func shape(job *dag.Job, inputs [][]dag.Column) (s dag.Shape, err error) {
	c, fault := parseConfig(job.Config)
	if fault != nil || len(inputs) != 1 {
		return s, nil
	}
	if wrong := c.layout.clash(inputs[0]); wrong != nil {
		s.Refused = append(s.Refused, *wrong)
	}
	return s, nil
}

// mostFiles is how many files a partition gets at most.
const mostFiles = 1000

// files returns how many files so many rows make.
func (c config) files(rows int64) int64 {
	return max(1, (rows+cmp.Or(c.MaxRows, max(1, rows))-1)/cmp.Or(c.MaxRows, max(1, rows)))
}

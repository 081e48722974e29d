package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// RuntimesConfig is the `runtimes` of the config file. Each name has a kind alone, a mapping, or a list of either:
type RuntimesConfig backends.RuntimeMap

// UnmarshalYAML adds the runtimes of the node to those there are. A name that is already there is replaced.
func (c *RuntimesConfig) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return wrongAt(node, "runtimes", "is not a mapping of names")
	}
	all := maps.Clone(*c)
	if all == nil {
		all = RuntimesConfig{}
	}

	var wrong []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i].Value
		backends, problems := decodeRuntime("runtimes."+name, node.Content[i+1])
		wrong = append(wrong, problems...)
		all[name] = backends
	}
	if len(wrong) > 0 {
		return &yaml.TypeError{Errors: wrong}
	}
	*c = all
	return nil
}

func decodeRuntime(where string, node *yaml.Node) (batch []backends.Backend, wrong []string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.SequenceNode {
		b, wrong := decodeBackend(where, node)
		return []backends.Backend{b}, wrong
	}
	for i, entry := range node.Content {
		b, problems := decodeBackend(fmt.Sprintf("%s[%d]", where, i), entry)
		batch, wrong = append(batch, b), append(wrong, problems...)
	}
	return batch, wrong
}

// decodeBackend reads one entry: a kind alone, or a mapping.
func decodeBackend(where string, node *yaml.Node) (b backends.Backend, wrong []string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}

	switch node.Kind {
	case yaml.ScalarNode:
		b.Kind = backends.RuntimeKind(node.Value)
		return b, nil
	case yaml.MappingNode:
	default:
		return b, wrongAt(node, where, "is not a kind, a mapping or a list of them").Errors
	}

	fields := map[string]any{
		"kind": (*string)(&b.Kind), "operators": &b.Operators, "orgs": &b.Orgs,
		"queue_url": &b.QueueURL, "dlq_url": &b.DLQURL, "resend_seconds": &b.ResendSeconds,
		"tasks_per_message": &b.TasksPerMessage,
		"function":          &b.Function, "qualifier": &b.Qualifier, "concurrency": &b.Concurrency,
		"endpoint": &b.Endpoint, "region": &b.Region,
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field, known := fields[key.Value]
		if !known {
			names := slices.Sorted(maps.Keys(fields))
			wrong = append(wrong, wrongAt(key, where, "has no field %q; there are %v", key.Value, names).Errors...)
		} else if err := value.Decode(field); err != nil {
			wrong = append(wrong, wrongAt(value, where+"."+key.Value, "has the wrong type: %v", err).Errors...)
		}
	}
	return b, wrong
}

// wrongAt returns one fault with its line, in the form of the yaml package's own.
func wrongAt(node *yaml.Node, where, format string, args ...any) *yaml.TypeError {
	text := fmt.Sprintf("line %d: %s %s", node.Line, where, fmt.Sprintf(format, args...))
	return &yaml.TypeError{Errors: []string{text}}
}

// RuntimeMap returns what the runtimes of DAG files are on this server.
func (cfg *Config) RuntimeMap() backends.RuntimeMap { return backends.RuntimeMap(cfg.Runtimes) }

// aws loads the AWS settings of the process, as AWS's own tools find them. Without queues and functions it loads
// nothing.
func (cfg *Config) aws(ctx context.Context) (aws.Config, error) {
	if m := cfg.RuntimeMap(); len(m.Of(backends.SQS))+len(m.Of(backends.Lambda)) == 0 {
		return aws.Config{}, nil
	}
	found, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return found, fault.New(fault.Invalid, "AWS settings: %w", err).
			WithHint("like AWS's own tools, dagctl reads the environment and ~/.aws/config")
	}
	return found, nil
}

// workerBaseURL returns the address of the server for workers and tasks, or an empty text where the config has none.
func (cfg *Config) workerBaseURL() string {
	return strings.TrimRight(cmp.Or(cfg.WorkerBaseURL, cfg.BaseURL), "/")
}

// readTaskKeys reads the keys of capability tokens. The first one signs.
func (cfg *Config) readTaskKeys(ctx context.Context) ([]authz.TaskKey, error) {
	keys := slices.Clone(cfg.TaskKeys)
	if cfg.Tasks.KMSKeyID != "" {
		key, err := authz.KMSTaskKey(ctx, authz.KMSConfig{
			KeyID: cfg.Tasks.KMSKeyID, Endpoint: cfg.Tasks.KMSEndpoint, Region: cfg.Tasks.KMSRegion,
		})
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}

	for _, path := range cfg.Tasks.KeyFiles {
		key, err := authz.ReadTaskKey(path)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// newSigner returns the signer of capability tokens.
func (cfg *Config) newSigner(ctx context.Context) (*authz.Signer, error) {
	keys, err := cfg.readTaskKeys(ctx)
	if err != nil {
		return nil, err
	}
	issuer := cmp.Or(strings.TrimRight(cfg.BaseURL, "/"), "dagctl")
	return authz.NewSigner(authz.SignerConfig{Issuer: issuer, Keys: keys})
}

// catalog returns what DAG files are validated against: the operators, each with the runtimes that run it on this
// server.
func (cfg *Config) catalog(builtin *operators.Registry) (dag.Catalog, error) {
	if found := problems(cfg.RuntimeMap().Check(builtin.Names())); len(found) > 0 {
		return dag.Catalog{}, found.err()
	}

	c := builtin.Catalog(cfg.RuntimeMap().Names())
	for name, spec := range c.Operators {
		taken := cfg.RuntimeMap().Runs(name)
		if spec.Runtimes != nil {
			taken = slices.DeleteFunc(taken, func(r string) bool { return !slices.Contains(spec.Runtimes, r) })
		} else if len(taken) == len(c.Runtimes) {
			continue // every runtime runs it
		}
		spec.Runtimes = taken
		c.Operators[name] = spec
	}
	return c, nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// runtimesConfig is the `runtimes` of the config file. Each name has a kind alone, a mapping, or a list of either:
//
//	dispatcher: in-process
//	ecs_platform: { kind: sqs, queue_url: https://… }
//	lambda:
//	  - { kind: lambda, function: heavy, operators: [sql] }
//	  - { kind: lambda, function: dagctl }
type runtimesConfig dispatcher.RuntimeMap

// UnmarshalYAML adds what the node maps to the runtimes that are mapped already; a name replaces what it was.
func (c *runtimesConfig) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return wrongAt(node, "runtimes", "is not a mapping of names")
	}
	all := maps.Clone(*c)
	if all == nil {
		all = runtimesConfig{}
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

func decodeRuntime(where string, node *yaml.Node) (backends []dispatcher.Backend, wrong []string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.SequenceNode {
		b, wrong := decodeBackend(where, node)
		return []dispatcher.Backend{b}, wrong
	}
	for i, entry := range node.Content {
		b, problems := decodeBackend(fmt.Sprintf("%s[%d]", where, i), entry)
		backends, wrong = append(backends, b), append(wrong, problems...)
	}
	return backends, wrong
}

func decodeBackend(where string, node *yaml.Node) (b dispatcher.Backend, wrong []string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.ScalarNode:
		b.Kind = dispatcher.RuntimeKind(node.Value)
		return b, nil
	case yaml.MappingNode:
	default:
		return b, wrongAt(node, where, "is not a kind, a mapping or a list of them").Errors
	}
	fields := map[string]any{
		"kind": (*string)(&b.Kind), "operators": &b.Operators, "orgs": &b.Orgs, "queue_url": &b.QueueURL, "dlq_url": &b.DLQURL, "resend_seconds": &b.ResendSeconds,
		"function": &b.Function, "qualifier": &b.Qualifier, "concurrency": &b.Concurrency, "endpoint": &b.Endpoint, "region": &b.Region,
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field, known := fields[key.Value]
		if !known {
			wrong = append(wrong, wrongAt(key, where, "has no field %q; there are %v", key.Value, slices.Sorted(maps.Keys(fields))).Errors...)
		} else if err := value.Decode(field); err != nil {
			wrong = append(wrong, wrongAt(value, where+"."+key.Value, "is not of its type: %v", err).Errors...)
		}
	}
	return b, wrong
}

// wrongAt is one fault with its line, as yaml tells its own.
func wrongAt(node *yaml.Node, where, format string, args ...any) *yaml.TypeError {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %s %s", node.Line, where, fmt.Sprintf(format, args...))}}
}

// runtimes is what DAG files' names are here.
func (cfg *serverConfig) runtimes() dispatcher.RuntimeMap { return dispatcher.RuntimeMap(cfg.Runtimes) }

// aws are the settings of the process for queues and functions, as AWS's own tools find them; none where there are neither.
func (cfg *serverConfig) aws(ctx context.Context) (aws.Config, error) {
	if m := cfg.runtimes(); len(m.Of(dispatcher.SQS))+len(m.Of(dispatcher.Lambda)) == 0 {
		return aws.Config{}, nil
	}
	found, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return found, fault.New(fault.Invalid, "AWS settings: %w", err).WithHint("the environment and ~/.aws/config are read, as by AWS's own tools")
	}
	return found, nil
}

// validateRemote finds what is wrong with runtimes outside of the server's process and with what they need.
func (cfg *serverConfig) validateRemote() []fault.Problem {
	problems := cfg.runtimes().Check(nil)
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: where, Message: fmt.Sprintf(format, args...)})
	}
	if cfg.WorkerListen != "" && (cfg.WorkerListen == cfg.Listen || cfg.WorkerListen == cfg.MetricsAddress) {
		wrong("worker_listen", "%s is taken by the server already; it needs an address of its own", cfg.WorkerListen)
	}
	for where, address := range map[string]string{"base_url": cfg.BaseURL, "worker_base_url": cfg.WorkerBaseURL} {
		u, err := url.Parse(address)
		if address != "" && (err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
			wrong(where, "%q is not like https://dagctl.example.com", address)
		}
	}
	if len(cfg.runtimes().Of(dispatcher.Lambda)) > 0 && cfg.workerBaseURL() == "" {
		wrong("worker_base_url", "is not set, and functions of the runtime %s need to know where to report", cfg.runtimes().Of(dispatcher.Lambda)[0])
	}
	if cfg.runtimes().Remote() && len(cfg.Tasks.KeyFiles) == 0 && cfg.Tasks.KMSKeyID == "" && len(cfg.taskKeys) == 0 {
		wrong("tasks.key_files", "is not set, nor is tasks.kms_key_id: tasks that run outside of this process need a key to speak for themselves; "+
			"make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE`")
	}
	return problems
}

// workerBaseURL is where workers and tasks reach the server; empty when nobody said.
func (cfg *serverConfig) workerBaseURL() string {
	return strings.TrimRight(cmp.Or(cfg.WorkerBaseURL, cfg.BaseURL), "/")
}

// readTaskKeys reads the keys of capability tokens, the one that signs first.
func (cfg *serverConfig) readTaskKeys(ctx context.Context) ([]authz.TaskKey, error) {
	keys := slices.Clone(cfg.taskKeys)
	if cfg.Tasks.KMSKeyID != "" {
		key, err := authz.KMSTaskKey(ctx, authz.KMSConfig{KeyID: cfg.Tasks.KMSKeyID, Endpoint: cfg.Tasks.KMSEndpoint, Region: cfg.Tasks.KMSRegion})
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

// newSigner makes what signs the capability tokens of tasks.
func (cfg *serverConfig) newSigner(ctx context.Context) (*authz.Signer, error) {
	keys, err := cfg.readTaskKeys(ctx)
	if err != nil {
		return nil, err
	}
	return authz.NewSigner(authz.SignerConfig{Issuer: cmp.Or(strings.TrimRight(cfg.BaseURL, "/"), "dagctl"), Keys: keys})
}

// catalog is what DAG files are held against: the operators, each with the runtimes that take it here.
func (cfg *serverConfig) catalog(builtin *operators.Registry) (dag.Catalog, error) {
	if problems := cfg.runtimes().Check(builtin.Names()); len(problems) > 0 {
		return dag.Catalog{}, &fault.Error{Kind: fault.Invalid, Message: "the server's config has " + count(len(problems), "problem"), Problems: problems}
	}
	c := builtin.Catalog(cfg.runtimes().Names())
	for name, spec := range c.Operators {
		taken := cfg.runtimes().Runs(name)
		if spec.Runtimes != nil {
			taken = slices.DeleteFunc(taken, func(r string) bool { return !slices.Contains(spec.Runtimes, r) })
		} else if len(taken) == len(c.Runtimes) {
			continue // wherever there is a runtime
		}
		spec.Runtimes = taken
		c.Operators[name] = spec
	}
	return c, nil
}

package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/runevents"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/tasklogs"
)

// Config is the configuration of a server. Flags win over DAGCTL_* variables, those over the config file, and that over
// the defaults.
type Config struct {
	DatabaseURL string `yaml:"database_url"`
	// RequestsDatabaseURL is by what requests log in to the same database; empty: by a role that `migrate` makes.
	RequestsDatabaseURL string `yaml:"requests_database_url"`
	// DatabaseWaitSeconds is how long a starting server waits for a database that does not answer.
	DatabaseWaitSeconds int `yaml:"database_wait_seconds"`

	Listen         string   `yaml:"listen"`
	WorkerListen   string   `yaml:"worker_listen"`   // serves workers and tasks only; empty: Listen serves all
	BaseURL        string   `yaml:"base_url"`        // address of this server in what it sends to callers
	WorkerBaseURL  string   `yaml:"worker_base_url"` // address of this server for workers and tasks; empty: BaseURL
	MetricsAddress string   `yaml:"metrics_address"` // serves /metrics of all orgs without a token; empty: not served
	Origins        []string `yaml:"origins"`         // of browsers that may call the API: https://dagctl.example.com

	Runtimes  RuntimesConfig      `yaml:"runtimes"` // by the names that DAG files use
	Tasks     TasksConfig         `yaml:"tasks"`
	FileRoots map[string][]string `yaml:"file_roots"` // org slug → folders that its file sources may read
	// ExportRoots are the folders that each org's exports may write, by its slug.
	ExportRoots map[string][]string `yaml:"export_roots"`

	Storage      StorageConfig      `yaml:"storage"`
	Operators    OperatorsConfig    `yaml:"operators"`
	Workers      WorkersConfig      `yaml:"workers"`
	Queries      QueriesConfig      `yaml:"queries"`
	Engines      EnginesConfig      `yaml:"engines"`
	Limits       LimitsConfig       `yaml:"limits"`
	Weights      WeightsConfig      `yaml:"weights"`
	Backpressure BackpressureConfig `yaml:"backpressure"`
	TaskLogs     TaskLogsConfig     `yaml:"task_logs"`
	Secrets      SecretsConfig      `yaml:"secrets"`
	Identity     IdentityConfig     `yaml:"identity"`
	OpenLineage  OpenLineageConfig  `yaml:"openlineage"`
	Prices       PricesConfig       `yaml:"prices"`
	Log          LogConfig          `yaml:"log"`

	// VersionRetentionDays is how long DAG versions stay that no longer serve, before they shrink to their records.
	VersionRetentionDays int `yaml:"version_retention_days"`
	// DeliveriesRetentionDays is how long it stays known that webhook_deliver has delivered a payload.
	DeliveriesRetentionDays int `yaml:"deliveries_retention_days"`
	// UsageRetentionDays is how long it stays known what jobs used.
	UsageRetentionDays int `yaml:"usage_retention_days"`

	// The following are not part of the config file.
	TaskKeys    []authz.TaskKey `yaml:"-"` // come before the keys of Tasks; a dev server sets them
	Hidden      []string        `yaml:"-"` // more files that programs may never reach
	path        string          // of the config file
	WorkerToken string          `yaml:"-"` // shell command that prints a token for workers; a dev server sets it
	SecretKeys  []string        `yaml:"-"` // from DAGCTL_SECRETS_KEY or the key file
}

// SecretsConfig names the keys that secrets are encrypted with.
type SecretsConfig struct {
	KeyFile string `yaml:"key_file"` // one key a line, the newest first
}

// OpenLineageConfig has the receivers of run events, by org slug.
type OpenLineageConfig map[string]struct {
	URL       string `yaml:"url"`       // takes one event per POST
	Secret    string `yaml:"secret"`    // name of the org's secret that is sent as a bearer token; empty: none is
	Namespace string `yaml:"namespace"` // of jobs and datasets; empty: dagctl://ORG
}

func (c OpenLineageConfig) receivers() runevents.Receivers {
	to := runevents.Receivers{}
	for org, r := range c {
		to[org] = runevents.Receiver(r)
	}
	return to
}

// namespaces returns the namespaces of the orgs' own datasets, where the config names them.
func (c OpenLineageConfig) namespaces() map[string]string {
	of := map[string]string{}
	for org, r := range c {
		if r.Namespace != "" {
			of[org] = r.Namespace
		}
	}
	return of
}

// PricesConfig says what usage costs. Without a currency, no money is shown.
type PricesConfig struct {
	Currency      string  `yaml:"currency"`              // such as EUR
	Second        float64 `yaml:"second"`                // of an attempt
	Written       float64 `yaml:"gigabyte_written"`      // 10^9 bytes
	StoredByMonth float64 `yaml:"gigabyte_stored_month"` // of 730 hours
}

// TasksConfig names the keys of the capability tokens that tasks present, the newest first.
type TasksConfig struct {
	KeyFiles    []string `yaml:"key_files"`    // PEM; the first signs unless KMSKeyID is set, all verify
	KMSKeyID    string   `yaml:"kms_key_id"`   // id, ARN or alias of an AWS KMS key that signs
	KMSEndpoint string   `yaml:"kms_endpoint"` // empty: the endpoint of AWS
	KMSRegion   string   `yaml:"kms_region"`   // empty: the region in the AWS settings of the process
}

// OperatorsConfig limits what the built-in operators may do in this process.
type OperatorsConfig struct {
	AllowCommand     OrgList  `yaml:"allow_command"`     // orgs whose DAGs may run programs
	CommandPaths     []string `yaml:"command_paths"`     // more that programs may read and run
	CommandShared    []string `yaml:"command_shared"`    // folders that they may also write to
	CommandMemoryMB  int64    `yaml:"command_memory_mb"` // of the processes of one program; 0: 4096
	CommandOutputMB  int64    `yaml:"command_output_mb"` // of the files that one program writes; 0: 32768
	AllowedAddresses []string `yaml:"allowed_addresses"` // private prefixes that operators of HTTP may reach
	MemoryMB         int64    `yaml:"memory_mb"`         // of each DuckDB session
	Threads          int      `yaml:"threads"`           // of each DuckDB session
	ReuseByColumn    bool     `yaml:"reuse_by_column"`   // sql jobs depend only on the columns that they name
}

// WorkersConfig sizes the worker inside the server's process.
type WorkersConfig struct {
	PoolSize int `yaml:"pool_size"` // tasks that run at once
}

// QueriesConfig limits users' SQL. Each query runs in a process of its own.
type QueriesConfig struct {
	Concurrent     int   `yaml:"concurrent"`      // queries at once in this server
	TimeoutSeconds int   `yaml:"timeout_seconds"` // per query
	MemoryMB       int64 `yaml:"memory_mb"`       // per query
	Threads        int   `yaml:"threads"`         // per query
	MaxRows        int   `yaml:"max_rows"`        // per answer
	MaxMB          int64 `yaml:"max_mb"`          // per answer
	// that a query may read of datasets in Postgres storage or in a bucket
	MaxCopyMB     int64 `yaml:"max_copy_mb"`
	Exports       int   `yaml:"exports"`        // at once in this server
	ExportMinutes int   `yaml:"export_minutes"` // per export
}

func (c QueriesConfig) limits() query.Limits {
	return query.Limits{
		Concurrent: c.Concurrent, Timeout: time.Duration(c.TimeoutSeconds) * time.Second,
		Memory: c.MemoryMB << 20, Threads: c.Threads,
		Rows: c.MaxRows, Bytes: c.MaxMB << 20, CopyBytes: c.MaxCopyMB << 20,
		Exports: c.Exports, ExportTime: time.Duration(c.ExportMinutes) * time.Minute,
	}
}

// EnginesConfig sizes the processes that run what users wrote or uploaded; see package engine. Where a number is 0, it
// follows from the machine's processors.
type EnginesConfig struct {
	Jobs        int `yaml:"jobs"`         // that work at once on tasks
	Queries     int `yaml:"queries"`      // on queries and previews; never fewer than Queries.Concurrent
	Parses      int `yaml:"parses"`       // on statements of DAG files
	IdleSeconds int `yaml:"idle_seconds"` // how long one waits for more work of its purpose
	// Walls are those without which the server does not start, by the names that doctor prints.
	Walls []string `yaml:"walls"`
}

// engines returns the config of the engines, whose folders are beside the files that they read.
func (cfg *Config) engines(dir string) engine.Config {
	c, slots := cfg.Engines, engine.DefaultSlots(runtime.NumCPU())
	slots[engine.Query] = max(slots[engine.Query], cfg.Queries.Concurrent) + cfg.Queries.Exports
	for kind, n := range map[engine.Kind]int{engine.Job: c.Jobs, engine.Query: c.Queries, engine.Parse: c.Parses} {
		if n > 0 {
			slots[kind] = n
		}
	}
	return engine.Config{Dir: dir, Slots: slots, Idle: time.Duration(c.IdleSeconds) * time.Second}
}

// TaskLogsConfig limits the logs of tasks that the server keeps.
type TaskLogsConfig struct {
	MaxMB    int64 `yaml:"max_mb"` // per attempt
	KeepDays int   `yaml:"keep_days"`
}

// LimitsConfig limits the rate of requests.
type LimitsConfig struct {
	RequestsPerSecond float64 `yaml:"requests_per_second"` // per caller
	Burst             int     `yaml:"burst"`
	// Per worker token, which a whole fleet may share.
	WorkerRequestsPerSecond float64 `yaml:"worker_requests_per_second"`
	WorkerBurst             int     `yaml:"worker_burst"`
	// Refused credentials, per address.
	RefusedPerSecond float64 `yaml:"refused_per_second"`
	RefusedBurst     int     `yaml:"refused_burst"`
	// Steps of sign-ins, per address, which may be that of a proxy before everybody.
	SignInsPerSecond float64 `yaml:"sign_ins_per_second"`
	SignInBurst      int     `yaml:"sign_in_burst"`
}

// WeightsConfig has the shares of the classes of tasks in each org.
type WeightsConfig struct {
	Live     int `yaml:"live"`
	Build    int `yaml:"build"`
	Backfill int `yaml:"backfill"`
	Branch   int `yaml:"branch"`
}

func (c WeightsConfig) weights() tasks.Weights {
	return tasks.Weights{
		tasks.ClassLive: c.Live, tasks.ClassBuild: c.Build,
		tasks.ClassBackfill: c.Backfill, tasks.ClassBranch: c.Branch,
	}
}

// BackpressureConfig says how long the queue must be for sources, backfills and builds to wait. Zero means never.
type BackpressureConfig struct {
	MaxQueued     int `yaml:"max_queued"`      // of an org for a runtime
	MaxAgeSeconds int `yaml:"max_age_seconds"` // how long the task next in line may have waited
	// queued tasks at which the server refuses deliveries; 0: twice MaxQueued
	RefuseAt int `yaml:"refuse_at"`
}

func (c BackpressureConfig) thresholds() pressure.Thresholds {
	return pressure.Thresholds{
		MaxQueued: c.MaxQueued, MaxAge: time.Duration(c.MaxAgeSeconds) * time.Second, RefuseAt: c.RefuseAt,
	}
}

// LogConfig describes the log of the process.
type LogConfig struct {
	Level  string `yaml:"level"`  // debug, info, warn or error
	Format string `yaml:"format"` // json or text
}

// The defaults, by section.
var (
	DefaultOperators = OperatorsConfig{MemoryMB: 1024, ReuseByColumn: true}
	defaultWorkers   = WorkersConfig{PoolSize: 4}
	defaultQueries   = QueriesConfig{
		Concurrent: query.DefaultLimits.Concurrent, TimeoutSeconds: int(query.DefaultLimits.Timeout / time.Second),
		MemoryMB: query.DefaultLimits.Memory >> 20, Threads: query.DefaultLimits.Threads,
		MaxRows: query.DefaultLimits.Rows, MaxMB: query.DefaultLimits.Bytes >> 20,
		MaxCopyMB: query.DefaultLimits.CopyBytes >> 20,
		Exports:   query.DefaultLimits.Exports, ExportMinutes: int(query.DefaultLimits.ExportTime / time.Minute),
	}
	defaultEngines = EnginesConfig{IdleSeconds: 30, Walls: []string{}}
	defaultLimits  = LimitsConfig{
		RequestsPerSecond: 50, Burst: 200, WorkerRequestsPerSecond: 2000, WorkerBurst: 4000,
		RefusedPerSecond: 2, RefusedBurst: 100, SignInsPerSecond: 50, SignInBurst: 500,
	}
	defaultWeights = WeightsConfig{
		Live: tasks.DefaultWeights[tasks.ClassLive], Build: tasks.DefaultWeights[tasks.ClassBuild],
		Backfill: tasks.DefaultWeights[tasks.ClassBackfill], Branch: tasks.DefaultWeights[tasks.ClassBranch],
	}
	defaultTaskLogs = TaskLogsConfig{
		MaxMB: tasklogs.DefaultMaxBytes >> 20, KeepDays: int(tasklogs.DefaultKeep / (24 * time.Hour)),
	}
	DefaultLog = LogConfig{Level: "info", Format: "json"}

	DefaultConfig = Config{
		DatabaseWaitSeconds: 60, Listen: "127.0.0.1:7070",
		Runtimes: RuntimesConfig{"dispatcher": {{Kind: backends.InProcess}}},
		Storage:  defaultStorage, Operators: DefaultOperators, Workers: defaultWorkers, Queries: defaultQueries,
		Engines: defaultEngines, Limits: defaultLimits, Weights: defaultWeights,
		Backpressure:            BackpressureConfig{MaxQueued: 1_000_000},
		TaskLogs:                defaultTaskLogs,
		Identity:                defaultIdentity,
		VersionRetentionDays:    int(upkeep.KeepVersions / (24 * time.Hour)),
		DeliveriesRetentionDays: int(upkeep.KeepDeliveries / (24 * time.Hour)),

		UsageRetentionDays: int(usage.KeepUsage / (24 * time.Hour)),
		Log:                DefaultLog,
	}
)

// loadConfig returns the defaults, changed by a config file and by the environment.
func loadConfig(path string, getenv func(string) string) (Config, error) {
	cfg := DefaultConfig
	return cfg, cfg.Load(path, getenv)
}

// Load changes the config by a config file, which it decodes strictly, and then by the environment. An empty path means
// no file.
func (cfg *Config) Load(path string, getenv func(string) string) error {
	cfg.Runtimes = maps.Clone(cfg.Runtimes) // decoding adds to the map, which may be that of the defaults

	if cfg.path = path; path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return fault.New(fault.NotFound, "config: %w", err)
		}
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err := decoder.Decode(cfg); err != nil && !errors.Is(err, io.EOF) {
			return fault.New(fault.Invalid, "config %s: %w", path, err).WithHint("docs/config.md lists every field")
		}
	}

	if err := cfg.applyEnvironment(getenv); err != nil {
		return err
	}
	var err error
	cfg.SecretKeys, err = authz.VaultKeys(getenv("DAGCTL_SECRETS_KEY"), cfg.Secrets.KeyFile)
	return err
}

// applyEnvironment sets the fields that differ from machine to machine from DAGCTL_* variables.
func (cfg *Config) applyEnvironment(getenv func(string) string) error {
	for name, field := range map[string]*string{
		"DAGCTL_DATABASE_URL":          &cfg.DatabaseURL,
		"DAGCTL_REQUESTS_DATABASE_URL": &cfg.RequestsDatabaseURL,
		"DAGCTL_LISTEN":                &cfg.Listen,
		"DAGCTL_WORKER_LISTEN":         &cfg.WorkerListen,
		"DAGCTL_BASE_URL":              &cfg.BaseURL,
		"DAGCTL_WORKER_BASE_URL":       &cfg.WorkerBaseURL,
		"DAGCTL_METRICS_ADDRESS":       &cfg.MetricsAddress,
		"DAGCTL_STORAGE_ROOT":          &cfg.Storage.Root,
		"DAGCTL_LOG_LEVEL":             &cfg.Log.Level,
		"DAGCTL_LOG_FORMAT":            &cfg.Log.Format,
	} {
		if value := getenv(name); value != "" {
			*field = value
		}
	}

	for name, field := range map[string]*int{
		"DAGCTL_POOL_SIZE":             &cfg.Workers.PoolSize,
		"DAGCTL_DATABASE_WAIT_SECONDS": &cfg.DatabaseWaitSeconds,
	} {
		if value := getenv(name); value != "" {
			n, err := strconv.Atoi(value)
			if err != nil {
				return fault.New(fault.Invalid, "%s %q is not a number", name, value)
			}
			*field = n
		}
	}

	if value := getenv("DAGCTL_ALLOW_COMMAND"); value != "" {
		orgs, err := OrgsOf("DAGCTL_ALLOW_COMMAND", value)
		if err != nil {
			return err
		}
		cfg.Operators.AllowCommand = orgs
	}
	return nil
}

// OperatorOptions returns the options of the built-in operators in this process.
func (cfg *Config) OperatorOptions() operators.Options {
	return operators.Options{
		Command: cfg.commandOptions(), AllowedAddresses: cfg.Operators.AllowedAddresses,
		MemoryLimit: cfg.Operators.MemoryMB << 20, Threads: cfg.Operators.Threads,
		ReuseByColumn: cfg.Operators.ReuseByColumn, ExportRoots: cfg.ExportRoots,
	}
}

// Folders are those that file sources may read.
type Folders struct {
	Of   func(org, dag string) []string
	Orgs []string // those that have any; nil: it depends on the DAG
	None error    // of a DAG that has none; it says how to get one
}

// Folders returns the folders that the config gives to orgs.
func (cfg *Config) Folders() Folders {
	return Folders{Of: cfg.Roots, Orgs: append([]string{}, slices.Sorted(maps.Keys(cfg.FileRoots))...),
		None: operators.ErrNoFolders}
}

// Roots returns the folders that an org's file sources may read, which are the same for all of its DAGs.
func (cfg *Config) Roots(org, _ string) []string { return cfg.FileRoots[org] }

// NewLogger returns a logger that writes to w.
func NewLogger(w io.Writer, cfg LogConfig) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("level %q is not debug, info, warn or error", cfg.Level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch cfg.Format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return nil, fmt.Errorf("format %q is not json or text", cfg.Format)
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/tasklogs"
)

// serverConfig is what a server is told: defaults, then the config file, then DAGCTL_* variables, then flags.
type serverConfig struct {
	DatabaseURL string `yaml:"database_url"`
	// DatabaseWaitSeconds is how long a server that starts waits for a database that does not answer.
	DatabaseWaitSeconds int                 `yaml:"database_wait_seconds"`
	Listen              string              `yaml:"listen"`
	WorkerListen        string              `yaml:"worker_listen"`   // where workers and tasks are served instead; empty: at listen
	BaseURL             string              `yaml:"base_url"`        // where callers reach this server, as the server tells them
	WorkerBaseURL       string              `yaml:"worker_base_url"` // where workers and tasks reach it; empty: at base_url
	MetricsAddress      string              `yaml:"metrics_address"` // where /metrics of all orgs is served, to whoever gets there; empty: nowhere
	Origins             []string            `yaml:"origins"`         // where browsers reach this server: https://dagctl.example.com
	Runtimes            runtimesConfig      `yaml:"runtimes"`        // name in DAG files → what it is here
	Tasks               tasksConfig         `yaml:"tasks"`
	FileRoots           map[string][]string `yaml:"file_roots"` // org slug → folders that its file sources may read
	Storage             storageConfig       `yaml:"storage"`
	Operators           operatorsConfig     `yaml:"operators"`
	Workers             workersConfig       `yaml:"workers"`
	Queries             queriesConfig       `yaml:"queries"`
	Limits              limitsConfig        `yaml:"limits"`
	Backpressure        backpressureConfig  `yaml:"backpressure"`
	TaskLogs            taskLogsConfig      `yaml:"task_logs"`
	Secrets             secretsConfig       `yaml:"secrets"`
	Log                 logConfig           `yaml:"log"`

	taskKeys    []authz.TaskKey // that sign before those of Tasks: a dev server's
	workerToken string          // shell command that prints a token for workers: a dev server's
	secretKeys  []string        // from DAGCTL_SECRETS_KEY or the key file
}

type secretsConfig struct {
	KeyFile string `yaml:"key_file"` // keys that secrets are encrypted with, one a line, the newest first
}

// tasksConfig has the keys of the capability tokens that tasks show, the newest first.
type tasksConfig struct {
	KeyFiles    []string `yaml:"key_files"`    // PEM; the first signs unless kms_key_id is set, all verify
	KMSKeyID    string   `yaml:"kms_key_id"`   // id, ARN or alias of an AWS KMS key that signs
	KMSEndpoint string   `yaml:"kms_endpoint"` // of KMS, where it is not AWS's own
	KMSRegion   string   `yaml:"kms_region"`   // of the key; empty: as the AWS settings of the process say
}

type operatorsConfig struct {
	AllowCommand     bool     `yaml:"allow_command"`     // command runs any program with this process's rights
	AllowedAddresses []string `yaml:"allowed_addresses"` // prefixes that http_source may reach though they are private
	MemoryMB         int64    `yaml:"memory_mb"`         // of each DuckDB session
	Threads          int      `yaml:"threads"`           // of each DuckDB session
}

type workersConfig struct {
	PoolSize int `yaml:"pool_size"` // tasks run at once in this process
}

// queriesConfig bounds what SQL of users may take; each query has a process of its own.
type queriesConfig struct {
	Concurrent     int   `yaml:"concurrent"`      // at once in this process
	TimeoutSeconds int   `yaml:"timeout_seconds"` // of each
	MemoryMB       int64 `yaml:"memory_mb"`       // of each
	Threads        int   `yaml:"threads"`         // of each
	MaxRows        int   `yaml:"max_rows"`        // in one answer
	MaxMB          int64 `yaml:"max_mb"`          // in one answer
	MaxCopyMB      int64 `yaml:"max_copy_mb"`     // of datasets in Postgres storage or in a bucket that each may read
}

func (c queriesConfig) limits() query.Limits {
	return query.Limits{
		Concurrent: c.Concurrent, Timeout: time.Duration(c.TimeoutSeconds) * time.Second, Memory: c.MemoryMB << 20, Threads: c.Threads,
		Rows: c.MaxRows, Bytes: c.MaxMB << 20, CopyBytes: c.MaxCopyMB << 20,
	}
}

// taskLogsConfig bounds what is kept of what tasks say.
type taskLogsConfig struct {
	MaxMB    int64 `yaml:"max_mb"`    // of each attempt
	KeepDays int   `yaml:"keep_days"` // how long lines stay
}

type limitsConfig struct {
	RequestsPerSecond float64 `yaml:"requests_per_second"` // of each caller
	Burst             int     `yaml:"burst"`
	// Of each worker token, which a whole fleet may share.
	WorkerRequestsPerSecond float64 `yaml:"worker_requests_per_second"`
	WorkerBurst             int     `yaml:"worker_burst"`
}

// backpressureConfig says from where on sources, backfills and builds wait. Zero: never.
type backpressureConfig struct {
	MaxQueued     int `yaml:"max_queued"`      // tasks of all orgs that are queued
	MaxAgeSeconds int `yaml:"max_age_seconds"` // how long the next in line may wait
	RefuseAt      int `yaml:"refuse_at"`       // queued tasks at which deliveries and enqueues are refused; 0: twice max_queued
}

func (c backpressureConfig) thresholds() dispatcher.Thresholds {
	return dispatcher.Thresholds{MaxQueued: c.MaxQueued, MaxAge: time.Duration(c.MaxAgeSeconds) * time.Second, RefuseAt: c.RefuseAt}
}

type logConfig struct {
	Level  string `yaml:"level"`  // debug, info, warn or error
	Format string `yaml:"format"` // json or text
}

var (
	defaultOperators = operatorsConfig{MemoryMB: 1024}
	defaultWorkers   = workersConfig{PoolSize: 4}
	defaultQueries   = queriesConfig{
		Concurrent: query.DefaultLimits.Concurrent, TimeoutSeconds: int(query.DefaultLimits.Timeout / time.Second), MemoryMB: query.DefaultLimits.Memory >> 20,
		Threads: query.DefaultLimits.Threads, MaxRows: query.DefaultLimits.Rows, MaxMB: query.DefaultLimits.Bytes >> 20, MaxCopyMB: query.DefaultLimits.CopyBytes >> 20,
	}
	defaultLimits   = limitsConfig{RequestsPerSecond: 50, Burst: 200, WorkerRequestsPerSecond: 2000, WorkerBurst: 4000}
	defaultTaskLogs = taskLogsConfig{MaxMB: tasklogs.DefaultMaxBytes >> 20, KeepDays: int(tasklogs.DefaultKeep / (24 * time.Hour))}
	defaultLog      = logConfig{Level: "info", Format: "json"}
	defaultConfig   = serverConfig{
		DatabaseWaitSeconds: 60, Listen: "127.0.0.1:7070",
		Runtimes: runtimesConfig{"dispatcher": {{Kind: dispatcher.InProcess}}}, Storage: defaultStorage,
		Operators: defaultOperators, Workers: defaultWorkers, Queries: defaultQueries,
		Limits: defaultLimits, TaskLogs: defaultTaskLogs, Backpressure: backpressureConfig{MaxQueued: 1_000_000}, Log: defaultLog,
	}
)

// loadConfig reads a config file strictly, over the defaults, and applies the environment.
func loadConfig(path string, getenv func(string) string) (serverConfig, error) {
	cfg := defaultConfig
	return cfg, cfg.load(path, getenv)
}

// load reads a config file, if there is one, and applies the environment.
func (cfg *serverConfig) load(path string, getenv func(string) string) error {
	cfg.Runtimes = maps.Clone(cfg.Runtimes)
	if path != "" {
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
	return cfg.readSecretKeys(getenv("DAGCTL_SECRETS_KEY"))
}

// readSecretKeys takes the keys that secrets are encrypted with from the environment, where they are divided by commas,
// or else from their file. The newest comes first; the others still open what was encrypted with them.
func (cfg *serverConfig) readSecretKeys(env string) error {
	text := strings.ReplaceAll(env, ",", "\n")
	if text == "" && cfg.Secrets.KeyFile != "" {
		file, err := os.ReadFile(cfg.Secrets.KeyFile)
		if err != nil {
			return fault.New(fault.NotFound, "secrets.key_file: %w", err)
		}
		text = string(file)
	}
	cfg.secretKeys = strings.Fields(text)
	return nil
}

// applyEnvironment takes the settings that differ from machine to machine from DAGCTL_* variables.
func (cfg *serverConfig) applyEnvironment(getenv func(string) string) error {
	texts := map[string]*string{
		"DAGCTL_DATABASE_URL": &cfg.DatabaseURL, "DAGCTL_LISTEN": &cfg.Listen, "DAGCTL_METRICS_ADDRESS": &cfg.MetricsAddress, "DAGCTL_STORAGE_ROOT": &cfg.Storage.Root,
		"DAGCTL_LOG_LEVEL": &cfg.Log.Level, "DAGCTL_LOG_FORMAT": &cfg.Log.Format,
	}
	maps.Copy(texts, map[string]*string{
		"DAGCTL_WORKER_LISTEN": &cfg.WorkerListen, "DAGCTL_BASE_URL": &cfg.BaseURL, "DAGCTL_WORKER_BASE_URL": &cfg.WorkerBaseURL,
	})
	for name, field := range texts {
		if value := getenv(name); value != "" {
			*field = value
		}
	}
	for name, field := range map[string]*int{"DAGCTL_POOL_SIZE": &cfg.Workers.PoolSize, "DAGCTL_DATABASE_WAIT_SECONDS": &cfg.DatabaseWaitSeconds} {
		if value := getenv(name); value != "" {
			n, err := strconv.Atoi(value)
			if err != nil {
				return fault.New(fault.Invalid, "%s %q is not a number", name, value)
			}
			*field = n
		}
	}
	if value := getenv("DAGCTL_ALLOW_COMMAND"); value != "" {
		allowed, err := strconv.ParseBool(value)
		if err != nil {
			return fault.New(fault.Invalid, "DAGCTL_ALLOW_COMMAND %q is not true or false", value)
		}
		cfg.Operators.AllowCommand = allowed
	}
	return nil
}

// validate finds everything that is wrong.
func (cfg *serverConfig) validate() error {
	var problems []fault.Problem
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: where, Message: fmt.Sprintf(format, args...)})
	}
	if cfg.DatabaseURL == "" {
		wrong("database_url", "is not set: --database-url, DAGCTL_DATABASE_URL or the config file")
	}
	if cfg.DatabaseWaitSeconds < 0 || cfg.DatabaseWaitSeconds > 3600 {
		wrong("database_wait_seconds", "%d is not between 0 and 3600", cfg.DatabaseWaitSeconds)
	}
	if cfg.MetricsAddress != "" && cfg.MetricsAddress == cfg.Listen {
		wrong("metrics_address", "%s is where the server listens; it needs an address of its own", cfg.Listen)
	}
	cfg.Storage.check(wrong)
	if len(cfg.Runtimes) == 0 {
		wrong("runtimes", "maps no runtime, so no DAG could run")
	}
	problems = append(problems, cfg.validateRemote()...)
	for _, org := range slices.Sorted(maps.Keys(cfg.FileRoots)) {
		for _, root := range cfg.FileRoots[org] {
			if !filepath.IsAbs(root) {
				wrong("file_roots."+org, "%q is not an absolute path", root)
			} else if info, err := os.Stat(root); err != nil || !info.IsDir() {
				wrong("file_roots."+org, "%q is not a folder here", root)
			}
		}
	}
	if cfg.Operators.MemoryMB < 64 {
		wrong("operators.memory_mb", "%d is too little; 64 is the least", cfg.Operators.MemoryMB)
	}
	if cfg.Workers.PoolSize < 1 || cfg.Workers.PoolSize > 1000 {
		wrong("workers.pool_size", "%d is not between 1 and 1000", cfg.Workers.PoolSize)
	}
	if err := cfg.Queries.limits().Validate(); err != nil {
		wrong("queries", "%v", err)
	}
	if l := cfg.Limits; l.RequestsPerSecond <= 0 || l.Burst < 1 || l.WorkerRequestsPerSecond <= 0 || l.WorkerBurst < 1 {
		wrong("limits", "let nothing through")
	}
	if p := cfg.Backpressure; p.MaxQueued < 0 || p.MaxAgeSeconds < 0 || p.RefuseAt < 0 {
		wrong("backpressure", "thresholds are not negative; 0 is none")
	} else if p.RefuseAt > 0 && p.RefuseAt < p.MaxQueued {
		wrong("backpressure.refuse_at", "%d is less than max_queued, %d: deliveries would be refused before sources wait", p.RefuseAt, p.MaxQueued)
	}
	if cfg.TaskLogs.MaxMB < 1 || cfg.TaskLogs.MaxMB > 1024 {
		wrong("task_logs.max_mb", "%d is not between 1 and 1024", cfg.TaskLogs.MaxMB)
	}
	if cfg.TaskLogs.KeepDays < 1 || cfg.TaskLogs.KeepDays > 3650 {
		wrong("task_logs.keep_days", "%d is not between 1 and 3650", cfg.TaskLogs.KeepDays)
	}
	if _, err := newLogger(io.Discard, cfg.Log); err != nil {
		wrong("log", "%v", err)
	}
	if len(problems) > 0 {
		return &fault.Error{Kind: fault.Invalid, Message: "the server's config has " + count(len(problems), "problem"), Problems: problems}
	}
	return nil
}

// operators says how the platform's operators work here.
func (cfg *serverConfig) operators() operators.Options {
	return operators.Options{AllowCommand: cfg.Operators.AllowCommand, AllowedAddresses: cfg.Operators.AllowedAddresses,
		MemoryLimit: cfg.Operators.MemoryMB << 20, Threads: cfg.Operators.Threads}
}

// roots are the folders that an org's file sources may read, whatever the DAG.
func (cfg *serverConfig) roots(org, _ string) []string { return cfg.FileRoots[org] }

func newLogger(w io.Writer, cfg logConfig) (*slog.Logger, error) {
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

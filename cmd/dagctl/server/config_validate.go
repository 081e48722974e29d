package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/idna"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/sandbox"
)

// problems collects what is wrong with a config, each with the field that it is about.
type problems []fault.Problem

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fault.Problem{Location: field, Message: fmt.Sprintf(format, args...)})
}

// between adds a problem unless lowest ≤ n ≤ highest.
func (p *problems) between(field string, n, lowest, highest int64) {
	if n < lowest || n > highest {
		p.add(field, "%d is not between %d and %d", n, lowest, highest)
	}
}

// err returns all problems as one error, or nil where there is none.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	message := "the server's config has " + plural.Of(len(p), "problem")
	return &fault.Error{Kind: fault.Invalid, Message: message, Problems: p}
}

// Validate reports everything that is wrong with the config, section by section.
func (cfg *Config) Validate() error {
	var found problems
	cfg.checkDatabase(&found)
	cfg.Storage.check(&found)
	cfg.checkRuntimes(&found)
	cfg.checkAddresses(&found)
	cfg.checkRemote(&found)
	cfg.checkFileRoots(&found)
	cfg.checkExportRoots(&found)
	cfg.OpenLineage.check(&found)

	if cfg.Operators.MemoryMB < 64 {
		found.add("operators.memory_mb", "%d is too little; 64 is the least", cfg.Operators.MemoryMB)
	}
	found.between("workers.pool_size", int64(cfg.Workers.PoolSize), 1, 1000)
	if err := cfg.Queries.limits().Validate(); err != nil {
		found.add("queries", "%v", err)
	}
	cfg.checkEngines(&found)

	cfg.checkIdentity(&found)
	cfg.Limits.check(&found)
	cfg.Weights.check(&found)
	cfg.Backpressure.check(&found)
	found.between("task_logs.max_mb", cfg.TaskLogs.MaxMB, 1, 1024)
	found.between("task_logs.keep_days", int64(cfg.TaskLogs.KeepDays), 1, 3650)
	found.between("version_retention_days", int64(cfg.VersionRetentionDays), 8, 36500)
	found.between("deliveries_retention_days", int64(cfg.DeliveriesRetentionDays), 8, 36500)
	found.between("usage_retention_days", int64(cfg.UsageRetentionDays), 1, 3650)
	cfg.Prices.check(&found)
	if _, err := NewLogger(io.Discard, cfg.Log); err != nil {
		found.add("log", "%v", err)
	}
	return found.err()
}

func (cfg *Config) checkEngines(found *problems) {
	c := cfg.Engines
	found.between("engines.jobs", int64(c.Jobs), 0, 1000)
	found.between("engines.parses", int64(c.Parses), 0, 1000)
	found.between("engines.idle_seconds", int64(c.IdleSeconds), 1, 3600)
	if c.Queries != 0 {
		found.between("engines.queries", int64(c.Queries), int64(cfg.Queries.Concurrent), 1000)
	}
	if len(c.Walls) > 0 {
		checkWalls(found, c.Walls, sandbox.Standing())
	}
}

// checkWalls requires that walls stand around what users run.
func checkWalls(found *problems, required []string, walls []sandbox.Wall) {
	var names []string
	for _, wall := range walls {
		names = append(names, wall.Name)
	}
	for i, name := range required {
		field := fmt.Sprintf("engines.walls[%d]", i)
		switch at := slices.Index(names, name); {
		case at < 0:
			found.add(field, "%q is no wall: there are %s", name, strings.Join(names, ", "))
		case !walls[at].Stands:
			found.add(field, "the wall %s does not stand on this machine: %s", name, walls[at].Detail)
		}
	}
}

func (cfg *Config) checkDatabase(found *problems) {
	if cfg.DatabaseURL == "" {
		found.add("database_url", "is not set: --database-url, DAGCTL_DATABASE_URL or the config file")
	}
	found.between("database_wait_seconds", int64(cfg.DatabaseWaitSeconds), 0, 3600)
}

// checkRuntimes checks the map of runtimes, but for the names of operators, which only a catalog knows.
func (cfg *Config) checkRuntimes(found *problems) {
	if len(cfg.Runtimes) == 0 {
		found.add("runtimes", "maps no runtime, so no DAG could run")
	}
	*found = append(*found, cfg.RuntimeMap().Check(nil)...)
}

func (cfg *Config) checkAddresses(found *problems) {
	if cfg.MetricsAddress != "" && cfg.MetricsAddress == cfg.Listen {
		found.add("metrics_address", "%s is where the server listens; it needs an address of its own", cfg.Listen)
	}
	if cfg.WorkerListen != "" && (cfg.WorkerListen == cfg.Listen || cfg.WorkerListen == cfg.MetricsAddress) {
		found.add("worker_listen", "%s is taken by the server already; it needs an address of its own",
			cfg.WorkerListen)
	}
	for _, base := range []struct{ field, address string }{
		{"base_url", cfg.BaseURL}, {"worker_base_url", cfg.WorkerBaseURL},
	} {
		if base.address != "" && !isBaseURL(base.address) {
			found.add(base.field, "%q is not like https://dagctl.example.com", base.address)
		}
		if ascii, ok := asciiHost(base.address); !ok {
			found.add(base.field, "%q has a host that browsers write as %s: write it so", base.address, ascii)
		}
	}
}

// asciiHost returns the host of an address as it is sent over networks. ok is false if the address writes it otherwise.
func asciiHost(address string) (host string, ok bool) {
	u, err := url.Parse(address)
	if err != nil || !strings.ContainsFunc(u.Host, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", true
	}
	host, err = idna.Lookup.ToASCII(u.Hostname())
	if err != nil {
		host = "nothing at all"
	}
	return host, false
}

// isBaseURL reports whether text is an HTTP address that paths can be appended to.
func isBaseURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false
	}
	return u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// checkRemote checks what runtimes outside of the server's process need.
func (cfg *Config) checkRemote(found *problems) {
	if functions := cfg.RuntimeMap().Of(backends.Lambda); len(functions) > 0 && cfg.workerBaseURL() == "" {
		found.add("worker_base_url", "is not set, and functions of the runtime %s need to know where to report",
			functions[0])
	}

	hasKey := len(cfg.Tasks.KeyFiles) > 0 || cfg.Tasks.KMSKeyID != "" || len(cfg.TaskKeys) > 0
	if cfg.RuntimeMap().Remote() && !hasKey {
		found.add("tasks.key_files",
			"is not set, nor is tasks.kms_key_id: tasks that run outside of this process need "+
				"capability tokens, and these a key; make one with "+
				"`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE`")
	}
}

func (cfg *Config) checkFileRoots(found *problems) {
	for _, org := range slices.Sorted(maps.Keys(cfg.FileRoots)) {
		for _, root := range cfg.FileRoots[org] {
			if !filepath.IsAbs(root) {
				found.add("file_roots."+org, "%q is not an absolute path", root)
			} else if info, err := os.Stat(root); err != nil || !info.IsDir() {
				found.add("file_roots."+org, "%q is not a folder here", root)
			}
		}
	}
}

// checkExportRoots refuses folders in which an export could overwrite what is no export of its org.
func (cfg *Config) checkExportRoots(found *problems) {
	for _, org := range slices.Sorted(maps.Keys(cfg.ExportRoots)) {
		for _, root := range cfg.ExportRoots[org] {
			name := "export_roots." + org
			switch info, err := os.Stat(root); {
			case !filepath.IsAbs(root):
				found.add(name, "%q is not an absolute path", root)
			case err != nil || !info.IsDir():
				found.add(name, "%q is not a folder here", root)
			default:
				cfg.checkExportRoot(org, root, found)
			}
		}
	}
}

func (cfg *Config) checkExportRoot(org, root string, found *problems) {
	name := "export_roots." + org
	if cfg.Storage.Root != "" && overlap(root, cfg.Storage.Root) {
		found.add(name, "%q and storage.root have files in common", root)
	}

	meets := func(other string) bool { return overlap(root, other) }
	for _, of := range []struct {
		kind string
		all  map[string][]string
	}{{"export_roots", cfg.ExportRoots}, {"file_roots", cfg.FileRoots}} {
		for _, other := range slices.Sorted(maps.Keys(of.all)) {
			if other != org && slices.ContainsFunc(of.all[other], meets) {
				found.add(name, "%q and %s.%s have files in common: what one org exports is not the other's", root,
					of.kind, other)
			}
		}
	}
}

// overlap reports whether one of two folders is in the other, wherever links lead.
func overlap(a, b string) bool {
	real := func(path string) string {
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
		if followed, err := filepath.EvalSymlinks(path); err == nil {
			path = followed
		}
		return path
	}
	a, b = real(a), real(b)
	in := func(a, b string) bool {
		relative, err := filepath.Rel(a, b)
		return err == nil && filepath.IsLocal(relative)
	}
	return in(a, b) || in(b, a)
}

func (c OpenLineageConfig) check(found *problems) {
	for _, org := range slices.Sorted(maps.Keys(c)) {
		u, err := url.Parse(c[org].URL)
		if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "https" && u.Scheme != "http") {
			found.add("openlineage."+org+".url",
				"is not like https://marquez.example.com/api/v1/lineage, without a user and password")
		}
	}
}

func (c PricesConfig) check(found *problems) {
	if least := min(c.Second, c.Written, c.StoredByMonth); least < 0 {
		found.add("prices", "%v is less than nothing", least)
	}
	if c.Currency == "" && c != (PricesConfig{}) {
		found.add("prices.currency", "is not set, so no money would be shown: write EUR, say")
	}
}

func (c LimitsConfig) check(found *problems) {
	if c.RequestsPerSecond <= 0 || c.Burst < 1 || c.WorkerRequestsPerSecond <= 0 || c.WorkerBurst < 1 ||
		c.RefusedPerSecond <= 0 || c.RefusedBurst < 1 || c.SignInsPerSecond <= 0 || c.SignInBurst < 1 {
		found.add("limits", "let nothing through")
	}
}

func (c WeightsConfig) check(found *problems) {
	if least := min(c.Live, c.Build, c.Backfill, c.Branch); least < 1 {
		found.add("weights", "%d is no share: each class has at least 1", least)
	}
}

func (c BackpressureConfig) check(found *problems) {
	if c.MaxQueued < 0 || c.MaxAgeSeconds < 0 || c.RefuseAt < 0 {
		found.add("backpressure", "a threshold is negative; 0 means none")
	} else if c.RefuseAt > 0 && c.RefuseAt < c.MaxQueued {
		found.add("backpressure.refuse_at",
			"%d is less than max_queued, %d: the server would refuse deliveries before sources wait",
			c.RefuseAt, c.MaxQueued)
	}
}

// warnOfOrgs warns of orgs that the config names and that do not exist: their settings have no effect until somebody
// creates them, and a name that is mistyped has none ever.
func (cfg *Config) warnOfOrgs(ctx context.Context, owner *pgxpool.Pool, log *slog.Logger) error {
	orgs, err := authz.OrgSlugs(ctx, owner)
	if err != nil {
		return err
	}
	for _, p := range cfg.Identity.Providers {
		if len(p.Orgs) == 0 && len(orgs) > 1 {
			log.Warn("every org may let in people of a provider: name those that may, in its orgs", "provider", p.Name)
		}
	}

	for _, setting := range []struct {
		name string
		orgs []string
	}{
		{"file_roots", slices.Sorted(maps.Keys(cfg.FileRoots))},
		{"export_roots", slices.Sorted(maps.Keys(cfg.ExportRoots))},
		{"operators.allow_command", cfg.Operators.AllowCommand},
		{"identity.providers", cfg.providerOrgs()},
		{"openlineage", slices.Sorted(maps.Keys(cfg.OpenLineage))},
	} {
		for _, org := range setting.orgs {
			_, err := authz.OrgBySlug(ctx, owner, org)
			if fault.Is(err, fault.NotFound) {
				log.Warn("the config names an org that does not exist: its setting has no effect until "+
					"somebody creates it", "setting", setting.name, "org", org)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

package authz

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dagctl/dagctl/internal/pg"
)

// Quotas is what a server knows of all orgs' quotas: as of its last Review, and what its requests have taken since. A
// nil Quotas bounds nothing.
type Quotas struct {
	owner    *pgxpool.Pool
	server   string
	engines  func() map[uuid.UUID]int64
	refusals *prometheus.CounterVec

	mu       sync.Mutex
	orgs     map[uuid.UUID]*orgQuotas // those that have quotas
	requests map[uuid.UUID]*requests
	working  map[uuid.UUID]int64 // engines that are in the database
}

// orgQuotas are an org's quotas, and what it used when last looked.
type orgQuotas struct {
	slug       string
	most, used map[Quota]int64
}

// NewQuotas returns the quotas as a server sees them. server is its name. The pool is the owner's.
func NewQuotas(owner *pgxpool.Pool, server string) *Quotas {
	return &Quotas{owner: owner, server: server, orgs: map[uuid.UUID]*orgQuotas{},
		requests: map[uuid.UUID]*requests{},
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dagctl_quota_refusals_total",
			Help: "Requests that this process refused, since a quota of their org was used up."},
			[]string{"org", "quota"})}
}

// CountEngines makes Review note how many engines work for each org on this server. It is called before the first
// Review.
func (q *Quotas) CountEngines(working func() map[uuid.UUID]int64) { q.engines = working }

// Review writes down what this server counted and reads the quotas of all orgs.
func (q *Quotas) Review(ctx context.Context, now time.Time) error {
	if err := q.flushRequests(ctx, now); err != nil {
		return err
	}
	if err := q.noteEngines(ctx, now); err != nil {
		return err
	}

	rows, err := q.owner.Query(ctx, `
		SELECT q.org_id, o.slug, q.quota, q.most, coalesce(u.used, 0) FROM org_quotas q
		JOIN orgs o ON o.id = q.org_id
		LEFT JOIN org_usage u ON u.org_id = q.org_id AND u.quota = q.quota AND u.holder = ''`)
	if err != nil {
		return fmt.Errorf("read quotas: %w", err)
	}
	found := map[uuid.UUID]*orgQuotas{}
	var (
		org        uuid.UUID
		slug       string
		quota      Quota
		most, used int64
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &slug, &quota, &most, &used}, func() error {
		if found[org] == nil {
			found[org] = &orgQuotas{slug: slug, most: map[Quota]int64{}, used: map[Quota]int64{}}
		}
		found[org].most[quota], found[org].used[quota] = most, used
		return nil
	})
	if err != nil {
		return fmt.Errorf("read quotas: %w", err)
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	q.orgs = found
	return nil
}

// noteEngines writes down how many engines work for each org here, for those for which that changed or grew old.
func (q *Quotas) noteEngines(ctx context.Context, now time.Time) error {
	if q.engines == nil {
		return nil
	}
	working := q.engines()
	q.mu.Lock()
	before := len(q.working)
	q.mu.Unlock()
	if len(working) == 0 && before == 0 {
		return nil
	}

	orgs, counts := []uuid.UUID{}, []int64{} // not NULL, which no org differs from
	for org, n := range working {
		orgs, counts = append(orgs, org), append(counts, n)
	}
	_, err := q.owner.Exec(ctx, `
		WITH gone AS (
			DELETE FROM org_usage WHERE quota = 'engines' AND (
				holder = $1 AND org_id <> ALL($2) OR holder <> $1 AND since < $5))
		INSERT INTO org_usage AS u (org_id, quota, holder, used, since)
		SELECT w.org, 'engines', $1, w.used, $4 FROM unnest($2::uuid[], $3::bigint[]) AS w(org, used)
		JOIN orgs o ON o.id = w.org
		ON CONFLICT (org_id, quota, holder) DO UPDATE SET used = EXCLUDED.used, since = EXCLUDED.since
		WHERE u.used <> EXCLUDED.used OR u.since < $4::timestamptz - $6::interval`,
		q.server, orgs, counts, now, now.Add(-time.Hour), engineSilence/3)
	if err != nil {
		return fmt.Errorf("note engines: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working = working
	return nil
}

// get returns an org's quotas; nil: it has none.
func (q *Quotas) get(org uuid.UUID) *orgQuotas {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.orgs[org]
}

// full returns the first quota of an org whose room sources, backfills and builds wait for.
func (o *orgQuotas) full() (Quota, bool) {
	if o == nil {
		return "", false
	}
	for _, quota := range holding {
		if most, ok := o.most[quota]; ok && o.used[quota] >= most {
			return quota, true
		}
	}
	return "", false
}

// Holds reports whether sources, backfills and builds of an org wait for room in its quotas.
func (q *Quotas) Holds(org uuid.UUID) bool {
	_, full := q.get(org).full()
	return full
}

// Held returns the orgs for which Holds is true.
func (q *Quotas) Held() []uuid.UUID {
	held := []uuid.UUID{}
	if q == nil {
		return held
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for org, o := range q.orgs {
		if _, full := o.full(); full {
			held = append(held, org)
		}
	}
	return held
}

// HasRoom returns a TooMany fault if an org has no room for work that somebody hands over.
func (q *Quotas) HasRoom(org uuid.UUID, now time.Time) error {
	o := q.get(org)
	quota, full := o.full()
	if !full {
		return nil
	}
	q.refused(org, quota)
	return quota.refuse(o.slug, o.used[quota], o.most[quota], now)
}

// Engines returns how many engines of one kind may work for an org at once on this server; 0: the default.
func (q *Quotas) Engines(org uuid.UUID) int {
	if o := q.get(org); o != nil {
		return int(o.most[EnginesAtOnce])
	}
	return 0
}

func (q *Quotas) refused(org uuid.UUID, quota Quota) {
	q.refusals.WithLabelValues(org.String(), string(quota)).Inc()
}

// measuredEvery returns how often the usage of orgs that have a quota is measured, and how often that of others.
func (q Quota) measuredEvery() (bounded, others time.Duration) {
	if q == StorageBytes {
		return time.Minute, 10 * time.Minute // it looks at every revision that is kept
	}
	return time.Second, time.Minute
}

// Measure measures a quota by count, for the orgs that are due: each once across all servers. count returns what orgs
// use now; those that it leaves out use nothing. An org that has the quota is measured by itself, under the lock that
// TakeQuota takes, so that no work is counted twice or not at all.
func (q *Quotas) Measure(ctx context.Context, quota Quota, now time.Time,
	count func(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID) (map[uuid.UUID]int64, error)) error {
	tight, wide := quota.measuredEvery()
	rows, err := q.owner.Query(ctx, `
		SELECT o.id, q.most IS NOT NULL FROM orgs o
		LEFT JOIN org_quotas q ON q.org_id = o.id AND q.quota = $1
		LEFT JOIN org_usage u ON u.org_id = o.id AND u.quota = $1 AND u.holder = ''
		WHERE coalesce(u.since, '-infinity') < CASE WHEN q.most IS NULL THEN $2::timestamptz ELSE $3 END`,
		quota, now.Add(-wide), now.Add(-tight))
	if err != nil {
		return fmt.Errorf("measure %s: %w", quota, err)
	}
	var org uuid.UUID
	var bounded bool
	var groups [][]uuid.UUID
	var others []uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&org, &bounded}, func() error {
		if bounded {
			groups = append(groups, []uuid.UUID{org})
		} else {
			others = append(others, org)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("measure %s: %w", quota, err)
	}

	if len(others) > 0 {
		groups = append(groups, others)
	}
	for _, orgs := range groups {
		if err := q.measure(ctx, quota, orgs, now, count); err != nil {
			return fmt.Errorf("measure %s: %w", quota, err)
		}
	}
	return nil
}

func (q *Quotas) measure(ctx context.Context, quota Quota, orgs []uuid.UUID, now time.Time,
	count func(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID) (map[uuid.UUID]int64, error)) error {
	tight, _ := quota.measuredEvery()
	return pg.InTx(ctx, q.owner, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			INSERT INTO org_usage (org_id, quota, used, since)
			SELECT org, $1, 0, '-infinity' FROM unnest($2::uuid[]) AS org ORDER BY org
			ON CONFLICT DO NOTHING`, quota, orgs); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT org_id FROM org_usage WHERE org_id = ANY($2) AND quota = $1 AND holder = '' AND since < $3
			ORDER BY org_id FOR UPDATE`, quota, orgs, now.Add(-tight))
		if err != nil {
			return err
		}
		due, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(due) == 0 {
			return err
		}

		used, err := count(ctx, tx, due)
		if err != nil {
			return err
		}
		counts := make([]int64, len(due))
		for i, org := range due {
			counts[i] = used[org]
		}
		_, err = tx.Exec(ctx, `
			UPDATE org_usage u SET used = m.used, since = $4 FROM unnest($2::uuid[], $3::bigint[]) AS m(org, used)
			WHERE u.org_id = m.org AND u.quota = $1 AND u.holder = ''`, quota, due, counts, now)
		return err
	})
}

// The descriptions never change; they are variables because Go has no constants of their type.
var (
	descQuota = prometheus.NewDesc("dagctl_quota", "What an org may use, where that is bounded.",
		[]string{"org", "quota"}, nil)
	descQuotaUsed = prometheus.NewDesc("dagctl_quota_used", "What an org with a quota uses of it.",
		[]string{"org", "quota"}, nil)
)

// Describe implements prometheus.Collector.
func (q *Quotas) Describe(out chan<- *prometheus.Desc) {
	q.refusals.Describe(out)
	out <- descQuota
	out <- descQuotaUsed
}

// Collect implements prometheus.Collector.
func (q *Quotas) Collect(out chan<- prometheus.Metric) {
	q.refusals.Collect(out)
	gauge := func(desc *prometheus.Desc, n int64, org uuid.UUID, quota Quota) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), org.String(), string(quota))
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	for org, o := range q.orgs {
		for quota, most := range o.most {
			used := o.used[quota]
			if quota == EnginesAtOnce {
				used = q.working[org] // here
			}
			gauge(descQuota, most, org, quota)
			gauge(descQuotaUsed, used, org, quota)
		}
	}
}

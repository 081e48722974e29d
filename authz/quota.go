package authz

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Quota names something of which an org may use only so much. Without a value, an org may use any amount.
type Quota string

// The quotas.
const (
	RequestsPerMinute Quota = "requests_per_minute" // of people and user tokens, over all servers
	QueuedTasks       Quota = "queued_tasks"        // tasks that are ready or wait, dead ones left out
	UploadsPerDay     Quota = "uploads_per_day"     // archives of code; a day begins at midnight UTC
	StorageBytes      Quota = "storage_bytes"       // of revisions that are kept, and of archives
	// EnginesAtOnce are the engines of one kind that work for the org at once on one server. Default: all but one.
	EnginesAtOnce Quota = "engines"
)

// AllQuotas are the quotas in the order in which they are shown.
var AllQuotas = []Quota{RequestsPerMinute, QueuedTasks, UploadsPerDay, StorageBytes, EnginesAtOnce}

// Schema lists the quotas in the API's description.
func (Quota) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "docs/operations.md explains each"}
	for _, q := range AllQuotas {
		s.Enum = append(s.Enum, string(q))
	}
	return s
}

// describe says for people how much of a quota is used, and how much may be.
func (q Quota) describe(used, most int64) string {
	switch q {
	case RequestsPerMinute:
		if most == 0 {
			return "the org may make no requests"
		}
		return fmt.Sprintf("the org may make %d requests a minute, and has made them", most)
	case QueuedTasks:
		return fmt.Sprintf("the org has %d queued tasks and may have %d", used, most)
	case UploadsPerDay:
		return fmt.Sprintf("the org may upload %d archives a day, and has uploaded %d", most, used)
	case StorageBytes:
		return fmt.Sprintf("the org stores %d bytes and may store %d", used, most)
	}
	return fmt.Sprintf("the org has %d of %d %s", used, most, q)
}

// remedy says what helps against a full quota, beside waiting.
func (q Quota) remedy(org string) string {
	raise := fmt.Sprintf("who runs the server can raise the quota: `dagctl admin quotas %s --set %s=NUMBER`", org, q)
	switch q {
	case QueuedTasks:
		return "wait until tasks have ended, or cancel some; " + raise
	case StorageBytes:
		return "remove data with `dagctl datasets purge`, a shorter `retention` or `dagctl delete`; " + raise
	}
	return "wait as long as Retry-After says; " + raise
}

// retryAfter returns when there may be room again.
func (q Quota) retryAfter(now time.Time) time.Duration {
	switch q {
	case RequestsPerMinute:
		return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
	case UploadsPerDay:
		return now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now)
	}
	return 30 * time.Second
}

// refuse returns the error of work for which an org's quota has no room.
func (q Quota) refuse(org string, used, most int64, now time.Time) error {
	refused := fault.New(fault.TooMany, "%s", q.describe(used, most)).WithHint("%s", q.remedy(org))
	return rest.RetryAfter(refused, q.retryAfter(now))
}

// TakeQuota takes n from an org's quota in the transaction of what uses it, or returns a TooMany fault with the time of
// the next try. The transaction holds the lock of the org's usage from then on, if the org has the quota.
func TakeQuota(ctx context.Context, tx pgx.Tx, org uuid.UUID, q Quota, n int64, now time.Time) error {
	var taken int64
	var used, most *int64
	var slug string
	err := tx.QueryRow(ctx, `SELECT t.taken, t.stands, t.bound, org_slug($1) FROM take_quota($1, $2, $3, false, $4) t`,
		org, q, n, now).Scan(&taken, &used, &most, &slug)
	if err != nil {
		return fmt.Errorf("take from the quota %s: %w", q, err)
	}
	if taken < n {
		return q.refuse(slug, *used, *most, now)
	}
	return nil
}

// OrgQuota is a quota of an org that has a value.
type OrgQuota struct {
	Quota Quota `json:"quota"`
	Most  int64 `json:"most"`
}

// ParseQuota reads NAME=NUMBER.
func ParseQuota(text string) (q OrgQuota, err error) {
	name, value, _ := strings.Cut(text, "=")
	q.Quota = Quota(name)
	if err := q.Quota.known(); err != nil {
		return q, err
	}
	q.Most, err = strconv.ParseInt(value, 10, 64)
	if err == nil && q.Most == 0 && q.Quota == EnginesAtOnce {
		return q, fault.New(fault.Invalid, "%q: an org has at least one engine, which plans and queries need", text).
			WithHint("write %s=1; `--clear %s` sets the default, all engines but one", name, name)
	}
	if err != nil || q.Most < 0 {
		return q, fault.New(fault.Invalid, "%q: a quota is a whole number", text).
			WithHint("write for example %s=1000; `--clear %s` takes the quota away", name, name)
	}
	return q, nil
}

func (q Quota) known() error {
	if slices.Contains(AllQuotas, q) {
		return nil
	}
	names := make([]string, len(AllQuotas))
	for i, known := range AllQuotas {
		names[i] = string(known)
	}
	return fault.New(fault.Invalid, "there is no quota %q", string(q)).
		WithHint("the quotas are %s", strings.Join(names, ", "))
}

// ChangeQuotas sets and clears quotas of an org, by slug, and returns those that it has then. The pool is the owner's:
// no org may raise its own.
func ChangeQuotas(ctx context.Context, owner *pgxpool.Pool, slug string, set []OrgQuota, gone []Quota) (
	quotas []OrgQuota, err error,
) {
	for _, q := range gone {
		if err := q.known(); err != nil {
			return nil, err
		}
	}
	for _, q := range set {
		if slices.Contains(gone, q.Quota) {
			return nil, fault.New(fault.Invalid, "the quota %s is both set and cleared", q.Quota).
				WithHint("leave one of the two out")
		}
	}
	org, err := OrgBySlug(ctx, owner, slug)
	if err != nil {
		return nil, err
	}

	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM orgs WHERE id = $1 FOR NO KEY UPDATE`, org.ID); err != nil {
			return err
		}
		before, err := quotasOf(ctx, tx, org.ID)
		if err != nil {
			return err
		}
		if err := writeQuotas(ctx, tx, org.ID, set, gone); err != nil {
			return err
		}
		if quotas, err = quotasOf(ctx, tx, org.ID); err != nil || len(set)+len(gone) == 0 {
			return err
		}
		system := Caller{OrgID: org.ID, OrgSlug: slug, Actor: "system"}
		return Audit(ctx, tx, system, "org.quotas", slug, Change{Before: before, After: quotas})
	})
	if err != nil {
		return nil, fmt.Errorf("quotas of %s: %w", slug, err)
	}
	return quotas, nil
}

func writeQuotas(ctx context.Context, tx pgx.Tx, org uuid.UUID, set []OrgQuota, gone []Quota) error {
	if _, err := tx.Exec(ctx, `DELETE FROM org_quotas WHERE org_id = $1 AND quota = ANY($2)`, org, gone); err != nil {
		return err
	}
	for _, q := range set {
		if _, err := tx.Exec(ctx, `
			INSERT INTO org_quotas (org_id, quota, most) VALUES ($1, $2, $3)
			ON CONFLICT (org_id, quota) DO UPDATE SET most = EXCLUDED.most`, org, q.Quota, q.Most); err != nil {
			return err
		}
	}
	return nil
}

func quotasOf(ctx context.Context, tx pgx.Tx, org uuid.UUID) ([]OrgQuota, error) {
	rows, err := tx.Query(ctx, `SELECT quota, most FROM org_quotas WHERE org_id = $1 ORDER BY quota`, org)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[OrgQuota])
}

// Usage is how much of a quota an org uses.
type Usage struct {
	Quota Quota      `json:"quota"`
	Used  int64      `json:"used"`
	Most  *int64     `json:"most,omitempty" doc:"Absent: any amount, or the default of engines"`
	Since *time.Time `json:"since,omitempty" doc:"When the minute or day began, or when it was measured"`
	Full  bool       `json:"full" doc:"What needs more of it waits, or is refused"`
	Text  string     `json:"text,omitempty" doc:"For people: how much, and who can raise it"`
}

// OrgUsage is how much an org uses of all quotas.
type OrgUsage struct {
	Org   string  `json:"org" doc:"Slug of the org"`
	Items []Usage `json:"items" nullable:"false"`
}

// OrgUsageOf returns how much the caller's org uses. The pool is the requests'.
func OrgUsageOf(ctx context.Context, requests *pgxpool.Pool, caller Caller) (u OrgUsage, err error) {
	u.Org = caller.OrgSlug
	err = pg.InOrgTx(ctx, requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		u.Items, err = UsageOf(ctx, tx, caller, clock.Now())
		return err
	})
	return u, err
}

// engineSilence is how long a server's count of engines stands.
const engineSilence = 15 * time.Second

// UsageOf returns how much an org uses of each quota, in the order of AllQuotas. The transaction is the org's own or
// the owner's.
func UsageOf(ctx context.Context, tx pgx.Tx, caller Caller, now time.Time) ([]Usage, error) {
	rows, err := tx.Query(ctx, `
		SELECT k.quota, coalesce(u.used, 0), q.most, u.since
		FROM unnest($2::text[]) WITH ORDINALITY AS k(quota, place)
		LEFT JOIN org_quotas q ON q.org_id = $1 AND q.quota = k.quota
		LEFT JOIN LATERAL (
			SELECT max(used) AS used, NULLIF(max(since), '-infinity') AS since FROM org_usage u
			WHERE u.org_id = $1 AND u.quota = k.quota AND (u.holder = '' OR u.since > $3)
			  AND u.since >= CASE k.quota WHEN 'requests_per_minute' THEN date_trunc('minute', $4::timestamptz)
				WHEN 'uploads_per_day' THEN date_trunc('day', $4::timestamptz, 'UTC') ELSE '-infinity' END) AS u ON true
		ORDER BY k.place`, caller.OrgID, AllQuotas, now.Add(-engineSilence), now)
	if err != nil {
		return nil, fmt.Errorf("usage of org %s: %w", caller.OrgID, err)
	}

	usage, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (u Usage, err error) {
		err = row.Scan(&u.Quota, &u.Used, &u.Most, &u.Since)
		if u.Full = u.Most != nil && u.Used >= *u.Most; u.Full {
			u.Text = u.Quota.describe(u.Used, *u.Most) + ": " + u.Quota.remedy(caller.OrgSlug)
		}
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("usage of org %s: %w", caller.OrgID, err)
	}
	return usage, nil
}

// Holds reports whether a full quota makes sources, backfills and builds wait.
func (u Usage) Holds() bool { return u.Full && slices.Contains(holding, u.Quota) }

// holding are the quotas for whose room sources, backfills and builds wait.
var holding = []Quota{QueuedTasks, StorageBytes}

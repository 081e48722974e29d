package authz

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// requests counts an org's requests on this server in one minute. Where they are bounded, the server takes some from
// the quota at a time, which all servers share, and spends them without a look at the database.
type requests struct {
	mu     sync.Mutex
	minute time.Time
	taken  int64 // from the quota, not spent yet
	spent  int64 // without a quota: to be written down
	none   int64 // the quota that is used up in this minute; 0: it is not
}

// batches is the number of shares into which a quota is cut. At most a share for each server may stay unspent.
const batches = 32

// TakeRequest counts a request of an org, or returns a TooMany fault with the time of the next try.
func (q *Quotas) TakeRequest(ctx context.Context, org uuid.UUID, now time.Time) error {
	if q == nil {
		return nil
	}
	o, r := q.get(org), q.requestsOf(org)
	r.mu.Lock()
	defer r.mu.Unlock()
	if minute := now.Truncate(time.Minute); !minute.Equal(r.minute) {
		r.minute, r.taken, r.none = minute, 0, 0
	}

	var most int64
	var bounded bool
	if o != nil {
		most, bounded = o.most[RequestsPerMinute]
	}
	if !bounded {
		r.spent++
		return nil
	}
	if r.taken == 0 && r.none != most+1 {
		err := q.owner.QueryRow(ctx, `SELECT taken FROM take_quota($1, $2, $3, true, $4)`, org, RequestsPerMinute,
			max(1, most/batches), now).Scan(&r.taken)
		if err != nil {
			return fmt.Errorf("count requests: %w", err)
		}
	}

	if r.taken == 0 {
		r.none = most + 1 // a quota that is raised within the minute is looked at again
		q.refused(org, RequestsPerMinute)
		return RequestsPerMinute.refuse(o.slug, most, most, now)
	}
	r.taken--
	return nil
}

func (q *Quotas) requestsOf(org uuid.UUID) *requests {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.requests[org]
	if r == nil {
		r = &requests{}
		q.requests[org] = r
	}
	return r
}

// flushRequests writes down the requests of orgs that may make any number of them.
func (q *Quotas) flushRequests(ctx context.Context, now time.Time) error {
	q.mu.Lock()
	all := maps.Clone(q.requests)
	q.mu.Unlock()

	var orgs []uuid.UUID
	var counts []int64
	for org, r := range all {
		r.mu.Lock()
		if r.spent > 0 {
			orgs, counts = append(orgs, org), append(counts, r.spent)
		}
		r.spent = 0
		r.mu.Unlock()
	}

	if len(orgs) == 0 {
		return nil
	}
	_, err := q.owner.Exec(ctx, `
		SELECT t.taken FROM (SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS n(org, count) ORDER BY org) AS n
		CROSS JOIN LATERAL take_quota(n.org, $3, n.count, true, $4) AS t`, orgs, counts, RequestsPerMinute, now)
	if err != nil {
		return fmt.Errorf("count requests: %w", err)
	}
	return nil
}

package sources

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/webhook"
	"github.com/dagctl/dagctl/registry"
)

// A delivery to a webhook is authenticated by an HMAC, as defined by the Standard Webhooks specification, or by the
// path alone if that cannot be guessed. Until it is authenticated, every fault gets the same answer, so that a stranger
// learns neither which orgs nor which paths exist.

// Delivery is a request to a webhook's path.
type Delivery struct {
	Org, Path string // from the URL; the path belongs to this org
	// ID is webhook-id, or Idempotency-Key on a path without a secret. Deliveries with the same id are the same.
	ID        string
	Timestamp string // webhook-timestamp: seconds since 1970
	Signature string // webhook-signature: "v1,BASE64", several divided by blanks
	Body      []byte // as received
}

// Accepted is a delivery that is stored.
type Accepted struct {
	TaskID    *uuid.UUID `json:"task_id,omitempty" format:"uuid" doc:"Absent if the source lists what there is to read"`
	Duplicate bool       `json:"duplicate,omitempty" doc:"The delivery was accepted before, and changed nothing now"`
}

// ReplayWindow is how far a delivery's time may be from ours. Within it, the id identifies repetitions.
const ReplayWindow = 5 * time.Minute

// maxDeliveryID bounds the length of a delivery's id, which becomes part of a dedupe key.
const maxDeliveryID = 200

// noSuchHook returns the one answer to deliveries that are not authenticated.
func noSuchHook() error {
	return fault.New(fault.NotFound, "there is no such webhook, or the delivery is not signed for it").
		WithHint("sign webhook-id, webhook-timestamp and the body with the secret of the source; "+
			"the clocks may differ by %s", ReplayWindow)
}

// hookRow names the job behind a path.
type hookRow struct {
	org      uuid.UUID
	dag, job string
}

// AcceptHook stores a delivery as a task of the webhook's job or, if the job's operator enumerates, makes the source
// fire at once. When it returns without an error, the row is committed.
func (src *Sources) AcceptHook(ctx context.Context, in Delivery, now time.Time) (Accepted, error) {
	h, err := src.findHook(ctx, in.Org, in.Path)
	if err != nil {
		return Accepted{}, err
	}

	var out Accepted
	counted := false // the transaction may run again
	err = pg.InOrgTx(ctx, src.requests, h.org, func(ctx context.Context, tx pgx.Tx) error {
		job, err := src.registry.ActiveJob(ctx, tx, h.org, h.dag, h.job)
		if fault.Is(err, fault.NotFound) {
			return noSuchHook() // a cutover came in between
		}
		if err != nil {
			return err
		}

		if err := src.authenticate(ctx, job, in, now); err != nil {
			return err
		}
		if !counted {
			counted = true
			if err := src.admit(h, job.Def.Runtime, in, now); err != nil {
				return err
			}
		}
		payload, err := deliveredJSON(in.Body)
		if err != nil {
			return err
		}

		if _, ok := src.Enumerator(job); ok {
			return setNextFire(ctx, tx, h.org, h.dag, h.job, now)
		}
		out, err = src.enqueueDelivery(ctx, tx, job, in, payload, now)
		return err
	})
	if err != nil {
		return Accepted{}, err // unwrapped: a wrapping would reveal which paths exist
	}

	src.wake.Send(wakeup.Claim, wakeup.Sources)
	return out, nil
}

// admit returns an error if the webhook has had too many deliveries of late, or too much is queued. It counts only
// deliveries that are authenticated: a flood of others must neither use up their number nor learn that the path exists.
func (src *Sources) admit(h hookRow, runtime string, in Delivery, now time.Time) error {
	if err := src.hookLimiter.Take(h.org.String()+" "+in.Path, now); err != nil {
		return err
	}
	return src.pressure.HasRoom(h.org, runtime)
}

// findHook returns the job of an active version that a path belongs to. It relies on idx_sources_hook.
func (src *Sources) findHook(ctx context.Context, org, path string) (h hookRow, err error) {
	err = src.pool.QueryRow(ctx, `
		SELECT org_id, dag_name, job_name FROM sources
		WHERE hook_path = $2 AND org_slug(org_id) = $1`, org, path).
		Scan(&h.org, &h.dag, &h.job)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, noSuchHook()
	}
	if err != nil {
		return h, fmt.Errorf("find webhook: %w", err)
	}
	return h, nil
}

// authenticate checks that a delivery was signed recently with the source's secret, or the one before while they
// overlap. It only logs the reason of a
// refusal: the sender may be anybody.
func (src *Sources) authenticate(ctx context.Context, job *registry.Job, in Delivery, now time.Time) error {
	name := job.Def.Source.Secret
	if name == "" {
		return nil // the path is the secret; a deploy refuses one that can be guessed
	}

	reason := ""
	switch values, err := src.vault.Reveal(ctx, job.OrgID, authz.SecretUser{Name: job.Address()}, []string{name}); {
	case fault.Is(err, fault.Internal):
		return err
	case err != nil:
		reason = err.Error()
	default:
		for _, key := range values[name].Accepted() {
			if reason = CheckSignature(key, in, now); reason == "" {
				return nil
			}
		}
	}

	src.log.Warn("webhook delivery refused", "org", job.OrgSlug, "dag", job.DAG, "job", job.Name, "reason", reason)
	return noSuchHook()
}

// CheckSignature returns what is wrong with a delivery's signature; empty: nothing.
func CheckSignature(key string, in Delivery, now time.Time) string {
	seconds, err := strconv.ParseInt(in.Timestamp, 10, 64)
	switch {
	case in.ID == "" || in.Timestamp == "" || in.Signature == "":
		return "one of webhook-id, webhook-timestamp and webhook-signature is missing"
	case err != nil:
		return "webhook-timestamp is no number of seconds"
	case now.Sub(time.Unix(seconds, 0)).Abs() > ReplayWindow:
		return "webhook-timestamp is not of now"
	}

	want := []byte(webhook.Sign(key, in.ID, in.Timestamp, in.Body))
	match := 0
	for candidate := range strings.FieldsSeq(in.Signature) {
		match |= subtle.ConstantTimeCompare([]byte(candidate), want)
	}
	if match == 0 {
		return "webhook-signature does not match"
	}
	return ""
}

// deliveredJSON returns a delivery's body as a payload; an empty body is no payload.
func deliveredJSON(body []byte) (json.RawMessage, error) {
	var raw json.RawMessage
	switch {
	case len(body) == 0:
		return nil, nil
	case !utf8.Valid(body):
		return nil, fault.New(fault.Invalid, "the body is not valid UTF-8")
	}

	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, fault.New(fault.Invalid, "the body cannot be read as JSON: %w", err)
	}
	if err := literal.Storable(body); err != nil {
		return nil, fault.New(fault.Invalid, "the body: %w", err)
	}
	return body, nil
}

// enqueueDelivery makes the task of a delivery, once for its id.
func (src *Sources) enqueueDelivery(
	ctx context.Context, tx pgx.Tx, job *registry.Job, in Delivery, payload json.RawMessage, now time.Time,
) (Accepted, error) {
	if len(in.ID) > maxDeliveryID {
		return Accepted{}, fault.New(fault.Invalid, "the delivery's id has more than %d characters", maxDeliveryID)
	}

	job, err := src.dispatcher.SharedJob(ctx, tx, job.OrgID, job.DAG, job.Name)
	if fault.Is(err, fault.NotFound) {
		return Accepted{}, noSuchHook()
	}
	if err != nil {
		return Accepted{}, err
	}

	w := tasks.Request{Job: job, Kind: tasks.KindSource, Payload: payload}
	if len(job.Outputs) > 0 {
		w.Partition = dag.WholeKey
		if job.Def.TasksBy().Kind == dag.ByTime {
			w.Partition = job.Def.PartitionBy.KeyAt(now)
		}
	}
	if in.ID != "" {
		w.Dedupe = "hook:" + in.ID
	}

	made, err := src.dispatcher.EnqueueTx(ctx, tx, job, []tasks.Request{w}, now)
	if err != nil {
		return Accepted{}, err
	}

	// This is written at most every 10 s: deliveries that all wrote the row would wait for each other.
	_, err = tx.Exec(ctx, `
		UPDATE sources SET last_fire_at = $4, state = 'Running', error = NULL, updated_at = $4
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3
		  AND (last_fire_at IS NULL OR last_fire_at < $4::timestamptz - interval '10 seconds')`,
		job.OrgID, job.DAG, job.Name, now)
	if err != nil {
		return Accepted{}, err
	}
	return Accepted{TaskID: &made[0].ID, Duplicate: !made[0].Created},
		dispatcher.TakeQueued(ctx, tx, job.OrgID, made, now)
}

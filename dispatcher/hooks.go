package dispatcher

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// What comes in through webhook sources. A delivery is vouched for by an HMAC, as the Standard Webhooks specification
// has it, or by the path alone where that cannot be guessed. Whatever is wrong with it until that is settled is answered
// in one way, so that a stranger learns neither which orgs nor which paths there are.

// Delivery is a request to a webhook's path.
type Delivery struct {
	Org, Path string // as the URL has them; the org is that of the path's row
	ID        string // webhook-id, or Idempotency-Key on a path without a secret: the same one again is the same delivery
	Timestamp string // webhook-timestamp: seconds since 1970
	Signature string // webhook-signature: "v1,BASE64", several divided by blanks
	Body      []byte // as it came
}

// Accepted is a delivery that is stored.
type Accepted struct {
	TaskID    *uuid.UUID `json:"task_id,omitempty" format:"uuid" doc:"Absent where the source looks at what there is to read, and makes tasks of that"`
	Duplicate bool       `json:"duplicate,omitempty" doc:"The delivery was accepted before, and changed nothing now"`
}

// replayWindow is how far a delivery's time may be from ours. Within it, the id tells repetitions.
const replayWindow = 5 * time.Minute

// maxDeliveryID bounds what becomes part of a dedupe key.
const maxDeliveryID = 200

// noSuchHook is all that a stranger is told.
func noSuchHook() error {
	return fault.New(fault.NotFound, "there is no such webhook, or the delivery is not signed for it").
		WithHint("sign webhook-id, webhook-timestamp and the body with the secret of the source; the clocks may differ by %s", replayWindow)
}

// hookRow is the row behind a path.
type hookRow struct {
	org      uuid.UUID
	dag, job string
}

// AcceptHook stores a delivery as a task of the webhook's job, or, where the job's operator looks for itself, has it look
// at once. When it returns without an error, the row is committed.
func (d *Dispatcher) AcceptHook(ctx context.Context, in Delivery, now time.Time) (Accepted, error) {
	h, err := d.findHook(ctx, in.Org, in.Path)
	if err != nil {
		return Accepted{}, err
	}
	if err := d.HookLimiter.Take(h.org.String()+" "+in.Path, now); err != nil {
		return Accepted{}, err
	}
	if err := d.hasRoom(); err != nil {
		return Accepted{}, err
	}
	var out Accepted
	err = pg.InOrgTx(ctx, d.Requests, h.org, func(ctx context.Context, tx pgx.Tx) error {
		job, err := d.Registry.ActiveJob(ctx, tx, h.org, h.dag, h.job)
		if fault.Is(err, fault.NotFound) {
			return noSuchHook() // a cutover came in between
		}
		if err != nil {
			return err
		}
		if err := d.vouched(ctx, job, in, now); err != nil {
			return err
		}
		payload, err := deliveredJSON(in.Body)
		if err != nil {
			return err
		}
		if _, ok := d.enumerator(job); ok {
			_, err := tx.Exec(ctx, `UPDATE sources SET next_fire_at = $4 WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`, h.org, h.dag, h.job, now)
			return err
		}
		out, err = d.enqueueDelivery(ctx, tx, job, in, payload, now)
		return err
	})
	if err != nil {
		return Accepted{}, err // as it is: a wrapping would tell the paths that exist
	}
	d.wake.send(topicClaim, topicSources)
	return out, nil
}

// findHook finds the job of an active version that a path leads to. It relies on idx_sources_hook.
func (d *Dispatcher) findHook(ctx context.Context, org, path string) (h hookRow, err error) {
	err = d.Pool.QueryRow(ctx, `SELECT org_id, dag_name, job_name FROM sources WHERE hook_path = $2 AND org_slug(org_id) = $1`, org, path).
		Scan(&h.org, &h.dag, &h.job)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, noSuchHook()
	}
	if err != nil {
		return h, fmt.Errorf("find webhook: %w", err)
	}
	return h, nil
}

// vouched checks that a delivery was signed with the source's secret, lately. The reason of a refusal is for the log:
// whoever sent it may be anybody.
func (d *Dispatcher) vouched(ctx context.Context, job *registry.Job, in Delivery, now time.Time) error {
	name := job.Def.Source.Secret
	if name == "" {
		return nil // the path is the secret; a deploy refuses one that can be guessed
	}
	reason := ""
	switch values, err := d.Vault.Reveal(ctx, job.OrgID, job.Address(), []string{name}); {
	case fault.Is(err, fault.Internal):
		return err
	case err != nil:
		reason = err.Error()
	default:
		reason = checkSignature(values[name].Reveal(), in, now)
	}
	if reason == "" {
		return nil
	}
	d.Log.Warn("webhook delivery refused", "org", job.OrgSlug, "dag", job.DAG, "job", job.Name, "reason", reason)
	return noSuchHook()
}

// checkSignature says what is wrong with a delivery's signature; empty: nothing. It is pure.
func checkSignature(key string, in Delivery, now time.Time) string {
	seconds, err := strconv.ParseInt(in.Timestamp, 10, 64)
	switch {
	case in.ID == "" || in.Timestamp == "" || in.Signature == "":
		return "one of webhook-id, webhook-timestamp and webhook-signature is missing"
	case err != nil:
		return "webhook-timestamp is no number of seconds"
	case now.Sub(time.Unix(seconds, 0)).Abs() > replayWindow:
		return "webhook-timestamp is not of now"
	}
	want := []byte(sign(key, in.ID, in.Timestamp, in.Body))
	match := 0
	for candidate := range strings.FieldsSeq(in.Signature) {
		match |= subtle.ConstantTimeCompare([]byte(candidate), want)
	}
	if match == 0 {
		return "webhook-signature does not match"
	}
	return ""
}

// sign is the signature of a message under a key, as the Standard Webhooks specification has it: HMAC-SHA256 over id,
// timestamp and body. A key that reads whsec_BASE64 stands for the bytes it encodes.
func sign(key, id, timestamp string, body []byte) string {
	raw := []byte(key)
	if encoded, ok := strings.CutPrefix(key, "whsec_"); ok {
		if decoded, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			raw = decoded
		}
	}
	mac := hmac.New(sha256.New, raw)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// deliveredJSON is a delivery's body as a payload; an empty one is none.
func deliveredJSON(body []byte) (json.RawMessage, error) {
	switch {
	case len(body) == 0:
		return nil, nil
	case !utf8.Valid(body):
		return nil, fault.New(fault.Invalid, "the body is not valid UTF-8")
	case !json.Valid(body):
		return nil, fault.New(fault.Invalid, "the body is not JSON")
	case strings.Contains(strings.ReplaceAll(string(body), `\\`, ""), `\u0000`):
		return nil, fault.New(fault.Invalid, "the body holds the character U+0000, which no text may")
	}
	return body, nil
}

// enqueueDelivery makes the task of a delivery, once for its id.
func (d *Dispatcher) enqueueDelivery(ctx context.Context, tx pgx.Tx, job *registry.Job, in Delivery, payload json.RawMessage, now time.Time) (Accepted, error) {
	if len(in.ID) > maxDeliveryID {
		return Accepted{}, fault.New(fault.Invalid, "the delivery's id has more than %d characters", maxDeliveryID)
	}
	job, err := d.shareQueue(ctx, tx, job.OrgID, job.DAG, job.Name)
	if fault.Is(err, fault.NotFound) {
		return Accepted{}, noSuchHook()
	}
	if err != nil {
		return Accepted{}, err
	}
	w := newTask{job: job, kind: "source", payload: payload}
	if len(job.Outputs) > 0 {
		w.partition = dag.WholeKey
		if job.Def.PartitionBy.Kind == dag.ByTime {
			w.partition = job.Def.PartitionBy.KeyAt(now)
		}
	}
	if in.ID != "" {
		w.dedupe = "hook:" + in.ID
	}
	made, err := d.enqueueTx(ctx, tx, job, []newTask{w}, now)
	if err != nil {
		return Accepted{}, err
	}
	// Said now and then only: a row that every delivery writes would have them all wait for each other.
	_, err = tx.Exec(ctx, `
		UPDATE sources SET last_fire_at = $4, state = 'Running', error = NULL, updated_at = $4
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND (last_fire_at IS NULL OR last_fire_at < $4::timestamptz - interval '10 seconds')`,
		job.OrgID, job.DAG, job.Name, now)
	return Accepted{TaskID: &made[0].ID, Duplicate: !made[0].Created}, err
}

package operators

import (
	"context"
	"encoding/json"
	"time"
)

// Deliveries is the memory of what a job has delivered to others. It outlives runs, revisions, rollbacks and the
// processes that write it: what was delivered once is never sent again, and what was on its way when a process died is
// sent again under the same id. It is safe for concurrent use.
type Deliveries interface {
	// ID returns the id of the delivery of a key, which is its Idempotency-Key: 32 hexadecimal digits.
	ID(key string) string
	// Known returns those of the deliveries that were begun.
	Known(ctx context.Context, ids []string) (map[string]Delivery, error)
	// Begin notes that a request is about to be sent. send is false if it must not be, and the delivery says why: it is
	// delivered, or another task is sending it. A fault.Conflict says that the attempt counts no more.
	Begin(ctx context.Context, id string) (d Delivery, send bool, err error)
	// End notes what became of the request: the delivery's status, answer, error and time. It returns what stands then.
	// It goes on for a while after ctx has ended, because what is known of a request is worth most then.
	End(ctx context.Context, d Delivery) (Delivery, error)
	// Marks returns the marks of those keys that have one.
	Marks(ctx context.Context, keys []string) (map[string]Mark, error)
	// Mark notes marks by themselves. A fault.Conflict says that the attempt counts no more.
	Mark(ctx context.Context, marks []Mark) error
}

// Mark is what a job remembers of what it delivers, beyond single deliveries: such as what was told of an alert last.
// A mark is noted with the delivery that it is about, or by itself, and never takes the place of one that is further.
type Mark struct {
	Key      string
	Position int64
	Value    json.RawMessage
}

// DeliveryStatus is how far a delivery is.
type DeliveryStatus string

// The statuses of deliveries.
const (
	Sending   DeliveryStatus = "sending"   // a request is on its way, or was when a process died
	Waiting   DeliveryStatus = "waiting"   // the last request failed, and another may succeed
	Delivered DeliveryStatus = "delivered" // the receiver has it
	Refused   DeliveryStatus = "failed"    // the receiver refused it for good
)

// Delivery is one delivery.
type Delivery struct {
	ID          string
	Status      DeliveryStatus
	Own         bool      // the task itself sent it last, in any of its attempts
	Requests    int       // that were sent
	HTTPStatus  int       // of the last answer; 0: there was none
	Error       string    // why it is waiting or has failed
	DeliveredAt time.Time // zero: it is not
	Marks       []Mark    // for End: what is noted if it is delivered
}

// ServerOnly is an operator that needs the server's own database, so no worker elsewhere can run it.
type ServerOnly interface{ ServerOnly() }

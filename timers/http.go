package timers

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
)

// AddRoutes adds the operations on timers to an API.
func (t *Timers) AddRoutes(api *authz.API) {
	api.FindBy(authz.TheTimers, t.dagOf)

	const all, one = "/v1/scheduled-events", "/v1/scheduled-events/{id}"
	tags := []string{"timers"}
	authz.Handle(api, authz.To(authz.Operate, authz.InBody), huma.Operation{OperationID: "create-timer",
		Method: http.MethodPost, Path: all, Tags: tags,
		Summary: "Create a timer", DefaultStatus: http.StatusCreated,
		Description: "target_timestamp_local, such as 2027-03-14T09:00:00, is on the wall clock of the zone; with " +
			"repeat cron it is the first time " +
			"that counts, now if absent. Timers are moved and deleted by their group. If a timer was created with " +
			"the same idempotency_key before, the answer is that timer, and none is created.",
	}, t.handleCreate)

	authz.Handle(api, authz.To(authz.Operate, authz.InBody), huma.Operation{OperationID: "create-timers",
		Method: http.MethodPost, Path: all + "/batch", Tags: tags,
		Summary: "Create up to 1,000 timers: all of them, or none",
		Description: "The answer has a timer for each request, in their order: a new one, or the one that was " +
			"created with the same idempotency_key before."}, t.handleCreateBatch)

	authz.Handle(api, authz.Reader, huma.Operation{OperationID: "list-timers",
		Method: http.MethodGet, Path: all, Tags: tags,
		Summary: "List timers, the oldest first"}, t.handleList)
	authz.Handle(api, authz.To(authz.Operate, authz.TheOrg), huma.Operation{OperationID: "move-timers",
		Method: http.MethodPatch, Path: all, Tags: tags,
		Summary: "Move the timers of a group to another zone; they keep their local times"}, t.handleMove)
	authz.Handle(api, authz.To(authz.Operate, authz.TheOrg), huma.Operation{OperationID: "delete-timers",
		Method: http.MethodDelete, Path: all, Tags: tags,
		Summary: "Delete every timer of a group"}, t.handleDeleteGroup)

	authz.Handle(api, authz.Reader, huma.Operation{OperationID: "get-timer",
		Method: http.MethodGet, Path: one, Tags: tags,
		Summary: "Get a timer"}, t.handleGet)
	authz.Handle(api, authz.To(authz.Operate, authz.TheTimers), huma.Operation{OperationID: "update-timer",
		Method: http.MethodPatch, Path: one, Tags: tags,
		Summary: "Change a timer"}, t.handleUpdate)
	authz.Handle(api, authz.To(authz.Operate, authz.TheTimers), huma.Operation{OperationID: "delete-timer",
		Method: http.MethodDelete, Path: one, Tags: tags,
		Summary: "Delete a timer; its tasks stay"}, t.handleDelete)
}

type (
	createInput struct {
		Key  string `header:"Idempotency-Key" maxLength:"255"`
		Body NewTimer
	}
	batchInput  struct{ Body Batch }
	batchOutput struct{ Body CreatedBatch }
	timerOutput struct {
		Status int
		ETag   string `header:"ETag"`
		Body   Timer
	}
	listInput struct {
		rest.PageInput
		Filter
	}
	listOutput struct{ Body rest.List[Timer] }
	moveInput  struct {
		Group string `query:"group" required:"true" minLength:"1" maxLength:"200"`
		Body  struct {
			Timezone string `json:"target_timezone" minLength:"1" maxLength:"100"`
		}
	}
	groupInput struct {
		Group string `query:"group" required:"true" minLength:"1" maxLength:"200"`
	}
	countOutput struct{ Body Counted }
	idInput     struct {
		ID uuid.UUID `path:"id" format:"uuid"`
	}
	updateInput struct {
		ID      uuid.UUID `path:"id" format:"uuid"`
		IfMatch string    `header:"If-Match" maxLength:"200"`
		Body    TimerChange
	}
	deleteInput struct {
		ID      uuid.UUID `path:"id" format:"uuid"`
		IfMatch string    `header:"If-Match" maxLength:"200"`
	}
)

// Batch asks for timers.
type Batch struct {
	Timers []NewTimer `json:"timers" minItems:"1" maxItems:"1000"`
}

// CreatedBatch has the timers that stand for the requests of a batch, in their order.
type CreatedBatch struct {
	Timers []Created `json:"timers" nullable:"false"`
}

// Counted is the number of timers that an operation on a group changed.
type Counted struct {
	Timers int `json:"timers"`
}

func answer(status int, timer Timer) *timerOutput {
	return &timerOutput{Status: status, ETag: rest.ETag(etagOf(timer.Version)), Body: timer}
}

func (t *Timers) handleCreate(ctx context.Context, caller authz.Caller, in *createInput) (*timerOutput, error) {
	if in.Body.IdempotencyKey == "" {
		in.Body.IdempotencyKey = in.Key
	}
	made, err := t.Create(ctx, caller, []NewTimer{in.Body}, clock.Now())
	if err != nil {
		return nil, err
	}
	if !made[0].IsNew {
		return answer(http.StatusOK, made[0].Timer), nil
	}
	return answer(http.StatusCreated, made[0].Timer), nil
}

func (t *Timers) handleCreateBatch(ctx context.Context, caller authz.Caller, in *batchInput) (*batchOutput, error) {
	made, err := t.Create(ctx, caller, in.Body.Timers, clock.Now())
	if err != nil {
		return nil, err
	}
	out := &batchOutput{}
	out.Body.Timers = made
	return out, nil
}

func (t *Timers) handleList(ctx context.Context, caller authz.Caller, in *listInput) (*listOutput, error) {
	list, err := t.List(ctx, caller, in.Filter, in.PageInput)
	return &listOutput{list}, err
}

func (t *Timers) handleMove(ctx context.Context, caller authz.Caller, in *moveInput) (*countOutput, error) {
	n, err := t.MoveGroup(ctx, caller, in.Group, in.Body.Timezone, clock.Now())
	return &countOutput{Counted{n}}, err
}

func (t *Timers) handleDeleteGroup(ctx context.Context, caller authz.Caller, in *groupInput) (*countOutput, error) {
	n, err := t.DeleteGroup(ctx, caller, in.Group)
	return &countOutput{Counted{n}}, err
}

func (t *Timers) handleGet(ctx context.Context, caller authz.Caller, in *idInput) (*timerOutput, error) {
	timer, err := t.Get(ctx, caller, in.ID)
	return answer(http.StatusOK, timer), err
}

func (t *Timers) handleUpdate(ctx context.Context, caller authz.Caller, in *updateInput) (*timerOutput, error) {
	timer, err := t.Update(ctx, caller, in.ID, in.Body, in.IfMatch, clock.Now())
	return answer(http.StatusOK, timer), err
}

func (t *Timers) handleDelete(ctx context.Context, caller authz.Caller, in *deleteInput) (*struct{}, error) {
	return nil, t.Delete(ctx, caller, in.ID, in.IfMatch)
}

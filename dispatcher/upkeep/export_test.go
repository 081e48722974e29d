package upkeep

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
)

// MarkGarbage marks the garbage of an org and goes no further, as a process that is killed then.
func (u *Upkeep) MarkGarbage(ctx context.Context, org uuid.UUID, now time.Time) (Garbage, error) {
	c := u.newCollection(org, now)
	for position := ""; position == "" || strings.HasPrefix(position, "generations") ||
		strings.HasPrefix(position, "revisions"); {
		done, err := c.step(ctx, position)
		if err != nil {
			return c.found, err
		}
		position = done.Position
	}
	return c.found, nil
}

// InUse is inUse.
var InUse = inUse

// OpenTasksOf is openTasksOf.
var OpenTasksOf = openTasksOf

package alertroute

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alerts"
)

// pendingKey is the key of the mark of the ends that receivers may not have been told. Rows say once that an alert is
// resolved, so those of later tasks do not.
const pendingKey = `["pending"]`

// mostPending is how many ends are kept to be told later: those that are the latest.
const mostPending = 5000

// pending returns the ends that an earlier task was to tell, and how the ledger has them.
func pending(ctx context.Context, ledger operators.Deliveries) (ends []alerts.Alert, stored []byte, err error) {
	marks, err := ledger.Marks(ctx, []string{pendingKey})
	if err != nil || marks[pendingKey].Value == nil {
		return nil, nil, err
	}
	err = json.Unmarshal(marks[pendingKey].Value, &stored)
	if err == nil {
		err = json.Unmarshal(stored, &ends)
	}
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "what is still to be told cannot be read: %w", err)
	}
	return ends, stored, nil
}

// withPending returns rows and the ends that are still to be told, but those of alerts of which a row says something
// that is as new, in the order of their names and keys.
func withPending(rows, ends []alerts.Alert) []alerts.Alert {
	newest := map[string]alerts.Alert{}
	for _, a := range slices.Concat(ends, rows) {
		of := textOf(a.Name, a.Key)
		if known, ok := newest[of]; !ok || !a.EvaluatedAt.Before(known.EvaluatedAt) {
			newest[of] = a
		}
	}
	all := make([]alerts.Alert, 0, len(newest))
	for _, a := range newest {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b alerts.Alert) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// ends returns the alerts that the plan tells to be resolved, each once.
func (p plan) ends() (ends []alerts.Alert) {
	seen := map[string]bool{}
	for _, b := range p.batches {
		for _, a := range b.alerts {
			if of := textOf(a.Name, a.Key); a.Status == alerts.Resolved && !seen[of] {
				seen[of] = true
				ends = append(ends, a.Alert)
			}
		}
	}
	if len(ends) > mostPending {
		slices.SortStableFunc(ends, func(a, b alerts.Alert) int { return b.EvaluatedAt.Compare(a.EvaluatedAt) })
		ends = ends[:mostPending]
	}
	return ends
}

// keepPending notes the ends that are about to be told, in place of those that are noted, so that later tasks tell
// those that do not arrive. What has arrived is left out by the next task.
func keepPending(ctx context.Context, ledger operators.Deliveries, stored []byte, ends []alerts.Alert) error {
	if len(ends) == 0 && len(stored) == 0 {
		return nil
	}
	text, _ := json.Marshal(slices.Concat([]alerts.Alert{}, ends)) // texts, finite numbers and times are JSON
	if slices.Equal(text, stored) {
		return nil
	}
	value, _ := json.Marshal(text) // in base64, for the texts of rows may have NUL characters, which jsonb refuses
	return ledger.Mark(ctx, []operators.Mark{{Key: pendingKey, Value: value}})
}

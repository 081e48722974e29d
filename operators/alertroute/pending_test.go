package alertroute

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/alerts"
)

// Rows say once that an alert is resolved. A receiver that did not hear it hears it later, and the others do not.
func TestAnEndThatDidNotArriveIsStillToBeTold(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [{"to": ["one", "two"]}]}`)
	known := map[string]mark{}
	told(c, known, alert("a", alerts.Firing, 1))
	end := alert("a", alerts.Resolved, 2)
	p := c.planOf([]alerts.Alert{end}, known)
	require.Equal(t, []alerts.Alert{end}, p.ends())
	heard := p.batches[1].alerts[0]
	known[markKey("two", heard.Alert)] = heard.next // "one" has not answered

	other := alert("b", alerts.Firing, 3)
	rows := withPending([]alerts.Alert{other}, p.ends())
	require.Equal(t, []alerts.Alert{end, other}, rows)
	require.Equal(t, []alerts.Alert{end}, c.planOf(rows, known).ends(), "it is still to be told")
	require.Equal(t, []string{"one: a resolved b firing", "two: b firing"}, told(c, known, rows...))
	require.Empty(t, c.planOf(rows, known).ends())

	anew := alert("a", alerts.Firing, 2)
	require.Equal(t, []alerts.Alert{anew}, withPending([]alerts.Alert{anew}, []alerts.Alert{end}), "newer data")
	older := alert("a", alerts.Firing, 1)
	require.Equal(t, []alerts.Alert{end}, withPending([]alerts.Alert{older}, []alerts.Alert{end}))
}

func TestThereIsAnEndToWhatIsKept(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"]}]}`)
	known := map[string]mark{}
	var rows []alerts.Alert
	for n := range mostPending + 1 {
		rows = append(rows, alert(fmt.Sprintf("a%05d", n), alerts.Firing, 0))
	}
	told(c, known, rows...)
	for i := range rows {
		rows[i].Status, rows[i].EvaluatedAt = alerts.Resolved, hour(1+i)
	}
	ends := c.planOf(rows, known).ends()
	require.Len(t, ends, mostPending)
	require.NotContains(t, ends, rows[0], "the oldest")
}

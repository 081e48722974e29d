package builds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// A column that no storage can hold is refused by the deploy where the columns of the inputs are known.
func TestDeployRefusesColumnsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	w.Serve(byColumn)
	const said = "job wide: config.query: column \"at\": values of type TIME WITH TIME ZONE cannot be stored " +
		"without changing them; write CAST(\"at\" AS VARCHAR) AS \"at\""
	_, err := w.TryDeploy(dispatchertest.Edit(byColumn, "AS n FROM raw", "AS n, '12:00:00+02'::TIMETZ AS at FROM raw"))
	require.ErrorContains(t, err, said)
	require.Len(t, dispatchertest.ProblemsOf(err), 1)

	_, err = w.TryDeploy(dispatchertest.Edit(byColumn, "AS n FROM raw",
		"AS n, CAST('12:00:00+02'::TIMETZ AS VARCHAR) AS at FROM raw"))
	require.NoError(t, err)
}

// A plan knows a sum as it is stored, so that what reads it finds the same type before and after it is computed.
func TestPlansKnowStoredTypes(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	w.Serve(byColumn)
	const reads = "SELECT typeof(content) AS content FROM summed"
	w.Serve(dispatchertest.Edit(byColumn, "::VARCHAR AS content FROM wide\" }\n", "AS content FROM wide\" }\n"+
		"  - name: typed\n    operator: sql\n    inputs: [{ from: { job: summed } }]\n    config: { query: \""+reads+
		"\" }\n", "publish:", "publish:\n  columns_typed: { from: { job: typed } }"))
	require.Equal(t, map[string][]string{"all": {"DECIMAL(38,0)"}}, w.Read("columns_typed"))
}

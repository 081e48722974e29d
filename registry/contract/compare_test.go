package contract_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry/contract"
)

var (
	one  = uuid.MustParse("00000000-0000-0000-0000-000000000001")
	two  = uuid.MustParse("00000000-0000-0000-0000-000000000002")
	days = dag.Partitioning{Kind: dag.ByTime, Unit: "day"}
)

func dataset(id uuid.UUID, name string, edit ...func(*contract.Dataset)) contract.Dataset {
	d := contract.Dataset{ID: id, Job: fmt.Sprintf("job%c", id.String()[35]), Name: name, Published: name[0] != '/',
		Storage: "parquet", PartitionBy: days,
		Columns: []dag.Column{{Name: "day", Type: "DATE"}, {Name: "n", Type: "INTEGER"}}}
	for _, e := range edit {
		e(&d)
	}
	return d
}

func columns(list ...dag.Column) func(*contract.Dataset) {
	return func(d *contract.Dataset) { d.Columns = list }
}

func roles(list ...string) func(*contract.Dataset) {
	return func(d *contract.Dataset) { d.ReadRoles = list }
}

func reader(read ...string) contract.Facts {
	return contract.Facts{Consumers: map[uuid.UUID][]contract.Consumer{
		one: {{DAG: "other", Input: contract.Input{Job: "sums", Dataset: one, Columns: read}}}}}
}

// called is a reader whose document has the dataset under a name.
func called(name string) contract.Facts {
	f := reader()
	f.Consumers[one][0].Name = name
	return f
}

// fixed is a reader that stores its rows in PostgreSQL.
func fixed(read ...string) contract.Facts {
	f := reader(read...)
	f.Consumers[one][0].Fixed = true
	return f
}

func of(datasets ...contract.Dataset) contract.Contract { return contract.Contract{Datasets: datasets} }

func TestCompare(t *testing.T) {
	t.Parallel()
	x := of(dataset(one, "x"))
	wide := of(dataset(one, "x", columns(dag.Column{Name: "day", Type: "DATE"}, dag.Column{Name: "n", Type: "BIGINT"},
		dag.Column{Name: "more", Type: "VARCHAR"})))
	less := of(dataset(one, "x", columns(dag.Column{Name: "day", Type: "DATE"})))
	text := of(dataset(one, "x", columns(dag.Column{Name: "day", Type: "DATE"},
		dag.Column{Name: "n", Type: "VARCHAR"})))
	back := func(f contract.Facts) contract.Facts { f.Back = true; return f }

	checked := func(list ...contract.Check) contract.Contract {
		return of(dataset(one, "x", func(d *contract.Dataset) { d.Checks = list }))
	}
	reads := contract.Contract{Inputs: []contract.Input{
		{Job: "sums", Dataset: two, Name: "z", Columns: []string{"N", "v"}}}}
	serves := func(list ...dag.Column) contract.Facts {
		return contract.Facts{Sources: map[uuid.UUID]contract.Source{two: {Columns: list}}}
	}
	nobody := contract.Facts{Sources: map[uuid.UUID]contract.Source{}}
	lost := contract.Facts{Lost: []contract.Loss{{Dataset: "x", Partitions: 2, Text: "x would lose 2 partitions"}}}

	for name, c := range map[string]struct {
		live, next contract.Contract
		facts      contract.Facts
		want       []string
	}{
		"the first version": {contract.Contract{}, x, contract.Facts{}, nil},
		"the same":          {x, x, reader("n"), nil},
		"not computed yet":  {x, of(dataset(one, "x", columns())), reader("n"), nil},
		"removed":           {x, of(), contract.Facts{}, []string{"says dataset_removed: dataset x would be removed"}},
		"removed while read": {x, of(), reader(), []string{
			"refuses dataset_removed: dataset x would be removed, but other/sums reads it"}},
		"gone back to before it": {x, of(), back(reader()), []string{
			"asks allow-breaking dataset_removed: dataset x would be removed, but other/sums reads it"}},
		"unpublished": {x, of(dataset(one, "x", func(d *contract.Dataset) { d.Published = false })), reader(), []string{
			"refuses dataset_unpublished: dataset x would no longer be published, but other/sums reads it"}},
		"renamed": {x, of(dataset(one, "y")), reader(), []string{
			"refuses dataset_renamed: dataset x would be renamed to y, but other/sums reads it by its name"}},
		"renamed to what a reader calls it": {x, of(dataset(one, "y")), called("y"), []string{
			"says dataset_renamed: dataset x would be renamed to y"}},
		"moved": {x, of(dataset(two, "x")), contract.Facts{}, []string{
			"says dataset_removed: dataset x would be removed",
			"asks allow-moves name_moved: the name x would move from the dataset of job job1 to that of job job2: " +
				"whoever reads it by name gets other rows"}},
		"moved by going back": {x, of(dataset(two, "x")), back(contract.Facts{}), []string{
			"says dataset_removed: dataset x would be removed",
			"asks allow-moves name_moved: the name x would move from the dataset of job job1 to that of job job2: " +
				"whoever reads it by name gets other rows"}},
		"taken by another DAG": {x, x, contract.Facts{Elsewhere: map[string]string{"x": "new"}}, []string{
			"says name_elsewhere: the name x belongs to DAG new by now: whoever reads it by name gets the rows of " +
				"new. Deploying the same document again does not take it back; a changed one does, if it says " +
				"`takes_over: new`"}},
		"moved while read": {x, of(dataset(one, "y"), dataset(two, "x")), reader(), []string{
			"refuses dataset_renamed: dataset x would be renamed to y, but other/sums reads it by its name",
			"asks allow-moves name_moved: the name x would move from the dataset of job job1 to that of job job2: " +
				"whoever reads it by name gets other rows, but the dataset of job job1 stays an input of other/sums " +
				"until it is deployed again"}},
		"swapped while read": {of(dataset(one, "x"), dataset(two, "y")), of(dataset(one, "y"), dataset(two, "x")),
			called("y"), []string{
				"says dataset_renamed: dataset x would be renamed to y",
				"asks allow-moves name_moved: the name x would move from the dataset of job job1 to that of job " +
					"job2: whoever reads it by name gets other rows, but the dataset of job job1 stays an input of " +
					"other/sums until it is deployed again",
				"says dataset_renamed: dataset y would be renamed to x",
				"asks allow-moves name_moved: the name y would move from the dataset of job job2 to that of job " +
					"job1: whoever reads it by name gets other rows"}},
		"moved to what others may read": {of(dataset(one, "x", roles("finance"))), of(dataset(two, "x")),
			contract.Facts{}, []string{
				"says dataset_removed: dataset x would be removed",
				"asks allow-moves name_moved: the name x would move from the dataset of job job1 to that of job " +
					"job2: whoever reads it by name gets other rows",
				"says read_roles_changed: what is published as x would be open to all instead of role finance"}},
		"a view that is made anew": {x, x, contract.Facts{Views: []contract.View{{Dataset: one, Name: "data.x",
			Becomes: []string{"n goes"}, Carried: []string{"view mine"}}}}, []string{
			"says view_remade: view data.x would be made anew, with its grants: n goes; defined over it again would " +
				"be view mine"}},
		"a view that is in use": {x, x, contract.Facts{Views: []contract.View{{Dataset: one, Name: "data.x",
			Becomes: []string{"n goes"}, Refused: "view mine uses n"}}}, []string{
			"refuses view_in_use: view mine uses n"}},
		"other owner": {x, of(dataset(one, "x", func(d *contract.Dataset) { d.Owner = "ops" })), contract.Facts{},
			[]string{"says owner_changed: dataset x would belong to ops instead of nobody"}},
		"other key": {x, of(dataset(one, "x", func(d *contract.Dataset) { d.UniqueKey = []string{"day", "n"} })),
			contract.Facts{}, []string{
				"says unique_key_changed: dataset x would have the unique key (day, n) instead of no unique key"}},
		"partitions that a reader cannot follow": {x, of(dataset(one, "x", func(d *contract.Dataset) {
			d.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: "month"}
		})), contract.Facts{Unfit: []contract.Unfit{{Dataset: one, Name: "x", Consumer: "other/sums",
			Text: "other/sums cannot"}}}, []string{"refuses partitioning_changed: other/sums cannot"}},
		"given back": {x, of(dataset(one, "y")), contract.Facts{Returns: map[string]string{"x": "old"}}, []string{
			"says dataset_renamed: dataset x would be renamed to y",
			"asks allow-moves name_moved: the name x would go back to DAG old: " +
				"whoever reads it by name gets other rows"}},
		"taken over": {x, of(dataset(one, "x"), dataset(two, "z", func(d *contract.Dataset) { d.TakesOver = "old" })),
			contract.Facts{}, []string{
				"says name_taken_over: the name z is taken over from nobody: DAG old serves nothing under it"}},
		"taken over with other columns": {x, of(dataset(one, "x"), dataset(two, "z", func(d *contract.Dataset) {
			d.TakesOver, d.Columns, d.Storage = "old", []dag.Column{{Name: "day", Type: "DATE"}}, "postgres"
		})), contract.Facts{Taken: map[string]contract.Dataset{"z": dataset(one, "z")}}, []string{
			"says name_taken_over: the name z is taken over from DAG old",
			"says storage_moved: dataset z would move from parquet to postgres storage",
			"says columns_removed: dataset z would lose column n"}},
		"an input that nobody serves": {reads, reads, nobody, []string{
			"asks allow-breaking input_gone: job sums reads z, which no DAG serves any more"}},
		"an input without what is read": {reads, reads, serves(dag.Column{Name: "n"}), []string{
			"asks allow-breaking input_columns_gone: job sums reads column v of z, which it has no more"}},
		"an input with what is read":   {reads, reads, serves(dag.Column{Name: "n"}, dag.Column{Name: "v"}), nil},
		"an input that has no columns": {reads, reads, serves(), nil},
		"gained and widened": {x, wide, reader("n"), []string{
			"says columns_added: dataset x would gain column more",
			"says columns_widened: dataset x would have wider columns: n INTEGER → BIGINT"}},
		"wider than a table": {x, wide, fixed("n"), []string{
			"says columns_added: dataset x would gain column more",
			"asks allow-breaking columns_widened: dataset x would have wider columns: n INTEGER → BIGINT, " +
				"and the tables of other/sums cannot change with it"}},
		"more than a table": {x, wide, fixed(), []string{
			"asks allow-breaking columns_added: dataset x would gain column more, " +
				"and the tables of other/sums cannot change with it",
			"asks allow-breaking columns_widened: dataset x would have wider columns: n INTEGER → BIGINT, " +
				"and the tables of other/sums cannot change with it"}},
		"lost what nobody reads": {x, less, contract.Facts{}, []string{
			"says columns_removed: dataset x would lose column n"}},
		"lost what others name": {x, less, reader("n"), []string{
			"refuses columns_removed: dataset x would lose column n, but other/sums reads n"}},
		"lost what others leave out": {x, less, reader("day"), []string{
			"says columns_removed: dataset x would lose column n"}},
		"lost what others may read": {x, less, reader(), []string{
			"asks allow-breaking columns_removed: dataset x would lose column n, and other/sums may read it"}},
		"narrowed": {wide, x, reader("n"), []string{
			"says columns_removed: dataset x would lose column more",
			"refuses columns_narrowed: dataset x would have columns of other types: n BIGINT → INTEGER, " +
				"but other/sums reads n"}},
		"another type": {x, text, back(reader("N")), []string{
			"asks allow-breaking columns_narrowed: dataset x would have columns of other types: n INTEGER → VARCHAR, " +
				"but other/sums reads n"}},
		"partitions lost": {x, x, lost, []string{
			"asks allow-removals partitions_removed: x would lose 2 partitions"}},
		"moved to Postgres by months": {x, of(dataset(one, "x", func(d *contract.Dataset) {
			d.Storage, d.PartitionBy.Unit = "postgres", "month"
		})), contract.Facts{}, []string{
			"says partitioning_changed: dataset x would have month partitions instead of day partitions",
			"says storage_moved: dataset x would move from parquet to postgres storage"}},
		"checks": {checked(contract.Check{Hash: "a", Name: "unique(n)"}),
			checked(contract.Check{Hash: "b", Name: "not_null(n)", Severity: "error"}), contract.Facts{}, []string{
				"says checks_added: dataset x would be checked by not_null(n), too: " +
					"what it has now is checked before the version serves",
				"says checks_removed: dataset x would no longer be checked by unique(n)"}},
		"another bound of a check": {checked(contract.Check{Hash: "a", Name: "row_count", Severity: "warn"}),
			checked(contract.Check{Hash: "b", Name: "row_count", Severity: "warn"}), contract.Facts{}, []string{
				"says checks_added: dataset x would be checked in another way by row_count"}},
		"a check that only warns": {x, checked(contract.Check{Hash: "b", Name: "not_null(n)", Severity: "warn"}),
			contract.Facts{}, []string{"says checks_added: dataset x would be checked by not_null(n), too"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range contract.Compare(c.live, c.next, c.facts) {
				level := string(f.Level)
				if f.Consent != "" {
					level += " " + string(f.Consent)
				}
				got = append(got, fmt.Sprintf("%s %s: %s", level, f.Kind, f.Text))
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	asks := contract.Finding{Level: contract.Asks, Consent: contract.AllowMoves, Text: "x moves", Hint: "rename it"}
	require.NoError(t, contract.Refusal([]contract.Finding{{Level: contract.Says, Text: "more"}}, nil))
	require.NoError(t, contract.Refusal([]contract.Finding{asks}, []contract.Consent{contract.AllowMoves}))
	require.ErrorContains(t, contract.Refusal([]contract.Finding{asks}, nil), "x moves")
	refused := contract.Refusal([]contract.Finding{asks, {Level: contract.Refuses, Text: "x goes"}},
		[]contract.Consent{contract.AllowMoves})
	require.EqualError(t, refused, "x goes")
}

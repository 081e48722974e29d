package relations

// Derivation states what decides the result of a statement, apart from the order of its rows.
type Derivation struct {
	Rows    Part          // which rows there are, and how often each
	Columns []DerivedPart // nil where a name is made up by DuckDB, or given twice
	Reads   []ColumnOf    // the columns that the statement names, sorted
}

// Part is a part of a result. It is the same as another one if their forms are equal, and if what they read is.
type Part struct {
	Form  string     // a hash of what is computed; relations and columns are in it by name
	Reads []ColumnOf // sorted
}

// DerivedPart is a column of a result.
type DerivedPart struct {
	Name string // in lower case
	Part
}

// ColumnOf is a column of a relation, both in lower case. An empty column stands for the relation's rows, or for all of
// a relation whose columns are not known.
type ColumnOf struct{ Relation, Column string }

// Origin states that an output column is computed from a column of a relation.
type Origin struct {
	OutputColumn string
	Relation     string
	Column       string
	Transform    string // identity, expression or aggregate
}

// ColumnLineage says where the values of an output column come from.
type ColumnLineage struct {
	Column    string         `json:"column"`
	Sources   []SourceColumn `json:"sources"`   // sorted
	Transform string         `json:"transform"` // the strongest on the way: identity, expression or aggregate
	// Unsure says why there may be sources that are not in the list, and the transform may be stronger; empty: the list
	// is whole.
	Unsure string `json:"unsure,omitempty"`
}

// SourceColumn is a column of a relation whose values flow into an output column.
type SourceColumn struct {
	Table     string `json:"table"`
	Column    string `json:"column"`
	Transform string `json:"-"` // on the way from this one
}

// Lack is a column that a statement names and that is not there.
type Lack struct {
	Table  string // the name that the statement gives the table; empty: it names the column alone
	Column string
	Line   string // of the statement; empty: not known
}

package proof_test

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// talk is what a client of PostgreSQL has sent on a connection, as far as it shows which transactions end.
type talk struct {
	statements map[string]statement // by name
	open       bool                 // whether a BEGIN came
	closing    bool                 // whether a COMMIT comes with the next Sync
	changes    map[string]bool      // of this transaction
}

// statement is the beginning of a statement, which for BEGIN and COMMIT is all of it, and the tables that it changes.
type statement struct {
	word    string
	changes []string
}

func statementOf(sql string) statement {
	word, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(sql)), " ")
	return statement{word, changesOf(sql)}
}

// changing finds the tables that a statement changes. No table follows UPDATE in FOR UPDATE and ON CONFLICT.
var changing = regexp.MustCompile(`(?i)\b(INSERT INTO|UPDATE|DELETE FROM)\s+([a-z_]+)`)

func changesOf(sql string) (all []string) {
	for _, found := range changing.FindAllStringSubmatch(sql, -1) {
		if table := strings.ToLower(found[2]); !slices.Contains([]string{"set", "skip", "of", "nowait"}, table) {
			all = append(all, strings.ToLower(strings.Fields(found[1])[0])+" "+table)
		}
	}
	return all
}

// hear takes a message of a client: its type and the rest after its length. It reports whether the message commits a
// transaction, and the transaction's kind, that is, what it changes.
func (t *talk) hear(sort byte, body []byte) (kind string, commits bool) {
	if t.statements == nil {
		t.statements, t.changes = map[string]statement{}, map[string]bool{}
	}
	first, rest, _ := bytes.Cut(body, []byte{0})
	second, _, _ := bytes.Cut(rest, []byte{0})
	switch sort {
	case 'P': // Parse: name, statement
		t.statements[string(first)] = statementOf(string(second))
	case 'B': // Bind: portal, name
		t.run(t.statements[string(second)])
	case 'S': // Sync
		return t.end(t.closing || !t.open && len(t.changes) > 0)
	case 'Q': // Query
		t.run(statementOf(string(first)))
		return t.end(t.closing || !t.open && len(t.changes) > 0)
	}
	return "", false
}

func (t *talk) run(s statement) {
	switch s.word {
	case "begin":
		t.open = true
	case "commit":
		t.closing = true
	case "rollback":
		t.end(true)
	}
	for _, c := range s.changes {
		t.changes[c] = true
	}
}

func (t *talk) end(ends bool) (kind string, commits bool) {
	if !ends {
		return "", false
	}
	kind = strings.Join(slices.Sorted(maps.Keys(t.changes)), ", ")
	t.open, t.closing = false, false
	clear(t.changes)
	return kind, true
}

// TestTalk shows that the proxy recognizes commits.
func TestTalk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said []pgproto3.FrontendMessage
		want []string
	}{
		"a transaction": {[]pgproto3.FrontendMessage{&pgproto3.Query{String: "begin"},
			&pgproto3.Parse{Name: "a", Query: "UPDATE tasks SET x = 1"},
			&pgproto3.Sync{}, &pgproto3.Bind{PreparedStatement: "a"}, &pgproto3.Sync{},
			&pgproto3.Query{String: "commit"}}, []string{"update tasks"}},
		"a statement by itself": {[]pgproto3.FrontendMessage{&pgproto3.Parse{Name: "a",
			Query: "WITH x AS (DELETE FROM ready q) INSERT INTO leases"},
			&pgproto3.Sync{}, &pgproto3.Bind{PreparedStatement: "a"}, &pgproto3.Sync{},
			&pgproto3.Bind{PreparedStatement: "a"}, &pgproto3.Sync{}},
			[]string{"delete ready, insert leases", "delete ready, insert leases"}},
		"BEGIN with the first statements, COMMIT with the last": {[]pgproto3.FrontendMessage{&pgproto3.Parse{Name: "b",
			Query: "begin"}, &pgproto3.Parse{Name: "c", Query: "commit"},
			&pgproto3.Parse{Name: "i", Query: "INSERT INTO events"},
			&pgproto3.Parse{Name: "u", Query: "UPDATE tasks SET x = 1"}, &pgproto3.Sync{},
			&pgproto3.Bind{PreparedStatement: "b"}, &pgproto3.Bind{PreparedStatement: "i"}, &pgproto3.Sync{},
			&pgproto3.Bind{PreparedStatement: "u"}, &pgproto3.Bind{PreparedStatement: "c"}, &pgproto3.Sync{},
			&pgproto3.Bind{PreparedStatement: "u"}, &pgproto3.Sync{}},
			[]string{"insert events, update tasks", "update tasks"}},
		"what changes nothing": {[]pgproto3.FrontendMessage{&pgproto3.Parse{Query: "SELECT FROM t FOR UPDATE SKIP " +
			"LOCKED"}, &pgproto3.Bind{}, &pgproto3.Sync{}}, nil},
		"what is rolled back": {[]pgproto3.FrontendMessage{&pgproto3.Query{String: "begin"},
			&pgproto3.Query{String: "DELETE FROM tasks"},
			&pgproto3.Query{String: "rollback"}, &pgproto3.Query{String: "begin isolation level repeatable read"},
			&pgproto3.Query{String: "commit"}}, []string{""}},
	} {
		var heard talk
		var kinds []string
		for _, m := range c.said {
			text, err := m.Encode(nil)
			require.NoError(t, err)
			if kind, commits := heard.hear(text[0], text[5:]); commits {
				kinds = append(kinds, kind)
			}
		}
		require.Equal(t, c.want, kinds, name)
	}
}

package contract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// columnDiff is the difference of two schemas.
type columnDiff struct {
	added, removed    []string
	widened, narrowed []retyped
}

// retyped is a column with another type than before, and its text "name OLD → NEW".
type retyped struct{ name, text string }

// split returns the names of columns, and their texts.
func split(columns []retyped) (names, texts []string) {
	for _, c := range columns {
		names, texts = append(names, c.name), append(texts, c.text)
	}
	return names, texts
}

func diffColumns(was, now []dag.Column) (d columnDiff) {
	for _, w := range was {
		i := slices.IndexFunc(now, func(n dag.Column) bool { return sqltext.Same(n.Name, w.Name) })
		switch {
		case i < 0:
			d.removed = append(d.removed, w.Name)
		case now[i].Type != w.Type && now[i].Type != "" && w.Type != "":
			changed := retyped{w.Name, fmt.Sprintf("%s %s → %s", w.Name, w.Type, now[i].Type)}
			if widens(w.Type, now[i].Type) {
				d.widened = append(d.widened, changed)
			} else {
				d.narrowed = append(d.narrowed, changed)
			}
		}
	}

	for _, n := range now {
		if !slices.ContainsFunc(was, func(w dag.Column) bool { return sqltext.Same(n.Name, w.Name) }) {
			d.added = append(d.added, n.Name)
		}
	}
	return d
}

// listed returns "column a" or "columns a, b".
func listed(noun string, list []string) string {
	if len(list) > 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(list, ", ")
}

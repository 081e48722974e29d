package dag

import (
	"fmt"
	"strings"
)

// Target is a place outside of the platform that a job writes to.
type Target struct {
	Key  string // of the config, that names it
	Name string // for people, such as "table public.orders of shop at db.example.com"
	// Path leads to it, from the outermost thing that it is in to itself. A target whose path goes on where that of
	// another one ends lies in that one. AnyText and AnyDigit stand for what is known only once there is a partition.
	Path []string
	// Harm is what two jobs that write there do to each other.
	Harm string
	// Adds says that the job only adds to what is there: several of those do each other no harm.
	Adds bool
}

// What a name in the path of a target may have in place of characters: neither is in a name itself.
const (
	AnyText  = "\x00" // any text, even none
	AnyDigit = "\x01" // a digit
)

// writer is a job with one of its targets.
type writer struct {
	Target
	job *Job
}

// linkTargets reports jobs that write to one place outside, or to places of which one lies in the other. Of a job whose
// partitioning is unclear, no target is known.
func (d *decoder) linkTargets(doc *Document, nodes []value, unclear map[string]bool) {
	var all []writer
	for i := range doc.Jobs {
		j := &doc.Jobs[i]
		targets := d.cat.Operators[j.Operator].Targets
		tree, sound := d.sound[nodes[i].node]
		if targets == nil || !sound || unclear[j.Name] {
			continue
		}

		for _, t := range targets(doc.Name, j) {
			own := writer{t, j}
			for _, other := range all {
				if fault := own.clash(other); fault != nil {
					d.operatorFault(fault, tree)
					break
				}
			}
			all = append(all, own)
		}
	}
}

// clash returns what is wrong with writing to a target beside another job; nil: nothing is.
func (w writer) clash(other writer) *ConfigError {
	if w.job == other.job || w.Adds && other.Adds || !within(w.Path, other.Path) && !within(other.Path, w.Path) {
		return nil
	}

	says := "the target %s may be %s, that of job %q (line %d): %s"
	switch {
	case len(w.Path) > len(other.Path):
		says = "the target %s lies in %s, that of job %q (line %d): %s"
	case len(w.Path) < len(other.Path):
		says = "the target %s holds %s, that of job %q (line %d): %s"
	case w.Name == other.Name:
		says = "the target %[1]s is that of job %[3]q (line %[4]d), too: %[5]s"
	}
	return &ConfigError{Key: w.Key, Message: fmt.Sprintf(says, w.Name, other.Name, other.job.Name,
		other.job.Position.Line, w.Harm)}
}

// within reports whether an inner path begins with an outer one, or may.
func within(inner, outer []string) bool {
	if len(inner) < len(outer) {
		return false
	}
	for i := range outer {
		if !overlap(inner[i], outer[i]) {
			return false
		}
	}
	return true
}

// overlap reports whether two names may be the same.
func overlap(a, b string) bool {
	if !strings.ContainsAny(a+b, AnyText+AnyDigit) {
		return a == b
	}

	// may[i][j] is whether the rest of a from its ith character on may be that of b from its jth on.
	x, y := []rune(a), []rune(b)
	may := make([][]bool, len(x)+1)
	for i := len(x); i >= 0; i-- {
		may[i] = make([]bool, len(y)+1)
		for j := len(y); j >= 0; j-- {
			switch more, moreOther := i < len(x), j < len(y); {
			case more && string(x[i]) == AnyText:
				may[i][j] = may[i+1][j] || moreOther && may[i][j+1]
			case moreOther && string(y[j]) == AnyText:
				may[i][j] = may[i][j+1] || more && may[i+1][j]
			case more && moreOther:
				may[i][j] = alike(x[i], y[j]) && may[i+1][j+1]
			default:
				may[i][j] = more == moreOther
			}
		}
	}
	return may[0][0]
}

// alike reports whether two characters, of which none is AnyText, may be the same.
func alike(a, b rune) bool {
	digit := func(r rune) bool { return '0' <= r && r <= '9' }
	return a == b || string(a) == AnyDigit && digit(b) || string(b) == AnyDigit && digit(a)
}

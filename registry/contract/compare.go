package contract

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Compare returns what readers have to know, agree to, or are kept from when next takes the place of live, ordered by
// dataset. It is pure. Without a live contract there are no readers yet.
func Compare(live, next Contract, facts Facts) []Finding {
	c := comparison{facts: facts, was: byID(live), now: byID(next), heirs: map[string]*Dataset{}}
	for i := range next.Datasets {
		if d := &next.Datasets[i]; d.Published {
			c.heirs[d.Name] = d
		}
	}

	for i := range live.Datasets {
		was := &live.Datasets[i]
		now := c.now[was.ID]
		c.name(was, now)
		if now != nil {
			c.shape(was, now)
			c.keeper(was, now)
			c.columns(was, now)
			c.kept(was, now)
			c.checks(was, now)
		}
	}

	for i := range next.Datasets {
		if now := &next.Datasets[i]; now.TakesOver != "" {
			c.takeover(now)
		}
	}
	c.stated()
	c.elsewhere()
	c.inputs(live.Inputs, next.Inputs)
	c.sources(next.Inputs)
	hint := "--forward-only keeps what would be rebuilt as it is"
	switch {
	case facts.Back:
		hint = "deploy the version's document again: that makes them anew"
	case facts.Forced:
		hint = "restore what they are made from"
	}
	for _, l := range facts.Lost {
		f := Finding{Kind: PartitionsRemoved, Level: Asks, Consent: AllowRemovals, Dataset: l.Dataset, Text: l.Text,
			Partitions: l.Partitions, Breaking: true, Hint: hint}
		switch {
		case l.Purged:
			f.Hint = "`dagctl backfill` computes what was purged, once the version serves"
		case !facts.Back && c.recut(l.Dataset):
			f.Hint = "restore what they are made from, or keep the partitioning"
		}
		c.add(f)
	}
	slices.SortStableFunc(c.findings, func(a, b Finding) int { return strings.Compare(a.Dataset, b.Dataset) })
	return c.findings
}

func byID(c Contract) map[uuid.UUID]*Dataset {
	datasets := make(map[uuid.UUID]*Dataset, len(c.Datasets))
	for i := range c.Datasets {
		datasets[c.Datasets[i].ID] = &c.Datasets[i]
	}
	return datasets
}

// recut reports whether a dataset, by its name in the live contract, gets another partitioning.
func (c *comparison) recut(name string) bool {
	for id, was := range c.was {
		if now := c.now[id]; was.Name == name && now != nil {
			return !reflect.DeepEqual(was.PartitionBy, now.PartitionBy)
		}
	}
	return false
}

// comparison collects findings.
type comparison struct {
	facts    Facts
	was, now map[uuid.UUID]*Dataset
	heirs    map[string]*Dataset // of the next contract, by published name
	findings []Finding
}

func (c *comparison) add(f Finding) { c.findings = append(c.findings, f) }

// readers returns the addresses of the jobs of other DAGs that read a dataset, without those whose documents have it
// under one of some names.
func (c *comparison) readers(dataset uuid.UUID, under ...string) []string {
	var readers []string
	for _, consumer := range c.facts.Consumers[dataset] {
		if !slices.Contains(under, consumer.Name) {
			readers = append(readers, consumer.Address())
		}
	}
	slices.Sort(readers)
	return slices.Compact(readers)
}

// name compares what a dataset is called.
func (c *comparison) name(was, now *Dataset) {
	if !was.Published {
		if readers := c.readers(was.ID); now == nil && len(readers) > 0 {
			c.broken(DatasetRemoved, was, readers, "would be removed", "")
		}
		return
	}
	heir := c.heirs[was.Name]
	switch {
	case now != nil && now.Published && now.Name == was.Name:
		return
	case now == nil:
		c.broken(DatasetRemoved, was, c.readers(was.ID), "would be removed", "")
	case !now.Published:
		c.broken(DatasetUnpublished, was, c.readers(was.ID), "would no longer be published", "")
	default:
		c.broken(DatasetRenamed, was, c.readers(was.ID, now.Name), "would be renamed to "+now.Name, " by its name")
	}

	f := Finding{Kind: NameMoved, Level: Asks, Consent: AllowMoves, Dataset: was.Name, Breaking: true}
	switch owner := c.facts.Returns[was.Name]; {
	case heir != nil:
		f.Text = fmt.Sprintf("the name %s would move from the dataset of job %s to that of job %s: whoever reads it "+
			"by name gets other rows", was.Name, was.Job, heir.Job)
		if !c.facts.Back {
			f.Hint = "if it is the same job under another name, write `renamed_from` there"
		}
	case owner != "":
		f.Text = fmt.Sprintf("the name %s would go back to DAG %s: whoever reads it by name gets other rows",
			was.Name, owner)
	default:
		return
	}
	if stay := c.staying(was, now); len(stay) > 0 {
		f.Text += fmt.Sprintf(", but the dataset of job %s stays an input of %s until %s deployed again",
			was.Job, strings.Join(stay, ", "), plural.Word(len(stay), "it is", "they are"))
		f.Consumers = stay
	}
	c.add(f)

	if heir != nil && !sameSet(was.ReadRoles, heir.ReadRoles) {
		c.add(Finding{Kind: ReadRolesChanged, Level: Says, Dataset: was.Name,
			Text: fmt.Sprintf("what is published as %s would be open to %s instead of %s", was.Name,
				opened(heir.ReadRoles), opened(was.ReadRoles))})
	}
}

// staying returns the jobs of other DAGs that go on reading a dataset which loses its name: an input is resolved when
// its DAG is deployed.
func (c *comparison) staying(was, now *Dataset) []string {
	if now == nil {
		return nil
	}
	return c.readers(was.ID)
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// opened says to whom a dataset with some read roles is open.
func opened(roles []string) string {
	if len(roles) == 0 {
		return "all"
	}
	return listed("role", roles)
}

// broken adds that a dataset goes under the name that it has. Where other DAGs read it, a deploy is refused, and
// somebody who goes back has to agree to it.
func (c *comparison) broken(kind Kind, was *Dataset, readers []string, what, how string) {
	f := Finding{Kind: kind, Level: Says, Dataset: was.Name, Text: fmt.Sprintf("dataset %s %s", was.Name, what),
		Consumers: readers}
	if len(readers) > 0 {
		f.Text += fmt.Sprintf(", but %s %s it%s", strings.Join(readers, ", "),
			plural.Word(len(readers), "reads", "read"), how)
		f.Breaking, f.Hint = true, "deploy those DAGs without that input first"
		if kind != DatasetRemoved {
			f.Hint = "keep the name, or " + f.Hint
		}
		f.Level, f.Consent = c.harm()
	}
	c.add(f)
}

// harm is the level of what is known to break somebody.
func (c *comparison) harm() (Level, Consent) {
	if c.facts.Back {
		return Asks, AllowBreaking
	}
	return Refuses, ""
}

// takeover says whose name a dataset takes.
func (c *comparison) takeover(now *Dataset) {
	if was := c.was[now.ID]; !now.Published || was != nil && was.Published && was.Name == now.Name {
		return
	}

	was, ok := c.facts.Taken[now.Name]
	f := Finding{Kind: NameTakenOver, Level: Says, Dataset: now.Name,
		Text: fmt.Sprintf("the name %s is taken over from DAG %s", now.Name, now.TakesOver)}
	if !ok {
		f.Text = fmt.Sprintf("the name %s is taken over from nobody: DAG %s serves nothing under it", now.Name,
			now.TakesOver)
	}
	if c.facts.Back && ok { // a document says so itself; whoever goes back may not know
		f.Level, f.Consent, f.Breaking = Asks, AllowMoves, true
		f.Text += ": whoever reads it by name gets other rows"
	}
	c.add(f)
	if ok {
		c.shape(&was, now)
		c.columns(&was, now)
	}
}

// elsewhere says which names of a version that goes on serving other DAGs have taken.
func (c *comparison) elsewhere() {
	for _, name := range slices.Sorted(maps.Keys(c.facts.Elsewhere)) {
		owner := c.facts.Elsewhere[name]
		c.add(Finding{Kind: NameElsewhere, Level: Says, Dataset: name,
			Text: fmt.Sprintf("the name %s belongs to DAG %s by now: whoever reads it by name gets the rows of %s. "+
				"Deploying the same document again does not take it back; a changed one does, if it says "+
				"`takes_over: %s`", name, owner, owner, owner)})
	}
}

// inputs says which names of other DAGs' datasets mean others than they meant to the version that serves.
func (c *comparison) inputs(was, now []Input) {
	type read struct{ job, as string }
	before := map[read]Input{}
	for _, in := range was {
		before[read{in.Job, in.As}] = in
	}
	for _, in := range now {
		if w, ok := before[read{in.Job, in.As}]; ok && w.Name == in.Name && w.Dataset != in.Dataset {
			text := fmt.Sprintf("%s, which job %s reads, is another dataset by now: that of %s, not of %s",
				in.Name, in.Job, in.Producer, w.Producer)
			c.add(Finding{Kind: InputRebound, Level: Says, Dataset: in.Name, Text: text})
		}
	}
}

// sources asks before a version serves whose jobs read what other DAGs have no more: none of their tasks would succeed.
func (c *comparison) sources(inputs []Input) {
	if c.facts.Sources == nil {
		return
	}
	for _, in := range inputs {
		f := Finding{Level: Asks, Consent: AllowBreaking, Dataset: in.Name, Breaking: true,
			Hint: "or deploy a document that does without it"}
		source, served := c.facts.Sources[in.Dataset]
		if !served {
			f.Kind = InputGone
			f.Text = fmt.Sprintf("job %s reads %s, which no DAG serves any more", in.Job, in.Name)
			c.add(f)
			continue
		}

		for _, name := range in.Columns {
			named := func(s dag.Column) bool { return sqltext.Same(s.Name, name) }
			if !slices.ContainsFunc(source.Columns, named) {
				f.Columns = append(f.Columns, name)
			}
		}
		if source.Columns != nil && len(f.Columns) > 0 {
			f.Kind = InputColumnsGone
			f.Text = fmt.Sprintf("job %s reads %s of %s, which it has no more", in.Job, listed("column", f.Columns),
				in.Name)
			c.add(f)
		}
	}
}

// shape compares partitioning and storage.
func (c *comparison) shape(was, now *Dataset) {
	unfit := slices.ContainsFunc(c.facts.Unfit, func(u Unfit) bool { return u.Dataset == was.ID })
	if !reflect.DeepEqual(was.PartitionBy, now.PartitionBy) && !unfit {
		text := fmt.Sprintf("dataset %s would have %s instead of %s", was.Name, now.PartitionBy, was.PartitionBy)
		c.add(Finding{Kind: PartitioningChanged, Level: Says, Dataset: was.Name, Breaking: true, Text: text,
			Consumers: c.readers(was.ID)})
	}
	if was.Storage != now.Storage {
		c.add(Finding{Kind: StorageMoved, Level: Says, Dataset: was.Name,
			Text: fmt.Sprintf("dataset %s would move from %s to %s storage", was.Name, was.Storage, now.Storage)})
	}
}

// keeper compares who answers for a published dataset, and what tells its rows apart.
func (c *comparison) keeper(was, now *Dataset) {
	if !was.Published || !now.Published {
		return
	}
	if was.Owner != now.Owner {
		c.add(Finding{Kind: OwnerChanged, Level: Says, Dataset: was.Name, Text: fmt.Sprintf(
			"dataset %s would belong to %s instead of %s", was.Name, cmp.Or(now.Owner, "nobody"),
			cmp.Or(was.Owner, "nobody"))})
	}
	if !slices.Equal(was.UniqueKey, now.UniqueKey) {
		c.add(Finding{Kind: UniqueKeyChanged, Level: Says, Dataset: was.Name, Columns: now.UniqueKey,
			Consumers: c.readers(was.ID), Text: fmt.Sprintf("dataset %s would have %s instead of %s", was.Name,
				keyed(now.UniqueKey), keyed(was.UniqueKey))})
	}
}

// keyed names a unique key.
func keyed(columns []string) string {
	if len(columns) == 0 {
		return "no unique key"
	}
	return "the unique key (" + strings.Join(columns, ", ") + ")"
}

// checks compares the checks that keep bad revisions from readers.
func (c *comparison) checks(was, now *Dataset) {
	added, removed := without(now.Checks, was.Checks), without(was.Checks, now.Checks)
	var fresh, changed []string
	for _, name := range added {
		if slices.Contains(removed, name) {
			changed = append(changed, name)
		} else {
			fresh = append(fresh, name)
		}
	}
	removed = slices.DeleteFunc(removed, func(name string) bool { return slices.Contains(changed, name) })

	if len(added) > 0 {
		how := []string{}
		if len(fresh) > 0 {
			how = append(how, fmt.Sprintf("by %s, too", strings.Join(fresh, ", ")))
		}
		if len(changed) > 0 {
			how = append(how, fmt.Sprintf("in another way by %s", strings.Join(changed, ", ")))
		}
		text := fmt.Sprintf("dataset %s would be checked %s", was.Name, strings.Join(how, ", and "))
		if was.Generation == now.Generation && holds(now.Checks, added) {
			text += ": what it has now is checked before the version serves"
		}
		c.add(Finding{Kind: ChecksAdded, Level: Says, Dataset: was.Name, Text: text})
	}
	if len(removed) > 0 {
		c.add(Finding{Kind: ChecksRemoved, Level: Says, Dataset: was.Name,
			Text: fmt.Sprintf("dataset %s would no longer be checked by %s", was.Name, strings.Join(removed, ", "))})
	}
}

// holds reports whether one of the named checks keeps revisions from readers. The others look at new revisions only.
func holds(checks []Check, names []string) bool {
	return slices.ContainsFunc(checks, func(c Check) bool {
		return c.Severity == "error" && slices.Contains(names, c.Name)
	})
}

// without returns the names of the checks in a that b does not have, with the same severity.
func without(a, b []Check) (names []string) {
	for _, check := range a {
		same := func(other Check) bool { return other.Hash == check.Hash && other.Severity == check.Severity }
		if !slices.ContainsFunc(b, same) {
			names = append(names, check.Name)
		}
	}
	return names
}

// columns compares the columns of a dataset, where both are known.
func (c *comparison) columns(was, now *Dataset) {
	if was.Columns == nil || now.Columns == nil {
		return
	}

	d := diffColumns(was.Columns, now.Columns)
	if len(d.added) > 0 {
		c.outgrown(Finding{Kind: ColumnsAdded, Dataset: was.Name, Columns: d.added,
			Text: fmt.Sprintf("dataset %s would gain %s", was.Name, listed("column", d.added))}, was.ID)
	}
	if columns, texts := split(d.widened); len(columns) > 0 {
		c.outgrown(Finding{Kind: ColumnsWidened, Dataset: was.Name, Columns: columns, Text: fmt.Sprintf(
			"dataset %s would have wider columns: %s", was.Name, strings.Join(texts, ", "))}, was.ID)
	}

	if len(d.removed) > 0 {
		c.missed(ColumnsRemoved, was, d.removed, fmt.Sprintf("dataset %s would lose %s", was.Name,
			listed("column", d.removed)))
	}
	if columns, texts := split(d.narrowed); len(columns) > 0 {
		c.missed(ColumnsNarrowed, was, columns, fmt.Sprintf("dataset %s would have columns of other types: %s",
			was.Name, strings.Join(texts, ", ")))
	}
}

// outgrown adds that columns come or get wider. That breaks nobody but jobs that write them to tables that they have
// already.
func (c *comparison) outgrown(f Finding, dataset uuid.UUID) {
	var stuck []string
	for _, consumer := range c.facts.Consumers[dataset] {
		reads := consumer.Columns == nil || slices.ContainsFunc(f.Columns, consumer.reads)
		if at := consumer.Address(); consumer.Fixed && reads && !slices.Contains(stuck, at) {
			stuck = append(stuck, at)
		}
	}

	f.Level = Says
	if len(stuck) > 0 {
		f.Level, f.Consent, f.Breaking, f.Consumers = Asks, AllowBreaking, true, stuck
		f.Text += fmt.Sprintf(", and the tables of %s cannot change with it", strings.Join(stuck, ", "))
		f.Hint = "if their queries pass the columns on, cast them there first, or agree and then compute those " +
			"datasets anew with `dagctl rematerialize`"
	}
	c.add(f)
}

// missed adds that columns go or change. A consumer that names one keeps a deploy from it; one that may read it makes
// it ask.
func (c *comparison) missed(kind Kind, was *Dataset, columns []string, text string) {
	var reads, may []string
	for _, consumer := range c.facts.Consumers[was.ID] {
		if consumer.Columns == nil {
			may = append(may, consumer.Address())
			continue
		}
		for _, column := range columns {
			if consumer.reads(column) {
				reads = append(reads, fmt.Sprintf("%s reads %s", consumer.Address(), column))
			}
		}
	}

	f := Finding{Kind: kind, Level: Says, Dataset: was.Name, Columns: columns, Text: text, Breaking: true}
	switch {
	case len(reads) > 0:
		f.Level, f.Consent = c.harm()
		f.Text += ", but " + strings.Join(reads, ", ")
		f.Hint = "deploy those DAGs without the column first"
	case len(may) > 0:
		f.Level, f.Consent = Asks, AllowBreaking
		f.Text += fmt.Sprintf(", and %s may read it", strings.Join(may, ", "))
		f.Hint = "a consumer whose query names its columns is known to do without the others"
	}
	f.Consumers = c.readers(was.ID)
	c.add(f)
}

package dag

import (
	"cmp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// link resolves the references between jobs and fills in what follows from them: output indices, strategies and
// partitionings. nodes holds the jobs' nodes, in the order of doc.Jobs. It reports whether there are no cycles.
func (d *decoder) link(doc *Document, nodes []value) (acyclic bool) {
	d.uniqueNames(doc, nodes)

	var queues []string
	for name, j := range d.jobs {
		if j.queue() {
			queues = append(queues, name)
		}
	}
	slices.Sort(queues)

	edges := map[string][]edge{}
	for i := range doc.Jobs {
		d.linkInputs(&doc.Jobs[i], nodes[i], edges)
		d.linkEnqueues(nodes[i], queues)
		d.linkChecks(&doc.Jobs[i], nodes[i])
	}

	// Jobs whose partitioning is unknown, because it follows from a dataset whose partitioning is, or because of a
	// problem that was reported already.
	unclear := map[string]bool{}
	doc.unclear = unclear

	order, acyclic := d.order(doc, edges)
	if !acyclic { // partitionings follow from upstream jobs, so those of a cycle cannot be checked
		for _, j := range doc.Jobs {
			unclear[j.Name] = true
		}
		return false
	}
	for _, i := range order {
		d.linkPartitions(&doc.Jobs[i], nodes[i], unclear)
		if !unclear[doc.Jobs[i].Name] {
			d.checkPartitions(&doc.Jobs[i], nodes[i], unclear)
		}
	}
	d.linkTargets(doc, nodes, unclear)
	return true
}

// edge is an input that leads to a job of this DAG.
type edge struct {
	from string
	node *yaml.Node
}

func (d *decoder) uniqueNames(doc *Document, nodes []value) {
	lines := map[string]int{}
	for i, v := range nodes {
		name := v.get("name")
		if !name.scalar() {
			continue
		}
		if first, ok := lines[doc.Jobs[i].Name]; ok {
			d.node(name.node, CodeDuplicate, "there are two jobs %q; the first is on line %d", doc.Jobs[i].Name, first)
			continue
		}
		lines[doc.Jobs[i].Name] = name.node.Line
	}

	former := map[string]bool{}
	for i, v := range nodes {
		name := doc.Jobs[i].RenamedFrom
		place := v.get("renamed_from").node
		switch _, exists := lines[name]; {
		case name == "":
		case exists:
			d.node(place, CodeConflict, "`renamed_from` names %q, which is a job of this file", name).
				suggest("leave it out once %s has served under its new name; two jobs swap their names by way of a "+
					"third one, each rename in a deploy of its own", doc.Jobs[i].Name)
		case former[name]:
			d.node(place, CodeDuplicate, "two jobs are renamed from %q", name)
		}
		former[name] = true
	}
}

func (d *decoder) linkInputs(j *Job, v value, edges map[string][]edge) {
	relations := map[string]bool{}
	for i, node := range v.get("inputs").items() {
		in := &j.Inputs[i]
		from := node.get("from")
		if in.Job != "" {
			if output, ok := d.output(from); ok {
				in.Output = output
				edges[j.Name] = append(edges[j.Name], edge{in.Job, from.get("job").node})
			}
		}

		// SQL engines ignore case in names.
		relation := strings.ToLower(in.As)
		place := cmp.Or(node.get("as").node, from.node, node.node)
		switch {
		case relation == "":
		case relations[relation]:
			d.node(place, CodeDuplicate, "two inputs of job %q have the relation name %q", j.Name, in.As).
				suggest("give one another name with `as`")
		case relation == "output":
			d.node(place, CodeConflict,
				"an input cannot have the relation name \"output\": checks use it for the output").
				suggest("give it another name with `as`")
		}
		relations[relation] = true
	}
}

func (d *decoder) linkEnqueues(v value, queues []string) {
	list := v.get("enqueues")
	d.distinct(list, "job")
	for _, item := range list.items() {
		if !item.scalar() {
			continue
		}

		switch target, ok := d.jobs[item.text()]; {
		case !ok:
			d.node(item.node, CodeReference, "there is no job %q", item.text()).
				nearest(item.text(), queues)
		case !target.queue():
			d.node(item.node, CodeReference,
				"job %q cannot be enqueued: its source is not of kind manual or timer", target.Name).
				nearest(item.text(), queues)
		}
	}
}

// queue reports whether the job's tasks are created by enqueueing them.
func (j *Job) queue() bool {
	return j.Source != nil && (j.Source.Kind == "manual" || j.Source.Kind == "timer")
}

// linkChecks resolves the inputs that relationships checks name.
func (d *decoder) linkChecks(j *Job, v value) {
	var relations []string
	for _, in := range j.Inputs {
		relations = append(relations, in.As)
	}
	for _, check := range v.get("checks").items() {
		input := check.get("relationships").get("to").get("input")
		if input.scalar() && !slices.Contains(relations, input.text()) {
			d.node(input.node, CodeReference, "job %q has no input %q", j.Name, input.text()).
				nearest(input.text(), relations)
		}
	}
}

// order sorts the jobs so that each comes after those it reads, and reports the cycles that forbid it.
func (d *decoder) order(doc *Document, edges map[string][]edge) (order []int, acyclic bool) {
	const (
		unseen = iota
		open
		done
	)
	index, state := make(map[string]int, len(doc.Jobs)), make(map[string]int, len(doc.Jobs))
	for i := range slices.Backward(doc.Jobs) {
		index[doc.Jobs[i].Name] = i
	}

	// A depth-first search: an edge to a job that is still open closes a cycle.
	acyclic = true
	var stack []string
	var visit func(name string)
	visit = func(name string) {
		state[name] = open
		stack = append(stack, name)
		for _, e := range edges[name] {
			switch state[e.from] {
			case unseen:
				visit(e.from)
			case open:
				acyclic = false
				// Show the cycle in the direction in which data flows.
				path := append(slices.Clone(stack[slices.Index(stack, e.from):]), e.from)
				slices.Reverse(path)
				d.node(e.node, CodeCycle, "jobs wait for each other: %s", strings.Join(path, " → "))
			}
		}
		stack = stack[:len(stack)-1]
		state[name] = done
		order = append(order, index[name])
	}

	for i := range doc.Jobs {
		if name := doc.Jobs[i].Name; state[name] == unseen {
			visit(name)
		}
	}
	return order, acyclic
}

// linkPartitions settles the strategy, trigger and partitioning of a job with inputs. Each follows from the inputs
// where the job does not state it. It also checks that the inputs' partitions lead to those of the outputs.
func (d *decoder) linkPartitions(j *Job, v value, unclear map[string]bool) {
	if j.Activation != ActivationReactive || !v.has("inputs") || v.has("source") {
		return
	}
	d.needsTrigger(j, v)

	inherited, known := d.inherited(j, unclear)
	strategy := v.get("execution_strategy")
	j.ExecutionStrategy = cmp.Or(ExecutionStrategy(strategy.text()), d.defaultStrategy(j, v, inherited, unclear))
	j.Trigger = cmp.Or(Trigger(v.get("trigger").text()), defaultTrigger(j.ExecutionStrategy))

	if !v.has("partition_by") && j.ExecutionStrategy == PerPartition {
		j.PartitionBy = inherited
	}
	if !known && !v.has("partition_by") && strategy.text() != string(PerUpdate) {
		unclear[j.Name] = true
		return
	}
	d.linkMappings(j, v, unclear)
}

// needsTrigger reports a job whose inputs never create a task.
func (d *decoder) needsTrigger(j *Job, v value) {
	if len(j.Inputs) > 0 && !slices.ContainsFunc(j.Inputs, Input.Triggers) {
		d.node(v.key("inputs"), CodeMapping,
			"nothing creates tasks for job %q: none of its inputs triggers it, and it has no `source`", j.Name).
			suggest("leave `map` out of one input; `map: latest` and `map: slice` read what another input's task needs")
	}
}

// defaultStrategy returns the strategy of a job that does not state one: PerPartition where its partitions have bounds
// of their own, which are made one by one, and no cursor triggers it.
func (d *decoder) defaultStrategy(
	j *Job, v value, inherited Partitioning, unclear map[string]bool,
) ExecutionStrategy {
	if j.Splits() {
		return PerUpdate
	}
	if !v.has("partition_by") {
		if fixed(inherited) {
			return PerPartition
		}
		return PerUpdate
	}

	followsCursor := func(in Input) bool {
		from, _ := d.upstream(in, unclear)
		return in.Triggers() && from.Kind == ByCursor
	}
	if fixed(j.PartitionBy) && !slices.ContainsFunc(j.Inputs, followsCursor) {
		return PerPartition
	}
	return PerUpdate
}

// defaultTrigger returns the trigger of a job that does not state one.
func defaultTrigger(strategy ExecutionStrategy) Trigger {
	switch strategy {
	case PerPartition:
		return TriggerAll
	case PerUpdate:
		return TriggerAny
	}
	return "" // the strategy is misspelled, which the grammar has reported
}

// linkMappings checks the mapping of each input, against the partitioning of what it reads where that is known.
func (d *decoder) linkMappings(j *Job, v value, unclear map[string]bool) {
	for i, node := range v.get("inputs").items() {
		in, from := j.Inputs[i], node.get("from")
		if in.Map.Window.misspelled() || j.PartitionBy.Unit.misspelled() {
			continue // the grammar has reported it
		}
		place, mismatch := cmp.Or(node.key("map"), node.node), j.mismatchOfAny(in)
		if upstream, known := d.upstream(in, unclear); known && mismatch == nil {
			place = cmp.Or(node.key("map"), from.get("job").node, from.get("dataset").node, node.node)
			mismatch = j.Mismatch(in, upstream)
		}
		if mismatch != nil {
			d.node(place, CodeMapping, "%s", mismatch.Text).Suggestion = mismatch.Suggestion
		}
	}
}

// inherited returns the partitioning of a job that does not state one: that of its first triggering input whose
// partitions are not wider than the job's, with the unit of that input's window if it has one. It reports whether that
// partitioning is known.
func (d *decoder) inherited(j *Job, unclear map[string]bool) (p Partitioning, known bool) {
	for i := range j.Inputs {
		in := &j.Inputs[i]
		if !in.Triggers() || in.Map.Kind == MapWithin { // its partitions are wider than the job's
			continue
		}
		p, known := d.upstream(*in, unclear)
		if in.Map.Window != "" && p.Kind == ByTime {
			p.Unit = in.Map.Window
		}
		return p, known
	}
	return Partitioning{}, true
}

// upstream returns the partitioning of what an input reads, and reports whether it is known.
func (d *decoder) upstream(in Input, unclear map[string]bool) (p Partitioning, known bool) {
	if in.PartitionBy != nil {
		return *in.PartitionBy, true
	}
	job, exists := d.jobs[in.Job]
	if !exists || in.Output >= len(job.Outputs) || unclear[in.Job] || job.PartitionBy.Unit.misspelled() {
		return Partitioning{}, false
	}
	return job.PartitionBy, true
}

// fixed reports whether partitions have bounds of their own, so that one can be computed without the others.
func fixed(p Partitioning) bool { return p.Kind == ByKey || p.Kind == ByTime || p.Kind == ByRange }

package dag

import (
	"cmp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// link resolves what jobs say of each other, and fills in what follows from it: output indices, strategies,
// partitionings. nodes are the jobs' nodes, in the order of doc.Jobs.
func (d *decoder) link(doc *Document, nodes []value) {
	d.uniqueNames(doc, nodes)
	edges := map[string][]edge{}
	var queues []string
	for name, j := range d.jobs {
		if j.queue() {
			queues = append(queues, name)
		}
	}
	slices.Sort(queues)
	for i := range doc.Jobs {
		d.linkInputs(&doc.Jobs[i], nodes[i], edges)
		d.linkEnqueues(nodes[i], queues)
		d.linkChecks(&doc.Jobs[i], nodes[i])
	}
	order, acyclic := d.order(doc, edges)
	if !acyclic {
		return // partitionings follow from upstream jobs, so in a cycle there is nothing to hold them against
	}
	unclear := map[string]bool{} // jobs whose partitioning is not known, because of a problem told already
	for _, i := range order {
		d.linkPartitions(&doc.Jobs[i], nodes[i], unclear)
	}
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
			d.node(place, CodeConflict, "`renamed_from` names %q, which is a job of this file", name)
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
		// SQL engines do not tell Capitals apart.
		relation := strings.ToLower(in.As)
		place := cmp.Or(node.get("as").node, from.node, node.node)
		switch {
		case relation == "":
		case relations[relation]:
			d.node(place, CodeDuplicate, "two inputs of job %q are the relation %q", j.Name, in.As).suggest("give one another name with `as`")
		case relation == "output":
			d.node(place, CodeConflict, "an input cannot be the relation \"output\": checks use that name").suggest("give it another name with `as`")
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
			d.node(item.node, CodeReference, "there is no job %q", item.text()).nearest(item.text(), queues)
		case !target.queue():
			d.node(item.node, CodeReference, "job %q cannot be enqueued: its source is not of kind manual or timer", target.Name).nearest(item.text(), queues)
		}
	}
}

// queue says whether tasks of the job are made by enqueueing them.
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
			d.node(input.node, CodeReference, "job %q has no input %q", j.Name, input.text()).nearest(input.text(), relations)
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
	index, state, stack := make(map[string]int, len(doc.Jobs)), make(map[string]int, len(doc.Jobs)), []string{}
	for i := range slices.Backward(doc.Jobs) {
		index[doc.Jobs[i].Name] = i
	}
	acyclic = true
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
				// Told in the direction in which data flows.
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

// linkPartitions settles a job's strategy and partitioning from its inputs, and checks that the inputs' partitions
// lead to those of its outputs.
func (d *decoder) linkPartitions(j *Job, v value, unclear map[string]bool) {
	if j.Activation != ActivationReactive || !v.has("inputs") || v.has("source") {
		return
	}
	if len(j.Inputs) > 0 && !slices.ContainsFunc(j.Inputs, func(in Input) bool { return in.Triggers() || in.Refresh }) {
		d.node(v.key("inputs"), CodeMapping, "nothing makes tasks of job %q: none of its inputs triggers", j.Name).
			suggest("leave `map` out of one, or add `refresh: true` to a `map: latest`")
	}
	inherited, from, known := d.inherited(j, unclear)

	strategy := v.get("execution_strategy")
	j.ExecutionStrategy = ExecutionStrategy(strategy.text())
	if j.ExecutionStrategy == "" {
		j.ExecutionStrategy = PerUpdate
		if fixed(j.PartitionBy) && !slices.ContainsFunc(j.Inputs, func(in Input) bool { return in.Triggers() && d.upstream(in).Kind == ByCursor }) ||
			!v.has("partition_by") && fixed(inherited) {
			j.ExecutionStrategy = PerPartition
		}
	}
	j.Trigger = Trigger(v.get("trigger").text())
	if j.Trigger == "" {
		j.Trigger = map[ExecutionStrategy]Trigger{PerPartition: TriggerAll, PerUpdate: TriggerAny}[j.ExecutionStrategy]
	}
	if j.ExecutionStrategy == PerPartition && !v.has("partition_by") {
		if from != nil && from.Job == "" {
			d.node(strategy.node, CodeMissing, "job %q needs `partition_by`: its first triggering input is a dataset of another DAG", j.Name).
				suggest("write down how its outputs are partitioned, such as `partition_by: { time: day }`")
			unclear[j.Name] = true
			return
		}
		if !known {
			unclear[j.Name] = true
			return
		}
		j.PartitionBy = inherited
	}
	for i, node := range v.get("inputs").items() {
		in := j.Inputs[i]
		if in.Dataset != "" || in.Job == "" || unclear[in.Job] {
			d.mapsAlone(node, in, j)
			continue
		}
		if upstream, ok := d.jobs[in.Job]; ok && in.Output < len(upstream.Outputs) {
			d.maps(node, in, upstream.PartitionBy, j)
		}
	}
}

// inherited is the partitioning that a job has if it says nothing: that of its first triggering input, at the width
// of its window.
func (d *decoder) inherited(j *Job, unclear map[string]bool) (p Partitioning, from *Input, known bool) {
	for i := range j.Inputs {
		in := &j.Inputs[i]
		if !in.Triggers() {
			continue
		}
		p := d.upstream(*in)
		if in.Map.Window != "" && p.Kind == ByTime {
			p.Unit = in.Map.Window
		}
		_, exists := d.jobs[in.Job]
		return p, in, exists && !unclear[in.Job]
	}
	return Partitioning{}, nil, true
}

func (d *decoder) upstream(in Input) Partitioning {
	if job, ok := d.jobs[in.Job]; ok {
		return job.PartitionBy
	}
	return Partitioning{}
}

// fixed says whether partitions have bounds of their own, so that one can be computed without the others.
func fixed(p Partitioning) bool { return p.Kind == ByKey || p.Kind == ByTime || p.Kind == ByRange }

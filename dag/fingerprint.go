package dag

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
)

// Fingerprint identifies what a job computes: two jobs of the same name with equal fingerprints have equal outputs.
type Fingerprint struct {
	// Value is jobs.fingerprint. It depends on the build epochs of the job and of all jobs upstream of it.
	Value string
	// Base is jobs.base_fingerprint: the fingerprint without any epoch. The build_epochs table is keyed by it.
	Base string
}

// ConfigHash returns dataset_versions.config_hash of an output.
func (f Fingerprint) ConfigHash(output int) string {
	return sha256Hex(fmt.Appendf(nil, "%s/%d", f.Value, output))
}

// ForwardOnly reports whether a changed definition of the job applies from cutover on and rebuilds nothing. That holds
// for jobs with external effects, including all jobs without outputs, and for sources whose past cannot be read again:
// the operator cannot enumerate it, or it came with requests or payloads or depended on the moment. A source that is
// asked for its partitions can be asked again.
func (j *Job) ForwardOnly(op OperatorSpec) bool {
	if j.Effect == EffectExternal || len(j.Outputs) == 0 {
		return true
	}
	if j.Asked() {
		return false
	}
	replays := []string{"cron", "poll", SourceDeploy}
	return j.Source != nil && (!op.Replayable || !slices.Contains(replays, j.Source.Kind))
}

// Identity returns what stays the same however often the job is renamed: as a rule, the name under which it was first
// deployed. A rename changes no fingerprint.
func (j *Job) Identity() string { return cmp.Or(j.GivenIdentity, j.RenamedFrom, j.Name) }

// Identify gives a job its identity.
func (j *Job) Identify(identity string) {
	j.GivenIdentity = ""
	if j.Identity() != identity {
		j.GivenIdentity = identity
	}
}

// Definitions holds the hash of each job of a document by itself. All fingerprints are computed from them, so that the
// long part of a job, its parsed queries, is encoded and hashed once.
type Definitions struct {
	local   map[string]string        // by job name
	reads   map[string][]upstream    // by job name: the jobs that the job's fingerprint depends on
	names   map[string][]string      // by job name: the datasets of other DAGs that it reads
	bound   map[string]string        // by name: the datasets of other DAGs
	columns map[string]*columnReader // by job name: those that are known to read columns by name
}

// Define hashes each job of a document by itself.
func Define(doc *Document, cat Catalog) (*Definitions, error) {
	jobs := make(map[string]*Job, len(doc.Jobs))
	for i := range doc.Jobs {
		jobs[doc.Jobs[i].Name] = &doc.Jobs[i]
	}

	d := &Definitions{local: make(map[string]string, len(jobs)), reads: make(map[string][]upstream, len(jobs)),
		names: map[string][]string{}, columns: map[string]*columnReader{}}
	contents := make(map[string]map[string]any, len(jobs))
	for name, job := range jobs {
		op, ok := cat.Operators[job.Operator]
		if !ok {
			return nil, fault.New(fault.Invalid, "fingerprint of job %q: there is no operator %q", name, job.Operator)
		}
		content, err := fingerprinted(job, op, jobs)
		if err != nil {
			return nil, err
		}
		text, err := canonicalJSON(content)
		if err != nil {
			return nil, fmt.Errorf("hash of job %s: %w", name, err)
		}
		d.local[name], contents[name] = sha256Hex(text), content

		if job.ForwardOnly(op) {
			continue // upstream jobs never cause it to be rebuilt
		}
		for i, in := range job.Inputs {
			if in.Job != "" {
				d.reads[name] = append(d.reads[name], upstream{i, in.Job, in.Output})
			} else {
				d.names[name] = append(d.names[name], in.Dataset)
			}
		}
	}
	return d, d.derive(doc, cat, contents)
}

// Bind says which datasets the names of other DAGs' datasets mean now. A job that reads one by a name that means
// another dataset than before computes something else.
func (d *Definitions) Bind(ids map[string]string) { d.bound = ids }

// Local returns the hash of a job by itself, without upstream jobs and epochs. If it is the same and the fingerprint is
// not, the change came from upstream or an epoch.
func (d *Definitions) Local(job string) string { return d.local[job] }

// Fingerprints returns the fingerprint of every job, by name. It is a Merkle hash: a job's fingerprint covers those of
// its upstream jobs, or, where it reads columns by name, the keys of those columns. So an edit changes exactly the jobs
// downstream of it that depend on what it changes. epochs are by job name; a missing one is 0.
func (d *Definitions) Fingerprints(epochs map[string]int) (map[string]Fingerprint, error) {
	value, base := d.hashes(epochs), d.hashes(nil)
	prints := make(map[string]Fingerprint, len(d.local))
	for name := range d.local {
		v, err := value.of(name, 0)
		if err != nil {
			return nil, err
		}
		b, err := base.of(name, 0)
		if err != nil {
			return nil, err
		}
		prints[name] = Fingerprint{Value: v.whole, Base: b.whole}
	}
	return prints, nil
}

// hashes computes the hashes of jobs for some epochs.
type hashes struct {
	*Definitions

	epochs map[string]int
	done   map[string]jobHash
}

// jobHash is the hash of a job as a whole and, where they are known, the keys of its outputs.
type jobHash struct {
	whole   string
	outputs []columnKeys
}

func (d *Definitions) hashes(epochs map[string]int) *hashes {
	return &hashes{d, epochs, make(map[string]jobHash, len(d.local))}
}

// of returns the hash of a job, after those of the jobs that it reads.
func (h *hashes) of(name string, depth int) (jobHash, error) {
	if known, ok := h.done[name]; ok {
		return known, nil
	}
	local, ok := h.local[name]
	if !ok || depth > len(h.local) {
		return jobHash{}, fault.New(fault.Internal, "fingerprint of job %q: the document was not made by Parse", name)
	}

	own := fmt.Appendf(nil, "%d", h.epochs[name])
	for _, dataset := range h.names[name] {
		if id := h.bound[dataset]; id != "" {
			own = fmt.Appendf(own, "/%s", id)
		}
	}
	text := fmt.Appendf(nil, "%s/%s", local, own)

	reader := h.columns[name]
	whole, keys := map[int]string{}, map[int]columnKeys{}
	for _, read := range h.reads[name] {
		up, err := h.of(read.job, depth+1)
		if err != nil {
			return jobHash{}, err
		}
		whole[read.index] = up.whole
		if reader == nil || reader.Reads[read.index] == nil {
			text = fmt.Appendf(text, "/%s", up.whole)
			continue
		}
		keys[read.index] = up.outputs[read.output]
		text = fmt.Appendf(text, "/%s", keys[read.index].of(reader.Reads[read.index]))
	}

	hash := jobHash{whole: sha256Hex(text)}
	if reader != nil {
		hash.outputs = reader.keyed(string(own), h.reads[name], whole, keys)
	}
	h.done[name] = hash
	return hash, nil
}

// fingerprinted returns the part of a job's own definition that its fingerprint covers. A change of any other field
// cannot cause a rebuild. TestFingerprintFields lists all fields.
func fingerprinted(j *Job, op OperatorSpec, jobs map[string]*Job) (map[string]any, error) {
	if j.ForwardOnly(op) {
		content := map[string]any{"name": j.Identity(), "outputs": j.Outputs, "partition_by": j.PartitionBy}
		if j.Splits() { // its first run is the whole truth about all partitions, so it begins with none
			content["split_by"] = j.SplitBy
		}
		return content, nil
	}
	return j.content(op, func(name string) string { return jobs[name].Identity() })
}

// SameContent reports whether two definitions of a job, by themselves, make the same outputs of the same inputs. It
// looks at everything, also in jobs whose changes rebuild nothing.
func (j *Job) SameContent(other *Job, op OperatorSpec) (bool, error) {
	var texts [2]string
	for i, job := range []*Job{j, other} {
		content, err := job.content(op, func(name string) string { return name })
		if err != nil {
			return false, err
		}
		text, err := canonicalJSON(content)
		if err != nil {
			return false, fmt.Errorf("content of job %s: %w", job.Name, err)
		}
		texts[i] = string(text)
	}
	return texts[0] == texts[1], nil
}

// content returns the part of a job's own definition that can change its outputs; identity names a job that it reads.
func (j *Job) content(op OperatorSpec, identity func(job string) string) (map[string]any, error) {
	config, err := j.outputConfig(op)
	if err != nil {
		return nil, err
	}

	inputs := make([]any, len(j.Inputs))
	for i, in := range j.Inputs {
		input := map[string]any{"as": in.As, "where": in.Where, "map": in.Map, "refresh": in.Refresh, "read": in.Read}
		if in.Job == "" {
			input["dataset"] = in.Dataset
		} else {
			input["job"], input["output"] = identity(in.Job), in.Output
		}
		inputs[i] = input
	}

	udf := ""
	if j.UDF != nil {
		udf = cmp.Or(j.UDF.Hash, j.UDF.Bundle) + ":" + j.UDF.Entrypoint
	}
	content := map[string]any{
		"operator":           j.Operator,
		"operator_version":   j.OperatorVersion,
		"code_version":       j.CodeVersion,
		"config":             config,
		"inputs":             inputs,
		"trigger":            j.Trigger,
		"execution_strategy": j.ExecutionStrategy,
		"update_strategy":    j.UpdateStrategy,
		"unique_key":         j.UniqueKey,
		"outputs":            j.Outputs,
		"partition_by":       j.PartitionBy,
		"storage":            j.Storage,
		"udf":                udf,
	}
	if j.StateKey != "" { // left out where it is not set, so that older jobs keep their fingerprints
		content["state_key"] = j.StateKey
	}
	if j.Splits() {
		content["split_by"] = j.SplitBy
	}
	return content, nil
}

// outputConfig returns the part of the config that can change an output, in the operator's canonical form.
func (j *Job) outputConfig(op OperatorSpec) (any, error) {
	config := maps.Clone(j.Config)
	for _, key := range op.Operational {
		delete(config, key)
	}
	if op.Canonical == nil {
		return config, nil
	}
	canonical, refused := op.Canonical(config)
	if refused != nil && refused.Unseen != nil {
		return nil, refused.Unseen
	}
	if refused != nil {
		return nil, fault.New(fault.Invalid, "fingerprint of job %q: %s", j.Name, refused.Message)
	}
	return canonical, nil
}

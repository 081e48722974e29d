package dag

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/dagctl/dagctl/internal/fault"
)

// Fingerprint identifies what a job computes: two jobs of one name with equal fingerprints have equal outputs.
type Fingerprint struct {
	// Value is jobs.fingerprint: it has the build epochs of the job and of all that is upstream of it.
	Value string
	// Base is the fingerprint without any epoch. The build_epochs table is keyed by it.
	Base string
}

// ConfigHash is dataset_versions.config_hash of an output.
func (f Fingerprint) ConfigHash(output int) string {
	return sha256Hex(fmt.Appendf(nil, "%s/%d", f.Value, output))
}

// ForwardOnly says that a changed definition of the job applies from cutover on and rebuilds nothing: jobs with effects
// outside, which are all that a job without outputs can have, and sources whose past cannot be read again, because the
// operator cannot enumerate it or because it came as requests, payloads or the moment.
func (j *Job) ForwardOnly(op OperatorSpec) bool {
	if j.Effect == EffectExternal || len(j.Outputs) == 0 {
		return true
	}
	return j.Source != nil && (!op.Replayable || j.Source.Kind != "cron" && j.Source.Kind != "poll")
}

// Identity is the name under which the job was first deployed. As long as `renamed_from` stays in the file, a rename
// changes no fingerprint.
func (j *Job) Identity() string { return cmp.Or(j.RenamedFrom, j.Name) }

// Fingerprints computes the fingerprint of every job, by name. It is a Merkle hash: a job's has its upstream jobs' in
// it, so an edit changes exactly what is downstream of it. epochs are by job name; what is missing is 0.
func Fingerprints(doc *Document, cat Catalog, epochs map[string]int) (map[string]Fingerprint, error) {
	raised, err := merkle(doc, cat, epochs)
	if err != nil {
		return nil, err
	}
	base, err := merkle(doc, cat, nil)
	if err != nil {
		return nil, err
	}
	fingerprints := make(map[string]Fingerprint, len(raised))
	for name, value := range raised {
		fingerprints[name] = Fingerprint{Value: value, Base: base[name]}
	}
	return fingerprints, nil
}

func merkle(doc *Document, cat Catalog, epochs map[string]int) (map[string]string, error) {
	hashes, jobs := make(map[string]string, len(doc.Jobs)), make(map[string]*Job, len(doc.Jobs))
	for i := range doc.Jobs {
		jobs[doc.Jobs[i].Name] = &doc.Jobs[i]
	}
	var hash func(name string, depth int) (string, error)
	hash = func(name string, depth int) (string, error) {
		if known, ok := hashes[name]; ok {
			return known, nil
		}
		job, ok := jobs[name]
		if !ok || depth > len(jobs) {
			return "", fault.New(fault.Internal, "fingerprint of job %q: the document was not made by Parse", name)
		}
		for _, in := range job.Inputs {
			if in.Job == "" {
				continue
			}
			if _, err := hash(in.Job, depth+1); err != nil {
				return "", err
			}
		}
		content, err := fingerprinted(job, cat, jobs, hashes)
		if err != nil {
			return "", err
		}
		content["epoch"] = epochs[name]
		text, err := canonicalJSON(content)
		if err != nil {
			return "", fmt.Errorf("fingerprint of job %s: %w", name, err)
		}
		hashes[name] = sha256Hex(text)
		return hashes[name], nil
	}
	for name := range jobs {
		if _, err := hash(name, 0); err != nil {
			return nil, err
		}
	}
	return hashes, nil
}

// fingerprinted is everything that a job's fingerprint is made of, its epoch apart. A field that is not here cannot
// cause a rebuild; TestFingerprintFields has them all.
func fingerprinted(j *Job, cat Catalog, jobs map[string]*Job, upstream map[string]string) (map[string]any, error) {
	op, ok := cat.Operators[j.Operator]
	if !ok {
		return nil, fault.New(fault.Invalid, "fingerprint of job %q: there is no operator %q", j.Name, j.Operator)
	}
	if j.ForwardOnly(op) {
		return map[string]any{"name": j.Identity(), "outputs": j.Outputs, "partition_by": j.PartitionBy}, nil
	}
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
			input["job"], input["output"], input["fingerprint"] = jobs[in.Job].Identity(), in.Output, upstream[in.Job]
		}
		inputs[i] = input
	}
	udf := ""
	if j.UDF != nil {
		udf = cmp.Or(j.UDF.Hash, j.UDF.Bundle) + ":" + j.UDF.Entrypoint
	}
	return map[string]any{
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
	}, nil
}

// outputConfig is the part of the config that can change an output, in the operator's canonical form.
func (j *Job) outputConfig(op OperatorSpec) (any, error) {
	config := maps.Clone(j.Config)
	for _, key := range op.Operational {
		delete(config, key)
	}
	if op.Canonical == nil {
		return config, nil
	}
	canonical, refused := op.Canonical(config)
	if refused != nil {
		return nil, fault.New(fault.Invalid, "fingerprint of job %q: %s", j.Name, refused.Message)
	}
	return canonical, nil
}

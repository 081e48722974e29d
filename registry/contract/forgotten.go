package contract

import (
	"fmt"
	"reflect"

	"github.com/dagctl/dagctl/dag"
)

// Forgotten says which jobs begin without the memory of what they have delivered: that belongs to the identity of a
// job, and next has a job of the same operator with another one. delivers reports whether an operator remembers.
func Forgotten(live, next []*dag.Job, delivers func(operator string) bool) (findings []Finding) {
	stays, known := map[string]bool{}, map[string]bool{}
	for _, job := range next {
		stays[job.Identity()] = true
	}
	for _, job := range live {
		known[job.Identity()] = true
	}

	for _, was := range live {
		if !delivers(was.Operator) || stays[was.Identity()] {
			continue
		}
		heir := heirOf(was, next, known)
		if heir == nil {
			continue
		}
		known[heir.Identity()] = true // one heir for each
		findings = append(findings, Finding{Kind: DeliveriesForgotten, Level: Says,
			Text: fmt.Sprintf("job %s is new: it does not know what job %s has delivered, and delivers again what it "+
				"reads. If it is the same job, `renamed_from: %s` keeps that", heir.Name, was.Name, was.Name),
			Hint: fmt.Sprintf("give job %s `renamed_from: %s`", heir.Name, was.Name)})
	}
	return findings
}

// heirOf returns the new job that is most like one that goes; nil: there is none of its operator.
func heirOf(was *dag.Job, next []*dag.Job, known map[string]bool) (heir *dag.Job) {
	for _, job := range next {
		if job.Operator != was.Operator || known[job.Identity()] {
			continue
		}
		if reflect.DeepEqual(job.Config, was.Config) {
			return job
		}
		if heir == nil {
			heir = job
		}
	}
	return heir
}

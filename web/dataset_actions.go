package web

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry/deploy"
)

// datasetOf returns the dataset that a form names, if the DAG's shown version makes it and the caller may read it.
func (s *Site) datasetOf(r *http.Request, caller authz.Caller) (string, error) {
	dag, name := r.PathValue("dag"), r.FormValue("dataset")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if err != nil {
		return "", err
	}
	for _, job := range detail.Jobs {
		for _, out := range job.Outputs {
			if name != "" && out.Dataset == name {
				return name, nil
			}
		}
	}
	return "", fault.New(fault.NotFound, "no job of %s makes a dataset %q that you may read", dag, name).
		WithHint("%s lists its datasets", dagPath(dag))
}

func (s *Site) askRematerialize(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	name, err := s.datasetOf(r, caller)
	if err != nil {
		return q, err
	}
	dry, err := s.Deployer.Rematerialize(r.Context(), caller, name, deploy.RematerializeRequest{DryRun: true})
	if err != nil {
		return q, err
	}

	base := 0
	if dry[0].Plan.Base != nil {
		base = *dry[0].Plan.Base
	}
	q.title, q.done = "Rematerialize "+name, new(string)
	q.view = confirmView{Says: "It and everything downstream of it in its DAG is computed anew as a new version, " +
		"beside what serves, which stays until that is ready.",
		Action: dagPath(dag, "rematerialize"), Button: "Rematerialize",
		Hidden: []hiddenField{{"dataset", name}, {"base", strconv.Itoa(base)}},
		Back:   dagPath(dag), Command: "dagctl rematerialize " + name}
	for _, m := range dry {
		boxes, says := agreement(m.Plan.Findings, m.Plan.Cancels)
		q.view.Agree, q.view.Effects = append(q.view.Agree, boxes...), append(q.view.Effects, says...)
		if m.Plan.Meets != nil {
			q.view.Effects = append(q.view.Effects, meeting(m.Plan.Meets))
		}
		q.view.Tables = append(q.view.Tables, planTable(m.Plan.Changes))
	}
	q.do = func(f form) error {
		seen, err := strconv.Atoi(f.Get("base"))
		if err != nil {
			return fault.New(fault.Invalid, "the form does not say which version served when its page was made").
				WithHint("load the page again, and send its form whole")
		}
		a := agreed(f)
		made, err := s.Deployer.Rematerialize(r.Context(), caller, name, deploy.RematerializeRequest{Base: &seen,
			CancelTasks: a.CancelTasks, AllowBreaking: a.AllowBreaking, AllowRemovals: a.AllowRemovals})
		if err == nil {
			*q.done = fmt.Sprintf("%s is being computed anew: v%d of %s.", name, made[0].Version.Number, dag)
		}
		return err
	}
	return q, nil
}

func (s *Site) askInvalidate(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	name, err := s.datasetOf(r, caller)
	if err != nil {
		return q, err
	}
	dataset, err := s.Registry.Dataset(r.Context(), caller, name)
	if err != nil {
		return q, err
	}

	q.title = "Invalidate " + name
	q.view = confirmView{
		Says: "Everything that was made from its partitions, directly or not, is computed again in place.",
		Effects: []string{fmt.Sprintf("It has %s. Name a first and a last one to invalidate only these.",
			count(dataset.Partitions, "partition"))},
		Fields: []askedField{
			{Label: "First partition", Name: "from", Value: r.FormValue("from"), Placeholder: "the first"},
			{Label: "Last partition", Name: "to", Value: r.FormValue("to"), Placeholder: "the last"}},
		Action: dagPath(dag, "invalidate"), Hidden: []hiddenField{{"dataset", name}}, Button: "Invalidate",
		Danger: true, Back: dagPath(dag), Command: "dagctl invalidate " + name}
	q.do = func(f form) error {
		request := dispatcher.InvalidateRequest{From: f.Get("from"), To: f.Get("to"), Reason: "manual"}
		_, err := s.Dispatcher.Invalidate(r.Context(), caller, name, request, clock.Now())
		return err
	}
	return q, nil
}

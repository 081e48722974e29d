package notices

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/dispatcher/notices/formats"
	"github.com/dagctl/dagctl/internal/plural"
)

// message returns a notice as people read it.
func (p payload) message() formats.Message {
	n, data := p.Notice, p.Notice.Data
	topic, _, _ := strings.Cut(p.Topic, " ")
	m := formats.Message{ID: n.ID, Topic: topic, State: formats.Trouble, Kind: n.Type, Severity: "error",
		Source: data.Org + "/" + data.DAG, Part: data.Job, Title: n.title(), Text: data.Error, Link: data.Link,
		At: n.At}
	if data.Dataset != "" {
		m.Part = data.Dataset
	}

	switch n.Type {
	case noticeOver:
		m.State, m.Kind = formats.Over, data.Over
	case noticeTest:
		m.State, m.Kind, m.Topic = formats.Test, "", "dagctl/"+data.Org+"/"+data.DAG+"/test"
		m.Text = "Notices of this DAG arrive here. Nothing is wrong."
	case noticeDead, noticeFailedDeploy:
		m.Severity = "critical"
	}
	m.Facts = n.facts()
	return m
}

// title says in one line what has happened.
func (n Notice) title() string {
	data := n.Data
	job := data.DAG + "/" + data.Job
	kind := n.Type
	if n.Type == noticeOver {
		kind = "over " + data.Over
	}

	switch kind {
	case noticeDead:
		return plural.Or(max(data.Count, 1), "task of "+job+" is", "tasks of "+job+" are") + " out of attempts"
	case noticeLate:
		if data.Partition != "" {
			return fmt.Sprintf("%s is late: partition %s is missing", data.Dataset, data.Partition)
		}
		return data.Dataset + " is late"
	case noticeFailedDeploy:
		return fmt.Sprintf("%s v%d could not be built", data.DAG, data.Version)
	case noticeFailedCheck:
		return fmt.Sprintf("%s of %s did not pass", strings.Join(n.checks(), ", "), job)
	case noticeTest:
		return "A test message of " + data.DAG
	case "over " + noticeDead:
		return "Over: no task of " + job + " is out of attempts any more"
	case "over " + noticeLate:
		return "Over: " + data.Dataset + " is not late any more"
	case "over " + noticeFailedDeploy:
		return fmt.Sprintf("Over: %s was deployed after v%d had failed", data.DAG, data.Version)
	case "over " + noticeFailedCheck:
		return "Over: the checks of " + job + " pass again"
	}
	return kind + " of " + data.DAG
}

// checks names the checks that did not pass.
func (n Notice) checks() (names []string) {
	for _, c := range n.Data.Checks {
		names = append(names, "check "+c.Name)
	}
	return names
}

// facts returns what else a notice says.
func (n Notice) facts() (list []formats.Fact) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, formats.Fact{Name: name, Value: value})
		}
	}

	data := n.Data
	add("Org", data.Org)
	add("DAG", data.DAG)
	add("Job", data.Job)
	add("Dataset", data.Dataset)
	if n.Type == noticeDead {
		if data.Count > 1 {
			add("Tasks", fmt.Sprint(data.Count))
			add("The newest", data.TaskID.String())
		} else if data.TaskID != nil {
			add("Task", data.TaskID.String())
		}
		add("Ended by", data.Reason)
	}
	if data.DueAt != nil {
		add("Due", data.DueAt.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	for _, c := range data.Checks {
		found := cmp.Or(c.Found, plural.Of(c.Failures, "row")) // notices of a server before have none
		add("Check "+c.Name, found+", "+c.Severity)
	}
	return list
}

// link returns the page that says more.
func (n *Notices) link(of Notice) string {
	if n.base == "" {
		return ""
	}

	data := of.Data
	switch {
	case of.Type == noticeDead && data.Count > 1:
		return n.base + "/dead?" + url.Values{"dag": {data.DAG}, "job": {data.Job}}.Encode()
	case (of.Type == noticeDead || of.Type == noticeFailedCheck) && data.TaskID != nil:
		return n.base + "/tasks/" + data.TaskID.String()
	case data.Dataset != "":
		return n.base + "/datasets/" + url.PathEscape(data.Dataset)
	case data.Version > 0:
		return fmt.Sprintf("%s/dags/%s/versions/%d", n.base, url.PathEscape(data.DAG), data.Version)
	case data.Job != "":
		return n.base + "/dags/" + url.PathEscape(data.DAG) + "/jobs/" + url.PathEscape(data.Job)
	}
	return n.base + "/dags/" + url.PathEscape(data.DAG)
}

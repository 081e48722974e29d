package deploy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

func TestIdentities(t *testing.T) {
	t.Parallel()
	type names = map[string]string
	type had = map[string][]string
	for name, c := range map[string]struct {
		jobs []dag.Job
		past pastJobs
		want names
	}{
		"nothing served": {[]dag.Job{{Name: "a"}, {Name: "c", RenamedFrom: "b"}}, pastJobs{},
			names{"a": "a", "c": "c"}},
		"the same name": {[]dag.Job{{Name: "b"}}, pastJobs{serving: names{"b": "a"}}, names{"b": "a"}},
		"a rename": {[]dag.Job{{Name: "c", RenamedFrom: "b"}},
			pastJobs{serving: names{"b": "a"}}, names{"c": "a"}},
		"a rename that served": {[]dag.Job{{Name: "c", RenamedFrom: "b"}},
			pastJobs{serving: names{"c": "a", "b": "b"}}, names{"c": "a"}},
		"from a name before the last": {[]dag.Job{{Name: "d", RenamedFrom: "b"}},
			pastJobs{serving: names{"c": "a"}, had: had{"b": {"a"}}}, names{"d": "a"}},
		"a new job under an old name": {[]dag.Job{{Name: "a"}, {Name: "b"}},
			pastJobs{serving: names{"b": "a"}, had: had{"a": {"a"}}}, names{"a": "a~2", "b": "a"}},
		"another one": {[]dag.Job{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			pastJobs{serving: names{"b": "a", "c": "a~2"}, had: had{"a": {"a~2", "a"}}},
			names{"a": "a~3", "b": "a", "c": "a~2"}},
		"a job that comes back": {[]dag.Job{{Name: "a"}, {Name: "b"}},
			pastJobs{serving: names{"b": "b"}, had: had{"a": {"a~2", "a"}}}, names{"a": "a~2", "b": "b"}},
		"the old name without a line": {[]dag.Job{{Name: "a"}},
			pastJobs{serving: names{"b": "a"}, had: had{"a": {"a"}}}, names{"a": "a"}},
		"a file that served": {[]dag.Job{{Name: "a"}, {Name: "b"}},
			pastJobs{same: names{"a": "a~2", "b": "a"}, serving: names{"a": "a"}}, names{"a": "a~2", "b": "a"}},
	} {
		require.Equal(t, c.want, identities(c.jobs, c.past), name)
	}
}

func TestRenamesOfNothingAreSaid(t *testing.T) {
	t.Parallel()
	type names = map[string]string
	for name, c := range map[string]struct {
		jobs []dag.Job
		past pastJobs
		want []string
	}{
		"nothing serves yet": {[]dag.Job{{Name: "b", RenamedFrom: "a"}}, pastJobs{}, nil},
		"a rename": {[]dag.Job{{Name: "b", RenamedFrom: "a"}},
			pastJobs{serving: names{"a": "a"}, had: map[string][]string{"a": {"a"}}}, nil},
		"one that served": {[]dag.Job{{Name: "b", RenamedFrom: "a"}}, pastJobs{serving: names{"b": "a"}}, nil},
		"a file that served": {[]dag.Job{{Name: "b", RenamedFrom: "a"}},
			pastJobs{same: names{"b": "b"}, serving: names{"c": "c"}}, nil},
		"a job that comes back": {[]dag.Job{{Name: "b", RenamedFrom: "a"}},
			pastJobs{serving: names{"c": "c"}, had: map[string][]string{"b": {"b"}}}, nil},
		"a job that comes back under another name": {[]dag.Job{{Name: "b", RenamedFrom: "a"}},
			pastJobs{serving: names{"c": "c"}, had: map[string][]string{"a": {"a"}}}, nil},
		"mistyped": {[]dag.Job{{Name: "best", RenamedFrom: "rankin"}, {Name: "raw"}},
			pastJobs{serving: names{"ranking": "ranking", "daily": "daily", "raw": "raw"}},
			[]string{"job best is new: no version that has served has a job rankin, which `renamed_from` names; " +
				"write `renamed_from: ranking` if it is that job, or leave it out"}},
		"one of several": {[]dag.Job{{Name: "best", RenamedFrom: "x"}},
			pastJobs{serving: names{"ranking": "ranking", "daily": "daily"}},
			[]string{"job best is new: no version that has served has a job x, which `renamed_from` names; write the " +
				"name that the job serves under, or leave `renamed_from` out; of those that serve, these are not in " +
				"the file: daily, ranking"}},
		"none is left": {[]dag.Job{{Name: "best", RenamedFrom: "x"}, {Name: "raw"}},
			pastJobs{serving: names{"raw": "raw"}},
			[]string{"job best is new: no version that has served has a job x, which `renamed_from` names; " +
				"leave `renamed_from` out: all jobs that serve go on in this file"}},
		"two from one": {[]dag.Job{{Name: "b", RenamedFrom: "a"}, {Name: "c", RenamedFrom: "a"}},
			pastJobs{serving: names{"a": "a"}, had: map[string][]string{"a": {"a"}}},
			[]string{"job c is new: the job that was called a goes on as b; " +
				"leave `renamed_from` out: all jobs that serve go on in this file"}},
		"a name before the last": {[]dag.Job{{Name: "c"}, {Name: "d", RenamedFrom: "a"}},
			pastJobs{serving: names{"c": "a"}, had: map[string][]string{"a": {"a"}}},
			[]string{"job d is new: the job that was called a goes on as c; " +
				"leave `renamed_from` out: all jobs that serve go on in this file"}},
		"onto a job that serves": {[]dag.Job{{Name: "b", RenamedFrom: "a"}},
			pastJobs{serving: names{"a": "a", "b": "b"}},
			[]string{"job b serves and stays the job that it is: `renamed_from: a` changes nothing, and job a goes; " +
				"leave `renamed_from` out; or, if a is to go on as b, first deploy without job b"}},
	} {
		var says []string
		for _, f := range renamesNothing(c.jobs, identities(c.jobs, c.past), c.past) {
			says = append(says, f.Text+"; "+f.Hint)
		}
		require.Equal(t, c.want, says, name)
	}
}

func TestRenamings(t *testing.T) {
	t.Parallel()
	version := func(jobs ...string) (made []*registry.Job) {
		for i := 0; i < len(jobs); i += 2 {
			job := &registry.Job{}
			job.Name, job.Def.Name = jobs[i], jobs[i]
			job.Def.Identify(jobs[i+1])
			made = append(made, job)
		}
		return made
	}
	for name, c := range map[string]struct {
		before, after []*registry.Job
		want          []Renaming
	}{
		"none":   {version("a", "a", "b", "b"), version("a", "a"), nil},
		"one":    {version("a", "a"), version("b", "a"), []Renaming{{"a", "b"}, {"b", "~b"}}},
		"a swap": {version("a", "1", "b", "2"), version("a", "2", "b", "1"), []Renaming{{"b", "a"}, {"a", "b"}}},
		"a name is taken from a job that goes": {version("a", "1", "b", "2"), version("a", "2"),
			[]Renaming{{"b", "a"}, {"a", "~1"}}},
		"and it comes back": {version("a", "2"), version("a", "1", "b", "2"),
			[]Renaming{{"~1", "a"}, {"a", "b"}, {"b", "~b"}}},
	} {
		require.Equal(t, c.want, Renamings(c.before, c.after), name)
	}
}

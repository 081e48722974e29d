package deploy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/spelling"
	"github.com/dagctl/dagctl/registry/contract"
)

// What a job has computed and remembers belongs to its identity: datasets, operator state, tasks, deliveries, epochs. A
// deploy decides here, and nowhere else, which identity each job of its document has. The name in the file is looked up
// in what has served. A rename names the predecessor, and so it need not stay in the file after it has served.

// errIdentitiesChanged reports that another deploy was cut over to after the document was parsed.
var errIdentitiesChanged = fault.New(fault.Conflict, "other versions of the DAG are being deployed").
	WithHint("deploy again")

// pastJobs are the identities of jobs in versions of a DAG that have served.
type pastJobs struct {
	same    map[string]string   // by name, in the latest version of the very same file
	serving map[string]string   // by name, in the version that serves
	had     map[string][]string // by name: those that had it, the latest first
}

// identities decides which identity each job has, by name. The file of a version that has served means the same jobs
// again. Otherwise a job that is renamed is the one that serves under the old name, and a job whose name serves is that
// one. Any other job is the last one that had its name, or else its former name, unless that goes on under another
// name; if there is none, it is new. It is pure.
func identities(jobs []dag.Job, past pastJobs) map[string]string {
	found, taken := map[string]string{}, map[string]bool{}
	give := func(job string, candidates ...string) {
		if found[job] != "" {
			return
		}
		if i := slices.IndexFunc(candidates, func(id string) bool { return id != "" && !taken[id] }); i >= 0 {
			found[job], taken[candidates[i]] = candidates[i], true
		}
	}

	for _, job := range jobs {
		give(job.Name, past.same[job.Name])
	}
	for _, job := range jobs {
		if past.serving[job.Name] == "" {
			give(job.Name, past.serving[job.RenamedFrom])
		}
	}
	for _, job := range jobs {
		give(job.Name, past.serving[job.Name])
	}
	for _, job := range jobs {
		give(job.Name, past.had[job.Name]...)
	}
	for _, job := range jobs {
		give(job.Name, past.had[job.RenamedFrom]...)
	}
	for _, job := range jobs {
		identity := job.Name
		for n := 2; taken[identity] || slices.Contains(past.had[job.Name], identity); n++ {
			identity = fmt.Sprintf("%s~%d", job.Name, n) // which is no name of a job
		}
		give(job.Name, identity)
	}
	return found
}

// identifyJobs gives the jobs of a document their identities.
func (dp *Deployer) identifyJobs(ctx context.Context, org uuid.UUID, doc *dag.Document, text string) error {
	return pg.InOrgTx(ctx, dp.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		past, err := readPast(ctx, tx, org, doc, text)
		if err != nil {
			return err
		}
		found := identities(doc.Jobs, past)
		for i := range doc.Jobs {
			doc.Jobs[i].Identify(found[doc.Jobs[i].Name])
		}
		return nil
	})
}

// sameIdentities returns errIdentitiesChanged where a job of the document would get another identity by now.
func (d *deploy) sameIdentities(ctx context.Context, tx pgx.Tx) error {
	past, err := readPast(ctx, tx, d.caller.OrgID, d.doc, d.req.YAML)
	if err != nil {
		return err
	}
	found := identities(d.doc.Jobs, past)
	for i := range d.doc.Jobs {
		if job := &d.doc.Jobs[i]; job.Identity() != found[job.Name] {
			return errIdentitiesChanged
		}
	}
	d.inVain = renamesNothing(d.doc.Jobs, found, past)
	return nil
}

// renamesNothing says which jobs have a `renamed_from` that does not make them the job they name. It is silent where
// the line has done its work, where a job comes back, and where nothing serves, as in an installation that is new. It
// is pure.
func renamesNothing(jobs []dag.Job, found map[string]string, past pastJobs) (findings []contract.Finding) {
	if len(past.serving) == 0 {
		return nil
	}
	goesOn := map[string]string{} // by identity: the name that it is to have
	for name, identity := range found {
		goesOn[identity] = name
	}
	var ends []string
	for name, identity := range past.serving {
		if goesOn[identity] == "" {
			ends = append(ends, name)
		}
	}
	slices.Sort(ends)

	for _, job := range jobs {
		identity, from := found[job.Name], job.RenamedFrom
		comesBack := slices.Contains(past.had[job.Name], identity) || slices.Contains(past.had[from], identity)
		if from == "" || past.same[job.Name] != "" || comesBack {
			continue
		}
		f := contract.Finding{Kind: contract.RenamesNothing, Level: contract.Says}
		switch serves := past.serving[job.Name]; {
		case serves == identity && slices.Contains(ends, from):
			f.Text = fmt.Sprintf("job %s serves and stays the job that it is: `renamed_from: %s` changes nothing, and "+
				"job %s goes", job.Name, from, from)
			f.Hint = fmt.Sprintf("leave `renamed_from` out; or, if %s is to go on as %s, first deploy without job %s",
				from, job.Name, job.Name)
		case serves == identity || past.serving[from] == identity:
			continue
		default:
			f.Text, f.Hint = newInstead(job, goesOn, ends, past)
		}
		findings = append(findings, f)
	}
	return findings
}

// newInstead says why a job is new although it has a `renamed_from`, and what to do about it. Ends are the jobs that
// serve and do not go on.
func newInstead(job dag.Job, goesOn map[string]string, ends []string, past pastJobs) (text, hint string) {
	text = fmt.Sprintf("job %s is new: no version that has served has a job %s, which `renamed_from` names", job.Name,
		job.RenamedFrom)
	for _, identity := range append([]string{past.serving[job.RenamedFrom]}, past.had[job.RenamedFrom]...) {
		if now := goesOn[identity]; now != "" {
			text = fmt.Sprintf("job %s is new: the job that was called %s goes on as %s", job.Name, job.RenamedFrom,
				now)
			break
		}
	}

	if len(ends) == 0 {
		return text, "leave `renamed_from` out: all jobs that serve go on in this file"
	}
	if near := spelling.Nearest(job.RenamedFrom, ends); near != "" || len(ends) == 1 {
		return text, fmt.Sprintf("write `renamed_from: %s` if it is that job, or leave it out", cmp.Or(near, ends[0]))
	}
	return text, "write the name that the job serves under, or leave `renamed_from` out; of those that serve, these " +
		"are not in the file: " + strings.Join(ends[:min(len(ends), 10)], ", ")
}

// readPast reads what the identities of a document's jobs follow from. It looks into the past of names only where they
// do not serve.
func readPast(ctx context.Context, tx pgx.Tx, org uuid.UUID, doc *dag.Document, text string) (pastJobs, error) {
	past := pastJobs{same: map[string]string{}, serving: map[string]string{}, had: map[string][]string{}}
	var (
		name, identity string
		serves, same   bool
	)
	rows, err := tx.Query(ctx, `
		WITH serving AS (SELECT dag_version_id AS id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2),
		same AS (
			SELECT v.id FROM dag_versions v
			WHERE v.org_id = $1 AND v.dag_name = $2 AND v.source_hash = $3 AND v.activated_at IS NOT NULL
			ORDER BY v.id IN (SELECT id FROM serving) DESC, v.number DESC LIMIT 1)
		SELECT name, identity, dag_version_id IN (SELECT id FROM serving), dag_version_id IN (SELECT id FROM same)
		FROM jobs WHERE dag_version_id IN (SELECT id FROM serving UNION SELECT id FROM same)`,
		org, doc.Name, dag.SourceHash([]byte(text)))
	if err != nil {
		return past, fmt.Errorf("jobs of %s that served: %w", doc.Name, err)
	}
	if _, err := pgx.ForEachRow(rows, []any{&name, &identity, &serves, &same}, func() error {
		if serves {
			past.serving[name] = identity
		}
		if same {
			past.same[name] = identity
		}
		return nil
	}); err != nil {
		return past, fmt.Errorf("jobs of %s that served: %w", doc.Name, err)
	}

	var unknown []string
	for _, job := range doc.Jobs {
		if past.same[job.Name] == "" && past.serving[job.Name] == "" {
			unknown = append(unknown, job.Name, job.RenamedFrom)
		}
	}
	if len(unknown) == 0 {
		return past, nil
	}

	// By the key (dag_version_id, name) of jobs, for each version that has served.
	rows, err = tx.Query(ctx, `
		SELECT j.name, j.identity FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id
		WHERE v.org_id = $1 AND v.dag_name = $2 AND v.activated_at IS NOT NULL AND j.name = ANY($3)
		GROUP BY j.name, j.identity ORDER BY max(v.activated_at) DESC, max(v.number) DESC`, org, doc.Name, unknown)
	if err != nil {
		return past, fmt.Errorf("former jobs of %s: %w", doc.Name, err)
	}
	_, err = pgx.ForEachRow(rows, []any{&name, &identity}, func() error {
		past.had[name] = append(past.had[name], identity)
		return nil
	})
	return past, fault.Wrap(err, "former jobs of "+doc.Name)
}

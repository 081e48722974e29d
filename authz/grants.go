package authz

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
)

// A grant lets the program of a job have a secret: DAG/JOB@PROGRAM. It holds for that one program, so that nobody who
// may only change the job makes another program of it that gets the secret as well. A job may have several grants:
// while a new program is built, the old one serves.

// Programs returns the hash of the program that each job of a DAG runs, by DAG/JOB, as its active version has it, or
// else its newest; for a job without a program it is empty.
type Programs func(ctx context.Context, tx pgx.Tx, org uuid.UUID, dag string) (map[string]string, error)

// SecretUser is what uses a secret: a job, DAG/JOB, with the hash of its program, or a DAG's notifications, DAG.
type SecretUser struct {
	Name    string
	Program string // empty: it runs none
}

// grant returns the grant for a user's program.
func (u SecretUser) grant() string { return u.Name + "@" + u.Program }

// bind says how an admin sets a secret and lets the user have it.
func (u SecretUser) bind(name string) string {
	if u.Program != "" {
		return fmt.Sprintf("an admin sets it with `dagctl secrets set %[1]s` and grants it to this program with "+
			"`dagctl secrets bind %[1]s --program %[2]s`", name, u.grant())
	}
	return fmt.Sprintf("an admin sets it with `dagctl secrets set %[1]s` and binds it with "+
		"`dagctl secrets bind %[1]s --job %[2]s`", name, u.Name)
}

// jobOf returns the DAG/JOB of a grant.
func jobOf(grant string) string {
	job, _, _ := strings.Cut(grant, "@")
	return job
}

// value returns a text of the secret as a user may have it.
func (s Secret) value(text string, by SecretUser) secret.Value {
	v := secret.New(s.Name, text, s.Hosts)
	switch {
	case by.Program == "":
		return v
	case slices.Contains(s.Programs, by.grant()):
		return v.Granted()
	}
	another := slices.ContainsFunc(s.Programs, func(g string) bool { return jobOf(g) == by.Name })
	return v.Refused(by.grant(), another)
}

// grants completes what an admin wants to grant: a job without a program's hash means the program that it runs now.
func (v *Vault) grants(ctx context.Context, tx pgx.Tx, org uuid.UUID, wanted []string) (grants []string, err error) {
	for _, want := range wanted {
		if strings.Contains(want, "@") {
			grants = append(grants, want)
			continue
		}
		dag, _, _ := strings.Cut(want, "/")
		programs, err := v.programs(ctx, tx, org, dag)
		if err != nil {
			return nil, err
		}

		program, there := programs[want]
		jobs := strings.Join(slices.Sorted(maps.Keys(programs)), ", ")
		switch {
		case !there && jobs == "":
			return nil, fault.New(fault.NotFound, "there is no job %s: no DAG %s is deployed", want, dag).
				WithHint("plan it: the error names its program, as DAG/JOB@PROGRAM, which can be granted before it " +
					"is deployed")
		case !there:
			return nil, fault.New(fault.NotFound, "there is no job %s: the jobs of that DAG are %s", want, jobs).
				WithHint("plan a DAG with a new job: the error names its program, as DAG/JOB@PROGRAM")
		case program == "":
			return nil, fault.New(fault.Invalid, "%s runs no program", want).
				WithHint("`--job %s` and `--host` bind the secret to it", want)
		}
		grants = append(grants, SecretUser{want, program}.grant())
	}
	return grants, nil
}

// regranted returns the grants after a change, sorted. Whoever takes a job from a secret, or its program without naming
// which, takes all of its grants.
func regranted(before, add []string, b Binding) []string {
	remove := append(slices.Clone(b.RemovePrograms), b.RemoveJobs...)
	after := slices.DeleteFunc(append(slices.Clone(before), add...), func(g string) bool {
		return slices.Contains(remove, g) || slices.Contains(remove, jobOf(g))
	})
	slices.Sort(after)
	return slices.Compact(after)
}

// rebound returns the jobs after a change, sorted. A job whose last grant is taken is not bound any more.
func rebound(before Secret, programs []string, b Binding) []string {
	remove := slices.Clone(b.RemoveJobs)
	for _, g := range b.RemovePrograms {
		if !slices.ContainsFunc(programs, func(left string) bool { return jobOf(left) == jobOf(g) }) {
			remove = append(remove, jobOf(g))
		}
	}

	add := slices.Clone(b.AddJobs)
	for _, g := range b.AddPrograms {
		add = append(add, jobOf(g))
	}
	return changed(before.Jobs, add, remove)
}

// checkRemoved returns an error if something is to be taken away that the secret does not have.
func (b Binding) checkRemoved(s Secret) error {
	for _, part := range []struct {
		what         string
		remove, have []string
		is           func(have string) string
	}{
		{"job", b.RemoveJobs, s.Jobs, func(have string) string { return have }},
		{"host", b.RemoveHosts, s.Hosts, func(have string) string { return have }},
		{"program", b.RemovePrograms, s.Programs, jobOf},
	} {
		for _, name := range part.remove {
			if slices.ContainsFunc(part.have, func(have string) bool { return have == name || part.is(have) == name }) {
				continue
			}

			has := "none"
			if len(part.have) > 0 {
				has = strings.Join(part.have, ", ")
			}
			return fault.New(fault.NotFound, "secret %s is not bound to the %s %s: it has %s", s.Name, part.what, name,
				has).WithHint("take one of those away: `dagctl secrets bind %s --%s NAME --remove`", s.Name, part.what)
		}
	}
	return nil
}

// validProgram returns an error unless a text is DAG/JOB or DAG/JOB@PROGRAM.
func validProgram(text string) error {
	job, program, named := strings.Cut(text, "@")
	if !goodSecretUser.MatchString(job) || !strings.Contains(job, "/") || named && !goodProgram.MatchString(program) {
		return fmt.Errorf("%q is neither DAG/JOB nor DAG/JOB@PROGRAM", text)
	}
	return nil
}

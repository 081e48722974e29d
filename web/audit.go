package web

import (
	"context"
	"html/template"
	"net/http"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// auditView is a page of the audit log.
type auditView struct {
	Actor, Action, Object, Since string // as the form has them
	Entries                      []authz.AuditEntry
	Next                         template.URL // query of the next page; empty on the last page
	Wrong                        *rest.Problem
}

func (a *Access) audit(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	v := auditView{Actor: q.Get("actor"), Action: q.Get("action"), Object: q.Get("object"), Since: q.Get("since")}
	list, err := a.auditEntries(r.Context(), caller, v, pageOf(r))
	if v.Wrong = wrongWith(err); v.Wrong == nil && err != nil {
		return err
	}
	v.Entries, v.Next = list.Items, nextPage(r, list.NextCursor)
	return renderAccess(w, caller, "audit.html", "Audit log", "audit", v.Wrong, v)
}

// auditEntries returns the entries that a form asks for. Its time is in UTC, to the minute, as browsers send it.
func (a *Access) auditEntries(ctx context.Context, caller authz.Caller, v auditView, page rest.PageInput) (
	list rest.List[authz.AuditEntry], err error) {
	f := auditlog.Filter{Actor: v.Actor, Action: v.Action, Object: v.Object}
	if v.Since != "" {
		if f.Since, err = time.Parse("2006-01-02T15:04", v.Since); err != nil {
			return list, fault.New(fault.Invalid, "%q is not a time like 2026-01-31T08:30", v.Since)
		}
	}
	return auditlog.List(ctx, a.Identity.Requests, caller, f, page)
}

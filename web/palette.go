package web

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// found is something that the palette leads to.
type found struct {
	Kind string `json:"kind"` // DAG, job or dataset
	Name string `json:"name"`
	Path string `json:"path"` // of its page
}

// palette answers a script's search with what the caller may see, as a JSON array: DAGs and jobs by a part of their
// names, datasets as the catalogue finds them.
func (s *Site) palette(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	const most = 8 // of each sort
	list := []found{}
	if text := strings.TrimSpace(r.URL.Query().Get("search")); text != "" {
		named, err := s.Registry.FindNamed(r.Context(), caller, text, most)
		if err != nil {
			return err
		}
		for _, n := range named {
			list = append(list, foundNamed(n))
		}

		datasets, err := s.Registry.Datasets(r.Context(), caller, registry.DatasetFilter{Search: text, Limit: most})
		if err != nil {
			return err
		}
		for _, d := range datasets {
			list = append(list, found{"dataset", d.Name, datasetPath(d.Name)})
		}
	}

	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(list)
}

func foundNamed(n registry.Named) found {
	if n.Job == "" {
		return found{"DAG", n.DAG, "/dags/" + url.PathEscape(n.DAG)}
	}
	return found{"job", n.DAG + "/" + n.Job, jobPath(n.DAG, n.Job)}
}

package cli

import (
	"fmt"
	"net/url"
)

// DAGPath returns the path of a DAG in the API.
func DAGPath(dag string) string { return "/v1/dags/" + url.PathEscape(dag) }

// VersionPath returns the path of a version of a DAG in the API.
func VersionPath(dag string, number int) string {
	return fmt.Sprintf("%s/versions/%d", DAGPath(dag), number)
}

// SourcePath returns the path of a job's source in the API.
func SourcePath(dag, job string) string {
	return "/v1/sources/" + url.PathEscape(dag) + "/" + url.PathEscape(job)
}

// DatasetPath returns the path of a dataset in the API. An unpublished dataset has slashes in its name, which are part
// of the segment.
func DatasetPath(name string) string { return "/v1/datasets/" + url.PathEscape(name) }

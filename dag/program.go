package dag

import "slices"

// RunsProgram reports whether a job runs a program that could send a secret anywhere.
func (j *Job) RunsProgram() bool { return slices.Contains([]string{"command", Handler}, j.Operator) }

// FolderExport is what exports to folders of a server are called where servers say which orgs they run what for:
// exports to buckets, of the same operator, run on any.
const FolderExport = "parquet_export folder"

// RunsAs returns the name under which servers say for which orgs they run the job: its operator, or FolderExport.
func (j *Job) RunsAs() string {
	if _, folder := j.Config["folder"]; folder && j.Operator+" folder" == FolderExport {
		return FolderExport
	}
	return j.Operator
}

// Program returns a hash of the program that a job runs, as the DAG file defines it: its operator, where it runs, its
// config with arguments and environment, and its code_version. It is long enough that nobody finds two programs with
// the same.
func (j *Job) Program() string {
	const bytes = 16
	text, err := canonicalJSON([]any{j.Operator, j.Runtime, j.Config, j.CodeVersion})
	if err != nil {
		return "" // impossible: a config is made of JSON. No grant holds for it
	}
	return sha256Hex(text)[:2*bytes]
}

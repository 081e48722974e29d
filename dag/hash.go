package dag

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Canonical returns the resolved document as JSON: defaults and variables applied, files inlined, keys sorted. Two
// files of the same meaning have the same canonical form, whatever their comments, layout and order of fields.
func (d *Document) Canonical() []byte {
	text, err := canonicalJSON(d)
	if err != nil {
		// A Document holds only values that came from YAML or JSON, which JSON can express.
		panic(fmt.Sprintf("dag: document %q cannot be written as JSON: %v", d.Name, err))
	}
	return text
}

// Hash returns dag_versions.yaml_hash: the hash of the canonical form, which has the operators' semantic versions, and
// of the build epochs by job name. It ignores epochs of 0 and of jobs that are not in the document.
func Hash(doc *Document, epochs map[string]int, bound map[string]string) string {
	raised := map[string]int{}
	for _, job := range doc.Jobs {
		if epoch := epochs[job.Name]; epoch != 0 {
			raised[job.Name] = epoch
		}
	}
	content := map[string]any{"document": doc, "epochs": raised}
	if len(bound) > 0 {
		content["inputs"] = bound
	}
	text, err := canonicalJSON(content)
	if err != nil {
		panic(fmt.Sprintf("dag: document %q cannot be written as JSON: %v", doc.Name, err))
	}
	return sha256Hex(text)
}

// SourceHash returns dag_versions.source_hash: the hash of the file as written.
func SourceHash(text []byte) string { return sha256Hex(text) }

func sha256Hex(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

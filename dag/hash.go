package dag

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Canonical is the resolved document as JSON: defaults and variables applied, files inlined, keys sorted. Two files
// that mean the same have the same canonical form; comments, layout and the order of fields are not in it.
func (d *Document) Canonical() []byte {
	text, err := canonicalJSON(d)
	if err != nil {
		// A Document holds what came out of YAML or JSON, which JSON can hold.
		panic(fmt.Sprintf("dag: document %q cannot be written as JSON: %v", d.Name, err))
	}
	return text
}

// Hash is dag_versions.yaml_hash: the canonical form, which has the operators' semantic versions, and the build epochs
// by job name. Epochs of 0 and of jobs that the document does not have count for nothing.
func Hash(doc *Document, epochs map[string]int) string {
	raised := map[string]int{}
	for _, job := range doc.Jobs {
		if epoch := epochs[job.Name]; epoch != 0 {
			raised[job.Name] = epoch
		}
	}
	text, err := canonicalJSON(map[string]any{"document": doc, "epochs": raised})
	if err != nil {
		panic(fmt.Sprintf("dag: document %q cannot be written as JSON: %v", doc.Name, err))
	}
	return sha256Hex(text)
}

// SourceHash is dag_versions.source_hash: of the file as written.
func SourceHash(text []byte) string { return sha256Hex(text) }

func sha256Hex(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

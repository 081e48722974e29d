package dag

import "fmt"

// LocalHashes computes, by job name, the hash of what each job says itself, without its upstream and without epochs:
// where it is the same and the fingerprint is not, the change came from upstream.
func LocalHashes(doc *Document, cat Catalog) (map[string]string, error) {
	jobs := make(map[string]*Job, len(doc.Jobs))
	for i := range doc.Jobs {
		jobs[doc.Jobs[i].Name] = &doc.Jobs[i]
	}
	hashes := make(map[string]string, len(jobs))
	for name, job := range jobs {
		content, err := fingerprinted(job, cat, jobs, nil)
		if err != nil {
			return nil, err
		}
		text, err := canonicalJSON(content)
		if err != nil {
			return nil, fmt.Errorf("hash of job %s: %w", name, err)
		}
		hashes[name] = sha256Hex(text)
	}
	return hashes, nil
}

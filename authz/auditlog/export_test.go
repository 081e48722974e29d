package auditlog

// Batches makes the sealer seal n entries in one transaction.
func (s *Sealer) Batches(n int) { s.batch = n }

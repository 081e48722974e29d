package lineage

// StepByStep makes walks ask for the jobs of each step, and never for those of whole DAGs.
func (l *Lineage) StepByStep() *Lineage {
	return &Lineage{l.requests, l.registry, MaxDepth + 1}
}

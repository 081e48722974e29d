package dispatcher

import (
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// While a backfill runs whose results consumers follow at its end, or not at all, its outputs are not a reason to make
// tasks.

// generationsFilled returns the generations that such backfills fill, as far as they fill any of the generations read.
func generationsFilled(b *pg.Batch, read []uuid.UUID) *pg.Later[[]uuid.UUID] {
	if len(read) == 0 {
		return pg.Known[[]uuid.UUID](nil)
	}

	var (
		filled     []uuid.UUID
		generation uuid.UUID
	)

	b.Query("find backfills", []any{&generation}, func() error {
		filled = append(filled, generation)
		return nil
	}, `
		SELECT unnest(dataset_versions) FROM backfills
		WHERE status = 'Running' AND propagate <> 'each' AND dataset_versions && $1`, read)
	return pg.Answer(b, &filled)
}

// holdBack marks findings as incomplete that read a generation which such a backfill fills. They are found again when
// the backfill has ended.
func holdBack(findings []stale.Finding, filled []uuid.UUID) {
	for i := range findings {
		f := &findings[i]
		isFilled := func(p registry.Pin) bool { return slices.Contains(filled, p.Version) }
		if f.Verdict == stale.Stale && slices.ContainsFunc(f.Pins, isFilled) {
			f.Verdict, f.Missing = stale.Incomplete, "a backfill of an input is followed at its end"
		}
	}
}

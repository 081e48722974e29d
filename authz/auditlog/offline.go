package auditlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// VerifyExport walks along the chain in an export as NDJSON, without a server. It must be whole from the org's first
// entry on: what a filter left out is missing. Only a remembered head shows that nothing was taken from its end.
func VerifyExport(from io.Reader, remembered Head) (ChainCheck, error) {
	w, lines := &walk{remembered: remembered}, bufio.NewReader(from)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(text) == 0 {
			if n == 1 && remembered == (Head{}) {
				return ChainCheck{}, fault.New(fault.Invalid, "the export is empty: there is nothing to verify").
					WithHint("every org has an entry: write the file with `dagctl audit export`")
			}
			return w.end(), nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return ChainCheck{}, fmt.Errorf("read the export: %w", err)
		}

		var line Line
		if err := json.Unmarshal(text, &line); err != nil {
			return ChainCheck{}, fault.New(fault.Invalid, "line %d is no entry of an audit log: %w", n, err).
				WithHint("the file was cut off or changed, or is not NDJSON of `dagctl audit export`")
		}
		if !w.stepTo(line, text) {
			return w.end(), nil
		}
	}
}

// stepTo looks at the next line. All are of one org, that of the first. Each is as it was exported, to the letter: a
// text with a field twice would say one thing here and another to who reads it otherwise.
func (w *walk) stepTo(l Line, text []byte) bool {
	var exported bytes.Buffer
	put, _ := ndjson(&exported)
	if w.org == uuid.Nil {
		w.org = l.OrgID
	}
	if err := put(l); err == nil && l.OrgID == w.org && bytes.Equal(exported.Bytes(), text) {
		return w.step(l.AuditEntry)
	}

	w.found.Break = &ChainBreak{l.Seq, l.ID.String(), "changed",
		fmt.Sprintf("the line of entry %d is not as it was exported", l.Seq)}
	return false
}

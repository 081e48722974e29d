package auditlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// Head is where a chain ends, or ended once: the number and the hash of an entry. The zero Head is before the first.
type Head struct {
	Seq  int64
	Hash [sha256.Size]byte
}

// String returns the head as people keep it: SEQ:HASH, the hash in hex.
func (h Head) String() string { return fmt.Sprintf("%d:%x", h.Seq, h.Hash) }

// ParseHead reads a head as String writes it.
func ParseHead(text string) (h Head, err error) {
	number, hash, _ := strings.Cut(text, ":")
	h.Seq, err = strconv.ParseInt(number, 10, 64)
	sum, hexErr := hex.DecodeString(hash)
	if err != nil || hexErr != nil || h.Seq < 1 || len(sum) != sha256.Size {
		return Head{}, fault.New(fault.Invalid, "%q is not the head of an audit log", text).
			WithHint("write SEQ:HASH, as `dagctl audit verify` prints it")
	}
	copy(h.Hash[:], sum)
	return h, nil
}

// format is the first part of what is hashed: another encoding has another one.
const format = "dagctl audit 1"

// after returns the head of a chain after an entry of the org that follows h. Its hash is SHA-256 over these parts,
// each after its length in bytes as eight bytes, big-endian, like all numbers: format, the hash before, the org's id,
// the entry's number, its id, its time in microseconds since 1970, actor, action, object, outcome, detail as it is
// stored without the white space between its tokens, and request id.
func (h Head) after(org uuid.UUID, e authz.AuditEntry) (Head, error) {
	var detail bytes.Buffer // exports have no such white space
	if err := json.Compact(&detail, e.Detail); err != nil {
		return Head{}, fmt.Errorf("detail of audit entry %s: %w", e.ID, err)
	}

	next := Head{Seq: h.Seq + 1}
	sum := sha256.New()
	for _, part := range [][]byte{[]byte(format), h.Hash[:], org[:], number(next.Seq), e.ID[:],
		number(e.At.UnixMicro()), []byte(e.Actor), []byte(e.Action), []byte(e.Object), []byte(e.Outcome),
		detail.Bytes(), []byte(e.RequestID)} {
		sum.Write(number(int64(len(part))))
		sum.Write(part)
	}
	sum.Sum(next.Hash[:0])
	return next, nil
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// ChainCheck is what a look at a chain found.
type ChainCheck struct {
	Whole    bool        `json:"whole" doc:"No sealed entry was changed, removed, put in or moved, and the head that was asked for is in the chain"`
	Entries  int64       `json:"entries" doc:"How many sealed entries were looked at: all, or those before the break"`
	First    int64       `json:"first,omitempty" doc:"Number of the first of them"`
	Last     int64       `json:"last,omitempty" doc:"Number of the last of them"`
	Head     string      `json:"head,omitempty" doc:"SEQ:HASH of the last of them: keep it elsewhere"`
	Unsealed int64       `json:"unsealed" doc:"Entries without a place in the chain yet, which servers give them within about a second"`
	Break    *ChainBreak `json:"break,omitempty" doc:"The first thing that is wrong"`
}

// ChainBreak is the first thing that is wrong with a chain.
type ChainBreak struct {
	Seq  int64  `json:"seq" doc:"Number of the entry"`
	ID   string `json:"id,omitempty" doc:"Id of the entry, if it is there"`
	What string `json:"what" enum:"changed,removed,inserted,reordered,rewritten"`
	Text string `json:"text" doc:"For people"`
}

// walk goes along a chain and finds where it breaks.
type walk struct {
	org        uuid.UUID
	at         Head
	kept       *Head // where the database says that the chain ends; nil: it is not known
	remembered Head  // what the caller knows of the chain; zero: nothing
	found      ChainCheck
}

// step looks at the next sealed entry, and returns false if the chain is broken.
func (w *walk) step(e authz.AuditEntry) bool {
	broken := func(what, text string, args ...any) bool {
		w.found.Break = &ChainBreak{e.Seq, e.ID.String(), what, fmt.Sprintf(text, args...)}
		return false
	}
	switch {
	case e.Seq <= w.at.Seq:
		return broken("reordered", "entry %d comes after entry %d", e.Seq, w.at.Seq)
	case e.Seq > w.at.Seq+1:
		w.missing(w.at.Seq+1, e.Seq-1)
		return false
	case w.kept != nil && e.Seq > w.kept.Seq:
		return broken("inserted", "entry %d was put in: no server has sealed an entry after number %d", e.Seq,
			w.kept.Seq)
	}

	next, err := w.at.after(w.org, e)
	if err != nil || hex.EncodeToString(next.Hash[:]) != e.Hash {
		return broken("changed", "entry %d does not fit its hash: it was changed, moved or put in after it was sealed",
			e.Seq)
	}
	if next.Seq == w.remembered.Seq && next != w.remembered {
		return broken("rewritten", "entry %d has another hash than you remember: the chain up to it was written anew",
			e.Seq)
	}

	w.at = next
	w.found.Entries++
	w.found.Last, w.found.Head = e.Seq, next.String()
	if w.found.First == 0 {
		w.found.First = e.Seq
	}
	return true
}

// end returns what the walk found, after the last entry or a break.
func (w *walk) end() ChainCheck {
	switch {
	case w.found.Break != nil:
	case w.kept != nil && w.kept.Seq > w.at.Seq:
		w.missing(w.at.Seq+1, w.kept.Seq)
	case w.kept != nil && *w.kept != w.at:
		w.found.Break = &ChainBreak{Seq: w.at.Seq, What: "changed",
			Text: fmt.Sprintf("entry %d is the last one, but not the one that was sealed last", w.at.Seq)}
	case w.remembered.Seq > w.at.Seq:
		w.missing(w.at.Seq+1, w.remembered.Seq)
	}
	w.found.Whole = w.found.Break == nil
	return w.found
}

// missing notes that entries are not there.
func (w *walk) missing(from, to int64) {
	text := fmt.Sprintf("entry %d is not there: it was removed", from)
	if from != to {
		text = fmt.Sprintf("the entries %d to %d are not there: they were removed", from, to)
	}
	w.found.Break = &ChainBreak{Seq: from, What: "removed", Text: text}
}

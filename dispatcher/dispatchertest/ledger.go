package dispatchertest

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

// Ledger is a chain of blocks, one letter each. Its source reads the blocks beyond the cursor.
type Ledger struct {
	mu     sync.Mutex
	Blocks string
}

// Set replaces the blocks.
func (l *Ledger) Set(blocks string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Blocks = blocks
}

// Read is the Hook that writes the blocks beyond the cursor.
func (l *Ledger) Read(ctx context.Context, t *operators.Task) (operators.Result, error) {
	l.mu.Lock()
	blocks := l.Blocks
	l.mu.Unlock()
	var rows []string
	for height := t.Cursor.Value + 1; height < int64(len(blocks)); height++ {
		rows = append(rows, fmt.Sprintf("(%d, %s)", height, sqltext.Literal(blocks[height:height+1])))
	}
	if len(rows) == 0 {
		return operators.Result{Unchanged: true}, nil
	}
	return operators.Result{}, CopyToParquet(ctx, "SELECT * FROM (VALUES "+strings.Join(rows, ", ")+
		") AS b(height, content)",
		filepath.Join(t.OutputDirs[0], "part.parquet"))
}

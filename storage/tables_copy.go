package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/internal/fault"
)

// outgoing is the rows of local files on their way to Postgres.
type outgoing struct {
	rows    Rows
	org     string
	columns []Column
	local   []string
}

// copyTo copies the rows to a table and returns the hash of what it sent.
func (o outgoing) copyTo(ctx context.Context, tx pgx.Tx, table string) (hash string, err error) {
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		var err error
		hash, err = o.write(ctx, to)
		to.CloseWithError(err)
		done <- err
	}()

	_, err = tx.Conn().PgConn().CopyFrom(ctx, from, fmt.Sprintf("COPY %s FROM STDIN (FORMAT binary)", table))
	from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if failed := <-done; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return "", failed
	}
	if e := new(pgconn.PgError); errors.As(err, &e) && strings.HasPrefix(e.Code, "22") { // data exceptions
		what, _, _ := strings.Cut(e.Message, `"`) // the rest may quote the value
		return "", fault.New(fault.Invalid, "postgres storage cannot hold a value: %s (SQLSTATE %s)",
			strings.TrimSpace(what), e.Code)
	}
	return hash, err
}

// write writes the rows with their numbers in the binary format, and returns its hash.
func (o outgoing) write(ctx context.Context, to io.Writer) (string, error) {
	hash := sha256.New()
	err := o.rows.CopyOut(ctx, o.org, o.columns, o.local, io.MultiWriter(hash, to))
	return hex.EncodeToString(hash.Sum(nil)), err
}

package duck

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	bindings "github.com/duckdb/duckdb-go-bindings"
	duckdb "github.com/duckdb/duckdb-go/v2"
)

// chunks runs a query and calls with for each of its chunks of up to 2,048 rows, in the query's order. Unlike the
// driver, which has all rows of a query before it gives the first, it reads them while DuckDB computes them, and so
// needs no memory for all of them. A chunk is valid until with returns; errEnough from it ends the query.
func (s *Session) chunks(ctx context.Context, query string, with func(chunk bindings.DataChunk) error) error {
	err := s.conn.Raw(func(of any) error {
		conn, err := connectionOf(of)
		if err != nil {
			return err
		}

		// An interrupt that has begun must end before the connection does.
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(interrupted)
			bindings.Interrupt(conn)
		})
		defer func() {
			if !stop() {
				<-interrupted
			}
		}()
		return eachChunk(ctx, conn, query, with)
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err != nil && unfit.MatchString(err.Error()) && ctx.Err() == nil:
		return err // its text has no value
	}
	return s.ended(ctx, err)
}

// errEnough ends the reading of rows without an error.
var errEnough = errors.New("enough rows")

func eachChunk(
	ctx context.Context, conn bindings.Connection, query string, with func(chunk bindings.DataChunk) error,
) error {
	var statement bindings.PreparedStatement
	defer bindings.DestroyPrepare(&statement)
	if bindings.Prepare(conn, query, &statement) == bindings.StateError {
		return &duckdb.Error{Type: duckdb.ErrorTypeBinder, Msg: bindings.PrepareError(statement)}
	}

	var result bindings.Result
	defer bindings.DestroyResult(&result)
	// The way that is not deprecated computes all rows before it returns the first.
	if bindings.ExecutePreparedStreaming(statement, &result) == bindings.StateError {
		return failed(&result)
	}

	for ctx.Err() == nil {
		chunk := bindings.FetchChunk(result)
		if chunk.Ptr == nil {
			return failed(&result)
		}
		var err error
		empty := bindings.DataChunkGetSize(chunk) == 0
		if !empty {
			err = with(chunk)
		}
		bindings.DestroyDataChunk(&chunk)
		if empty || err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// failed returns the error of a result; nil if it has none.
func failed(result *bindings.Result) error {
	text := bindings.ResultError(result)
	if text == "" {
		return nil
	}
	return &duckdb.Error{Type: duckdb.ErrorType(bindings.ResultErrorType(result)), Msg: text}
}

// connectionOf returns DuckDB's connection of a connection of the driver, which keeps it to itself and cannot stream.
func connectionOf(of any) (c bindings.Connection, err error) {
	if conn, ok := of.(*duckdb.Conn); ok {
		inner := reflect.ValueOf(conn).Elem().FieldByName("conn")
		if inner.IsValid() && inner.Type() == reflect.TypeOf(c) {
			c.Ptr = inner.FieldByName("Ptr").UnsafePointer()
		}
	}
	if c.Ptr == nil {
		return c, fmt.Errorf("the driver of DuckDB is not the one that this version knows: %T", of)
	}
	return c, nil
}

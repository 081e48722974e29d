package pg

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// registerUTC makes a connection read times in UTC, in which they are stored and shown. pgx would use the time zone of
// the machine that the server runs on.
func registerUTC(m *pgtype.Map) {
	m.RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
}

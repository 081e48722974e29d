package pg

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// registerUUID makes uuid.UUID a native type of a connection. Otherwise pgx converts through text, and a NULL becomes
// the zero UUID without an error, because uuid.UUID's own Scan does that. Use *uuid.UUID for columns that may be NULL.
func registerUUID(m *pgtype.Map) {
	m.RegisterType(&pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: uuidCodec{}})
}

type uuidCodec struct{ pgtype.UUIDCodec }

func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*uuid.UUID); ok {
		return scanUUID{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(uuid.UUID); !ok {
		return c.UUIDCodec.PlanEncode(m, oid, format, value)
	}
	if format == pgtype.BinaryFormatCode {
		return encodeUUIDBinary{}
	}
	return encodeUUIDText{}
}

// DecodeValue is for rows.Values and targets of type any.
func (uuidCodec) DecodeValue(_ *pgtype.Map, _ uint32, _ int16, src []byte) (any, error) {
	if src == nil {
		return nil, nil
	}
	var id uuid.UUID
	err := scanUUID{}.Scan(src, &id)
	return id, err
}

type encodeUUIDBinary struct{}

func (encodeUUIDBinary) Encode(value any, buf []byte) ([]byte, error) {
	id := value.(uuid.UUID)
	return append(buf, id[:]...), nil
}

type encodeUUIDText struct{}

func (encodeUUIDText) Encode(value any, buf []byte) ([]byte, error) {
	return append(buf, value.(uuid.UUID).String()...), nil
}

type scanUUID struct{}

func (scanUUID) Scan(src []byte, target any) error {
	if src == nil {
		return errors.New("NULL for a uuid.UUID: scan into a *uuid.UUID")
	}
	dst := target.(*uuid.UUID)
	if len(src) == len(dst) { // the binary format; text is never that short
		copy(dst[:], src)
		return nil
	}
	id, err := uuid.ParseBytes(src)
	if err != nil {
		return fmt.Errorf("scan uuid: %w", err)
	}
	*dst = id
	return nil
}

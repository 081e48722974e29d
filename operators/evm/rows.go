package evm

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"
)

// Record is a kind of rows that blocks have.
type Record string

// The records.
const (
	Blocks       Record = "blocks"
	Transactions Record = "transactions"
	Logs         Record = "logs"
)

// Number is the column of all records that has the number of their block.
const Number = "block_number"

// kind says how a field of JSON becomes a value of a column.
type kind int

const (
	whole   kind = iota // a quantity of 63 bits
	decimal             // a quantity of up to 256 bits, as decimal digits
	bytes20             // an address
	bytes32             // a hash
	data                // any number of bytes
	instant             // a quantity of seconds since 1970
	count               // the length of a list
)

// duck returns DuckDB's type of a column.
func (k kind) duck() string {
	switch k {
	case whole, count:
		return "BIGINT"
	case instant:
		return "TIMESTAMP WITH TIME ZONE"
	}
	return "VARCHAR"
}

type column struct {
	name  string
	field string // of the JSON object
	kind  kind
	must  bool // it is there in every row of every chain
}

// columns returns the columns of a record. The topics of a log are flattened before.
func (r Record) columns() []column {
	switch r {
	case Transactions:
		return []column{
			{Number, "blockNumber", whole, true}, {"block_hash", "blockHash", bytes32, true},
			{"transaction_index", "transactionIndex", whole, true}, {"hash", "hash", bytes32, true},
			{"type", "type", whole, false}, {"from_address", "from", bytes20, true},
			{"to_address", "to", bytes20, false}, {"nonce", "nonce", decimal, true}, {"value", "value", decimal, true},
			{"gas", "gas", whole, true}, {"gas_price", "gasPrice", decimal, false},
			{"max_fee_per_gas", "maxFeePerGas", decimal, false},
			{"max_priority_fee_per_gas", "maxPriorityFeePerGas", decimal, false}, {"input", "input", data, true},
		}

	case Logs:
		return []column{
			{Number, "blockNumber", whole, true}, {"block_hash", "blockHash", bytes32, true},
			{"transaction_hash", "transactionHash", bytes32, true},
			{"transaction_index", "transactionIndex", whole, true}, {"log_index", "logIndex", whole, true},
			{"address", "address", bytes20, true}, {"topic0", "topic0", bytes32, false},
			{"topic1", "topic1", bytes32, false}, {"topic2", "topic2", bytes32, false},
			{"topic3", "topic3", bytes32, false}, {"data", "data", data, true},
		}
	}

	return []column{
		{Number, "number", whole, true}, {"hash", "hash", bytes32, true}, {"parent_hash", "parentHash", bytes32, true},
		{"timestamp", "timestamp", instant, true}, {"miner", "miner", bytes20, false},
		{"gas_limit", "gasLimit", whole, true}, {"gas_used", "gasUsed", whole, true},
		{"base_fee_per_gas", "baseFeePerGas", decimal, false}, {"difficulty", "difficulty", decimal, false},
		{"size", "size", whole, false}, {"transaction_count", "transactions", count, true},
		{"state_root", "stateRoot", bytes32, true}, {"transactions_root", "transactionsRoot", bytes32, true},
		{"receipts_root", "receiptsRoot", bytes32, true}, {"extra_data", "extraData", data, false},
	}
}

// row returns the values of a record's columns in PostgreSQL's binary format.
func (r Record) row(f fields) ([][]byte, error) {
	columns := r.columns()
	row := make([][]byte, len(columns))
	for i, c := range columns {
		value := f[c.field]
		if len(value) == 0 || string(value) == "null" {
			if c.must {
				return nil, fmt.Errorf("it has no %s", c.field)
			}
			continue
		}

		var err error
		if row[i], err = c.kind.binary(value); err != nil {
			return nil, fmt.Errorf("%s: %w", c.field, err)
		}
	}
	return row, nil
}

// since2000 is the beginning of PostgreSQL's timestamps, in seconds since 1970.
var since2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// latest is the highest time of a block that a timestamp can hold, in seconds since 1970.
const latest = 9_000_000_000_000

// binary returns a value in PostgreSQL's binary format.
func (k kind) binary(value json.RawMessage) ([]byte, error) {
	if k == count {
		var list []json.RawMessage
		err := decode(value, &list, "list")
		return binary.BigEndian.AppendUint64(nil, uint64(len(list))), err
	}
	var text string
	if err := decode(value, &text, "text"); err != nil {
		return nil, err
	}

	switch k {
	case whole, instant:
		n, err := ParseInt(text)
		if err == nil && k == instant {
			if n > latest {
				return nil, fmt.Errorf("%d seconds since 1970 are no time that a timestamp holds", n)
			}
			n = (n - since2000) * 1_000_000
		}
		return binary.BigEndian.AppendUint64(nil, uint64(n)), err
	case decimal:
		digits, err := ParseDecimal(text)
		return []byte(digits), err
	}
	sizes := map[kind]int{bytes20: 20, bytes32: 32, data: -1}
	plain, err := parseData(text, sizes[k])
	return []byte(plain), err
}

// Command generate cuts the example's landing files, one gzip CSV a day, out of a Parquet file of flights.
//
//	go run ./examples/us-flights/generate -from 2001-01-01 -days 31 \
//		-out examples/us-flights/data/flights flights-3m.parquet
//
// The same input and the same version of Go give the same bytes: rows are sorted and the gzip header has no time.
package main

import (
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/internal/duck"
)

func main() {
	from := flag.String("from", "2001-01-01", "first `day`")
	days := flag.Int("days", 31, "number of days")
	out := flag.String("out", ".", "folder to write into")
	flag.Parse()
	if err := run(flag.Arg(0), *from, *days, *out); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(parquet, from string, days int, out string) error {
	if parquet == "" {
		return errors.New("name the Parquet file with the columns date, delay, distance, origin and destination")
	}
	first, err := time.Parse(time.DateOnly, from)
	if err != nil {
		return fmt.Errorf("-from: %w", err)
	}

	ctx := context.Background()
	session, err := duck.Open(ctx, duck.Config{AnyPath: true})
	if err != nil {
		return err
	}
	defer session.Close()

	for i := range days {
		day := first.AddDate(0, 0, i)
		if err := writeDay(ctx, session, parquet, day,
			filepath.Join(out, day.Format(time.DateOnly)+".csv.gz")); err != nil {
			return fmt.Errorf("%s: %w", day.Format(time.DateOnly), err)
		}
	}
	return nil
}

// writeDay writes the flights of one day, in the order of all their columns, so that equal rows stay together.
func writeDay(ctx context.Context, session *duck.Session, parquet string, day time.Time, file string) error {
	rows, err := session.Query(ctx, fmt.Sprintf(
		`SELECT date, delay, distance, origin, destination FROM %s
		WHERE date >= DATE '%s' AND date < DATE '%s' ORDER BY ALL`,
		duck.ReadParquet([]string{parquet}), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
	if err != nil {
		return err
	}
	defer rows.Close()

	records := [][]string{{"date", "delay", "distance", "origin", "destination"}}
	for rows.Next() {
		var date time.Time
		var delay, distance int64
		var origin, destination string
		if err := rows.Scan(&date, &delay, &distance, &origin, &destination); err != nil {
			return err
		}
		records = append(records, []string{
			date.Format("2006-01-02 15:04:05"), strconv.FormatInt(delay, 10), strconv.FormatInt(distance, 10), origin,
			destination,
		})
	}

	if err := rows.Err(); err != nil {
		return err
	}
	return writeGzipCSV(file, records)
}

func writeGzipCSV(file string, records [][]string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	compressed, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := csv.NewWriter(compressed).WriteAll(records); err != nil {
		return err
	}
	return compressed.Close()
}

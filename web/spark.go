package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/dagctl/dagctl/registry/catalog"
)

// spark is a small curve of a dataset's last revisions.
type spark struct {
	Name          string
	Line, Area    string // paths
	X, Y          string // of the last point
	First, Last   string // values, as people read them
	Least, Most   string
	Width, Height int
	Count         int
}

// sparkWidth and sparkHeight are in pixels; margin keeps the line and its last point inside.
const sparkWidth, sparkHeight, sparkMargin = 240, 48, 4

// sparks returns the curves of a trend: rows, bytes and, for partitions in time, how long after their end they came.
func sparks(points []catalog.Point) (curves []spark) {
	if len(points) < 2 {
		return nil
	}
	rows, bytes, delays := []float64{}, []float64{}, []float64{}
	for _, p := range points {
		rows, bytes = append(rows, float64(p.Rows)), append(bytes, float64(p.Bytes))
		if p.Delay != nil {
			delays = append(delays, float64(*p.Delay))
		}
	}

	curves = append(curves,
		curve("Rows", rows, func(v float64) string { return number(int64(v)) }),
		curve("Size", bytes, func(v float64) string { return Size(int64(v)) }))
	if len(delays) == len(points) {
		curves = append(curves, curve("Made after the partition's end", delays, func(v float64) string {
			if v < 0 {
				return "before"
			}
			return rough(time.Duration(v) * time.Second)
		}))
	}
	return curves
}

// curve draws values from 0, or below where some are, up to the highest.
func curve(name string, values []float64, format func(float64) string) spark {
	low, high, least := 0.0, 0.0, values[0]
	for _, v := range values {
		low, high, least = min(low, v), max(high, v), min(least, v)
	}
	reach := high - low
	if reach == 0 {
		reach = 1
	}

	var line strings.Builder
	var x, y float64
	for i, v := range values {
		x = sparkMargin + float64(i)*(sparkWidth-2*sparkMargin)/float64(len(values)-1)
		y = sparkHeight - sparkMargin - (v-low)/reach*(sparkHeight-2*sparkMargin)
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&line, "%s%.1f %.1f", command, x, y)
	}
	return spark{
		Name: name, Line: line.String(), Width: sparkWidth, Height: sparkHeight,
		Count: len(values),
		Area:  fmt.Sprintf("%sL%.1f %dL%d %dZ", line.String(), x, sparkHeight, sparkMargin, sparkHeight),
		X:     fmt.Sprintf("%.1f", x), Y: fmt.Sprintf("%.1f", y),
		First: format(values[0]), Last: format(values[len(values)-1]), Least: format(least), Most: format(high),
	}
}

package chart

import (
	"math"
	"time"
)

// scale maps values between low and high to lengths between 0 and 1.
type scale struct{ low, high float64 }

// span returns a scale around values. It is never empty, and begins or ends at zero if zero is to be on it.
func span(values []float64, zero bool) scale {
	if len(values) == 0 {
		return scale{0, 1}
	}
	s := scale{values[0], values[0]}
	for _, v := range values {
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
	if zero {
		s.low, s.high = min(s.low, 0), max(s.high, 0)
	}
	if s.low == s.high {
		pad := max(math.Abs(s.low)*0.05, 1)
		s.low, s.high = max(s.low-pad, -math.MaxFloat64), min(s.high+pad, math.MaxFloat64)
	}
	return s
}

// at returns the place of a value. Halves do not overflow.
func (s scale) at(v float64) float64 {
	width := s.high/2 - s.low/2
	if width == 0 {
		return 0.5
	}
	return min(max((v/2-s.low/2)/width, 0), 1)
}

// mark is a value that is marked on an axis.
type mark struct {
	value float64
	text  string
}

// numbers widens the scale to round values, and returns about n of them.
func (s *scale) numbers(n int) []mark {
	step := round((s.high/2 - s.low/2) / float64(n) * 2)
	if step == 0 || math.IsInf(step, 0) || s.low+step == s.low && s.low != 0 || s.high-step == s.high && s.high != 0 {
		return []mark{{s.low, exact(s.low)}, {s.high, exact(s.high)}}
	}
	first, last := math.Floor(s.low/step+1e-9), math.Ceil(s.high/step-1e-9)
	if math.IsInf(first*step, 0) || math.IsInf(last*step, 0) {
		return []mark{{s.low, short(s.low, s.high)}, {s.high, short(s.high, s.high)}}
	}

	s.low, s.high = min(s.low, first*step), max(s.high, last*step)
	var all []mark
	for i := first; i <= last && len(all) < 4*n; i++ {
		all = append(all, mark{i * step, short(i*step, step)})
	}
	return all
}

// round returns the next round step: 1, 2 or 5 times a power of ten.
func round(step float64) float64 {
	if step <= 0 || math.IsNaN(step) || math.IsInf(step, 0) {
		return 0
	}
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*power >= step*(1-1e-9) {
			return m * power
		}
	}
	return 0
}

// steps are those between ticks of time, up to weeks, in seconds.
var steps = []float64{0.001, 0.01, 0.1, 1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400,
	2 * 86400, 7 * 86400, 14 * 86400}

// times returns about n round moments of the scale, of which dates have no time of day.
func (s scale) times(n int, dates bool) []mark {
	wanted := (s.high - s.low) / float64(n)
	for _, step := range steps {
		if step < wanted || dates && step < 86400 {
			continue
		}
		var all []mark
		for v := math.Ceil(s.low/step) * step; v <= s.high && len(all) < 4*n; v += step {
			all = append(all, mark{v, moment(v, step)})
		}
		return all
	}

	months := 1
	for _, m := range []int{1, 3, 6, 12, 24, 60, 120, 600, 1200, 12000} {
		if months = m; float64(m)*30*86400 >= wanted {
			break
		}
	}
	begin := time.Unix(int64(s.low), 0).UTC()
	at := time.Date(begin.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	if months > 12 {
		at = at.AddDate(-at.Year()%(months/12), 0, 0)
	}

	var all []mark
	for ; float64(at.Unix()) <= s.high && len(all) < 4*n; at = at.AddDate(0, months, 0) {
		if float64(at.Unix()) >= s.low {
			layout := "Jan 2006"
			if months >= 12 {
				layout = "2006"
			}
			all = append(all, mark{float64(at.Unix()), at.Format(layout)})
		}
	}
	return all
}

// moment writes a moment for an axis with a step.
func moment(v, step float64) string {
	t := time.Unix(int64(math.Floor(v)), int64((v-math.Floor(v))*1e9)).UTC()
	switch {
	case step < 1:
		return t.Format("15:04:05.000")
	case step < 60:
		return t.Format("15:04:05")
	case step < 3600:
		return t.Format("15:04")
	case step < 86400:
		return t.Format("2 Jan 15:04")
	}
	return t.Format("2 Jan 2006")
}

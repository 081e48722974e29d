//go:build soak

package pictures_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"image"
	"image/color"
	"image/gif"
	"maps"
	"slices"
)

// frame is a picture that is shown for some seconds.
type frame struct {
	picture *image.Paletted
	seconds int
}

// animation returns frames as a GIF that begins anew at its end.
func animation(frames []frame) []byte {
	var all gif.GIF
	for _, f := range frames {
		all.Image = append(all.Image, f.picture)
		all.Delay = append(all.Delay, f.seconds*100)
	}
	var b bytes.Buffer
	if err := gif.EncodeAll(&b, &all); err != nil {
		panic(err) // into memory
	}
	return b.Bytes()
}

// reduced returns a picture with the 256 colours that it has most of: pages have few, and shades at the edges of
// letters.
func reduced(picture image.Image) *image.Paletted {
	bounds := picture.Bounds()
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}

	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return cmp.Compare(count[b], count[a]) })
	palette := color.Palette{}
	for _, c := range colours[:min(len(colours), 256)] {
		palette = append(palette, c)
	}

	nearest := map[color.RGBA]uint8{}
	for _, c := range colours {
		nearest[c] = uint8(palette.Index(c))
	}
	small := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	return small
}

// quoted returns a text as JavaScript has it.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a text is always JSON
	}
	return string(b)
}

package textfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/encoding/ianaindex"
	"golang.org/x/text/transform"
)

// Decoders turn text into UTF-8. For what is no text in its encoding they write a byte that is not UTF-8, and not
// U+FFFD, which could be a value: the row that has it is a bad row.

// noText is that byte.
const noText = 0xFF

// checkEncoding checks the name of an encoding, one of https://www.iana.org/assignments/character-sets or else of
// https://encoding.spec.whatwg.org, such as utf-16le or windows-1252.
func checkEncoding(name string) error {
	_, err := decoderOf(name)
	return err
}

// decoderOf returns the decoder of an encoding, nil for UTF-8.
func decoderOf(name string) (transform.Transformer, error) {
	lower := strings.ToLower(name)
	if lower == "" || lower == "utf8" {
		return nil, nil
	}
	// Browsers read more names than IANA lists, but some as other encodings: iso-8859-1 as windows-1252.
	enc, err := ianaindex.IANA.Encoding(lower)
	if err != nil || enc == nil {
		enc, err = htmlindex.Get(lower)
	}
	if err != nil {
		return nil, fmt.Errorf("%q is not the name of an encoding, such as utf-8, utf-16le or windows-1252", name)
	}

	known, _ := ianaindex.IANA.Name(enc) // some have none
	switch known {
	case "UTF-8":
		return nil, nil
	case "UTF-16":
		return &utf16Decoder{}, nil
	case "UTF-16LE":
		return &utf16Decoder{fixed: binary.LittleEndian}, nil
	case "UTF-16BE":
		return &utf16Decoder{fixed: binary.BigEndian}, nil
	}
	return exactly{enc.NewDecoder()}, nil
}

// exactly is a decoder of an encoding that has no U+FFFD.
type exactly struct{ transform.Transformer }

// Transform implements transform.Transformer.
func (e exactly) Transform(dst, src []byte, atEOF bool) (nDst, nSrc int, err error) {
	nDst, nSrc, err = e.Transformer.Transform(dst, src, atEOF)
	replacement := []byte(string(utf8.RuneError))
	if bytes.Contains(dst[:nDst], replacement) {
		nDst = copy(dst, bytes.ReplaceAll(dst[:nDst], replacement, []byte{noText}))
	}
	return nDst, nSrc, err
}

// utf16Decoder decodes UTF-16. Without a fixed order of bytes, the byte order mark says it, and little endian is usual.
type utf16Decoder struct {
	fixed, order binary.ByteOrder
}

// Reset implements transform.Transformer.
func (d *utf16Decoder) Reset() { d.order = d.fixed }

// Transform implements transform.Transformer.
func (d *utf16Decoder) Transform(dst, src []byte, atEOF bool) (nDst, nSrc int, err error) {
	if d.order == nil && (len(src) >= 2 || atEOF) {
		d.order = binary.LittleEndian
		if bytes.HasPrefix(src, []byte("\xFE\xFF")) {
			d.order = binary.BigEndian
		}
	}

	for nSrc < len(src) {
		r, size := d.next(src[nSrc:])
		if size == 0 && !atEOF {
			return nDst, nSrc, transform.ErrShortSrc
		}
		if len(dst)-nDst < utf8.UTFMax {
			return nDst, nSrc, transform.ErrShortDst
		}
		if r < 0 {
			dst[nDst] = noText
			nDst++
		} else {
			nDst += utf8.EncodeRune(dst[nDst:], r)
		}
		nSrc += max(size, min(2, len(src)-nSrc))
	}
	return nDst, nSrc, nil
}

// next returns the character at the beginning of src and how many bytes it has: none if src is too short to say. The
// character is -1 if there is none.
func (d *utf16Decoder) next(src []byte) (r rune, size int) {
	if len(src) < 2 {
		return -1, 0
	}
	r = rune(d.order.Uint16(src))
	if !utf16.IsSurrogate(r) {
		return r, 2
	}
	if len(src) < 4 {
		return -1, 0
	}
	if both := utf16.DecodeRune(r, rune(d.order.Uint16(src[2:]))); both != utf8.RuneError {
		return both, 4
	}
	return -1, 2
}

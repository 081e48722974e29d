package storage

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// A task on another machine writes to the upload area first: .uploads/<org>/<task>/<attempt>/<output>/<name>, which
// readers never look at. At its completion the server fetches the files, checks that they are the declared ones, and
// seals them like the output of an operator in its own process. So a worker's credentials, which outlive its lease,
// cannot change what is committed. See docs/decisions/0012-uploads-are-sealed-by-the-server.md.
//
// No slug begins with a dot, so the area lies beside the orgs' folders and a rule for its prefix concerns it alone.

// uploadsDir is the area's folder.
const uploadsDir = ".uploads"

// DefaultMaxUploadBytes is the default size limit of one file.
const DefaultMaxUploadBytes = 5 << 30 // the limit of S3's PutObject

// UploadKey names a file that an attempt uploads for one of its outputs.
type UploadKey struct {
	Org, Task       uuid.UUID
	Attempt, Output int
	Name            string // a plain file name, see ValidateUploadName; unused for a whole output
}

// Upload is a file of the upload area.
type Upload struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	ETag  string `json:"etag"` // identifies the content; without quotes
}

// UploadedAttempt is an attempt with files in the upload area.
type UploadedAttempt struct {
	Task    uuid.UUID
	Attempt int
	Newest  time.Time // when the last of its files was written
}

// uploadArea keeps uploads under the keys of UploadKey.
type uploadArea interface {
	// putUpload stores a file durably. The same bytes again are the same upload; other bytes are a conflict.
	putUpload(ctx context.Context, key string, r io.Reader, limit int64) (Upload, error)
	// listUploads returns the files right below the prefix, with their ETags.
	listUploads(ctx context.Context, prefix string) ([]Upload, error)
	// fetchUpload makes a local file of an upload with the given size and ETag.
	fetchUpload(ctx context.Context, key string, want Upload, local string) error
	// uploadTimes returns when each file below the prefix was written, by its key.
	uploadTimes(ctx context.Context, prefix string) (map[string]time.Time, error)
	// dropUpload removes a file if it exists.
	dropUpload(ctx context.Context, key string) error
	// dropUploads removes all files below the prefix, including unfinished ones.
	dropUploads(ctx context.Context, prefix string) error
}

var uploadName = late.Pattern(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$`)

// ValidateUploadName accepts plain file names: at most 255 letters, digits, '.', '_' and '-', without a leading dot.
func ValidateUploadName(name string) error {
	if !uploadName.MatchString(name) {
		return fault.New(fault.Invalid, "%q cannot name an uploaded file", name).
			WithHint("use 1 to 255 of A-Z a-z 0-9 . _ - without a leading dot, for example part-0001.parquet")
	}
	return nil
}

func (k UploadKey) attemptPrefix() string {
	return path.Join(uploadsDir, k.Org.String(), k.Task.String(), strconv.Itoa(k.Attempt)) + "/"
}

func (k UploadKey) outputPrefix() string {
	return k.attemptPrefix() + strconv.Itoa(k.Output) + "/"
}

func (k UploadKey) key() (string, error) {
	if err := ValidateUploadName(k.Name); err != nil {
		return "", err
	}
	if k.Attempt < 1 || k.Output < 0 {
		return "", fault.New(fault.Invalid, "there is no attempt %d with output %d", k.Attempt, k.Output)
	}
	return k.outputPrefix() + k.Name, nil
}

// MaxUpload returns the size limit of one uploaded file, in bytes.
func (s *Storage) MaxUpload() int64 { return s.maxUpload }

// PutUpload stores a file of a running attempt durably. The same bytes under the same name are the same upload, so
// that a request may be repeated. Other bytes are a fault.Conflict; more bytes than allowed are a fault.TooLarge.
func (s *Storage) PutUpload(ctx context.Context, key UploadKey, r io.Reader) (Upload, error) {
	name, err := key.key()
	if err != nil {
		return Upload{}, err
	}
	up, err := s.uploads.putUpload(ctx, name, r, s.maxUpload)
	if err != nil {
		return Upload{}, fmt.Errorf("upload %s of output %d: %w", key.Name, key.Output, err)
	}
	return up, nil
}

// ListUploads returns what an attempt has uploaded for an output, by name. It omits names that PutUpload would refuse,
// which a task with storage credentials may have put there.
func (s *Storage) ListUploads(ctx context.Context, key UploadKey) ([]Upload, error) {
	list, err := s.uploads.listUploads(ctx, key.outputPrefix())
	if err != nil {
		return nil, fmt.Errorf("list the uploads of output %d: %w", key.Output, err)
	}
	list = slices.DeleteFunc(list, func(u Upload) bool { return !uploadName.MatchString(u.Name) })
	slices.SortFunc(list, func(a, b Upload) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// FetchUploads copies an output's uploads to dir under their names, in the given order. A missing file is a
// fault.NotFound; one with another size or ETag is a fault.Conflict. An empty ETag is not compared. Seal may move the
// local files; the uploads stay until DropUploads.
func (s *Storage) FetchUploads(ctx context.Context, key UploadKey, uploads []Upload, dir string) ([]string, error) {
	local := make([]string, len(uploads))
	for i, u := range uploads {
		key.Name = u.Name
		name, err := key.key()
		if err != nil {
			return nil, err
		}
		local[i] = filepath.Join(dir, u.Name)
		if err := s.uploads.fetchUpload(ctx, name, u, local[i]); err != nil {
			return nil, fmt.Errorf("fetch upload %s of output %d: %w", u.Name, key.Output, err)
		}
	}
	return local, nil
}

// UploadPrefix returns the key prefix, ending in a slash, under which a task with storage credentials puts an output's
// uploads. It is empty if the storage is not a bucket.
func (s *Storage) UploadPrefix(key UploadKey) string {
	if s.s3 == nil {
		return ""
	}
	return s.s3.key(key.outputPrefix())
}

// DropUpload removes an uploaded file that is no longer needed. It may be repeated.
func (s *Storage) DropUpload(ctx context.Context, key UploadKey) error {
	name, err := key.key()
	if err == nil {
		err = s.uploads.dropUpload(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("drop upload %s of output %d: %w", key.Name, key.Output, err)
	}
	return nil
}

// DropUploads removes all that an attempt uploaded. It may be repeated.
func (s *Storage) DropUploads(ctx context.Context, org, task uuid.UUID, attempt int) error {
	if err := s.uploads.dropUploads(ctx, UploadKey{Org: org, Task: task,
		Attempt: attempt}.attemptPrefix()); err != nil {
		return fmt.Errorf("drop the uploads of attempt %d of task %s: %w", attempt, task, err)
	}
	return nil
}

// UploadedAttempts returns the org's attempts with files in the upload area: running attempts, and those whose uploads
// were not dropped.
func (s *Storage) UploadedAttempts(ctx context.Context, org uuid.UUID) ([]UploadedAttempt, error) {
	times, err := s.uploads.uploadTimes(ctx, path.Join(uploadsDir, org.String())+"/")
	if err != nil {
		return nil, fmt.Errorf("list the uploads of org %s: %w", org, err)
	}
	return attemptsOf(times), nil
}

// attemptsOf reads tasks and attempts from keys, in their order. It skips other keys.
func attemptsOf(times map[string]time.Time) []UploadedAttempt {
	var found []UploadedAttempt
	at := map[string]int{}
	for key, written := range times {
		parts := strings.SplitN(key, "/", 5) // .uploads, org, task, attempt, the rest
		if len(parts) < 5 {
			continue
		}
		task, err := uuid.Parse(parts[2])
		attempt, err2 := strconv.Atoi(parts[3])
		if err != nil || err2 != nil || attempt < 1 {
			continue
		}

		prefix := parts[2] + "/" + parts[3]
		i, known := at[prefix]
		if !known {
			i = len(found)
			at[prefix] = i
			found = append(found, UploadedAttempt{Task: task, Attempt: attempt})
		}
		if written.After(found[i].Newest) {
			found[i].Newest = written
		}
	}

	slices.SortFunc(found, func(a, b UploadedAttempt) int {
		if c := strings.Compare(a.Task.String(), b.Task.String()); c != 0 {
			return c
		}
		return a.Attempt - b.Attempt
	})
	return found
}

func uploadedAlready() error {
	return fault.New(fault.Conflict, "a file with this name has already been uploaded, with other content").
		WithHint("choose another name")
}

// limited reads at most limit bytes and fails if there are more.
type limited struct {
	r     io.Reader
	left  int64
	limit int64
}

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return 0, fault.New(fault.TooLarge, "the file has more than %d bytes", l.limit).
			WithHint("write several smaller files")
	}
	return n, err
}

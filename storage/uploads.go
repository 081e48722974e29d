package storage

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// What a task on another machine writes goes to the upload area first: .uploads/<org>/<task>/<attempt>/<output>/<name>,
// which no reader ever looks at. At its completion the server fetches the files, checks that they are what was said, and
// seals them as it seals what an operator wrote in its own process: so nothing that holds a worker's credentials, which
// outlive its lease, can change what is committed. See docs/decisions/0012-uploads-are-sealed-by-the-server.md.
//
// No slug begins with a dot, so the area is beside the orgs' folders and a rule for its prefix concerns it alone.

// uploadsDir is the area's folder.
const uploadsDir = ".uploads"

// DefaultMaxUploadBytes is the most that one file may have, where Config does not say.
const DefaultMaxUploadBytes = 5 << 30 // what S3 takes in one PutObject

// UploadKey names a file that an attempt uploads for one of its outputs.
type UploadKey struct {
	Org, Task       uuid.UUID
	Attempt, Output int
	Name            string // a plain file name, see ValidateUploadName; not used where a whole output is meant
}

// Upload is a file of the upload area.
type Upload struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	ETag  string `json:"etag"` // what its content is known by; without quotes
}

// UploadedAttempt is an attempt that has something in the upload area.
type UploadedAttempt struct {
	Task    uuid.UUID
	Attempt int
	Newest  time.Time // when the last of its files was written
}

// uploadArea keeps uploads under keys that UploadKey makes.
type uploadArea interface {
	// putUpload is durable when it returns. The same bytes again are the same upload, others a conflict.
	putUpload(ctx context.Context, key string, r io.Reader, limit int64) (Upload, error)
	// listUploads returns the files right below the prefix, with their ETags.
	listUploads(ctx context.Context, prefix string) ([]Upload, error)
	// fetchUpload makes a local file of an upload that has the given size and ETag.
	fetchUpload(ctx context.Context, key string, want Upload, local string) error
	// uploadTimes returns when each file below the prefix was written, by its key.
	uploadTimes(ctx context.Context, prefix string) (map[string]time.Time, error)
	// dropUpload removes a file, if it is there.
	dropUpload(ctx context.Context, key string) error
	// dropUploads removes all below the prefix, what is unfinished included.
	dropUploads(ctx context.Context, prefix string) error
}

var uploadName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$`)

// ValidateUploadName accepts a plain file name: letters, digits, '.', '_' and '-', at most 255, no dot in front.
func ValidateUploadName(name string) error {
	if !uploadName.MatchString(name) {
		return fault.New(fault.Invalid, "%q cannot name an uploaded file", name).
			WithHint("use 1 to 255 of A-Z a-z 0-9 . _ - and no dot in front, for example part-0001.parquet")
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
		return "", fault.New(fault.Invalid, "attempt %d, output %d: there is none such", k.Attempt, k.Output)
	}
	return k.outputPrefix() + k.Name, nil
}

// MaxUpload is how many bytes one uploaded file may have.
func (s *Storage) MaxUpload() int64 { return s.maxUpload }

// PutUpload keeps a file of a running attempt. It is durable when PutUpload returns. The same bytes under the same name
// again are the same upload, so a request may be repeated; other bytes are a fault.Conflict, and more bytes than are
// allowed a fault.TooLarge.
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

// ListUploads returns what an attempt has uploaded for an output, by name. Names that PutUpload would refuse are left out:
// who has storage credentials may have put them there.
func (s *Storage) ListUploads(ctx context.Context, key UploadKey) ([]Upload, error) {
	list, err := s.uploads.listUploads(ctx, key.outputPrefix())
	if err != nil {
		return nil, fmt.Errorf("list the uploads of output %d: %w", key.Output, err)
	}
	list = slices.DeleteFunc(list, func(u Upload) bool { return !uploadName.MatchString(u.Name) })
	slices.SortFunc(list, func(a, b Upload) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// FetchUploads makes local files of an output's uploads in dir, named as they are, in the order given. A file that is
// missing is a fault.NotFound, one that has another size or ETag than given a fault.Conflict. An empty ETag is not compared.
// Seal may move the local files; the uploads stay until DropUploads.
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

// UploadPrefix is where an output's uploads are, for one who puts them there with storage credentials: a key prefix of the
// bucket, with a slash at its end. It is empty where the storage is no bucket.
func (s *Storage) UploadPrefix(key UploadKey) string {
	if s.s3 == nil {
		return ""
	}
	return s.s3.key(key.outputPrefix())
}

// DropUpload removes a file that an attempt uploaded, which is needed no more. It may be repeated.
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
	if err := s.uploads.dropUploads(ctx, UploadKey{Org: org, Task: task, Attempt: attempt}.attemptPrefix()); err != nil {
		return fmt.Errorf("drop the uploads of attempt %d of task %s: %w", attempt, task, err)
	}
	return nil
}

// UploadedAttempts returns the org's attempts that have something in the upload area: those that run, and those whose
// uploads nobody dropped.
func (s *Storage) UploadedAttempts(ctx context.Context, org uuid.UUID) ([]UploadedAttempt, error) {
	times, err := s.uploads.uploadTimes(ctx, path.Join(uploadsDir, org.String())+"/")
	if err != nil {
		return nil, fmt.Errorf("list the uploads of org %s: %w", org, err)
	}
	return attemptsOf(times), nil
}

// attemptsOf reads tasks and attempts from keys, in their order. What has no such key is passed over.
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
	return fault.New(fault.Conflict, "a file of this name is uploaded already, with other content").WithHint("choose another name")
}

// limited reads at most the limit and fails where there is more.
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
		return 0, fault.New(fault.TooLarge, "the file has more than %d bytes", l.limit).WithHint("write several smaller files")
	}
	return n, err
}

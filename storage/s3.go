package storage

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
)

// S3Config names the bucket of the Parquet files, in AWS or on another server that speaks S3.
type S3Config struct {
	Bucket    string
	Prefix    string // of every key, without leading or trailing slash; empty: dagctl owns the whole bucket
	Region    string // default: of the environment, else us-east-1
	Endpoint  string // URL of a server that is not AWS
	PathStyle bool   // the bucket is in the path instead of the host name, as most servers other than AWS need it

	AccessKeyID, SecretAccessKey string // default: of the environment, the shared config or the machine's role

	CacheBytes int64 // of objects cached in the root folder; 0: none
	PartBytes  int64 // larger files are uploaded in parts of this size; default 16 MiB, at least 5 MiB

	// What the credentials of tasks are made from; see Credentials.
	RoleARN     string // empty: tasks get none; {org} stands for the org's slug
	ExternalID  string // as the role's trust policy requires; {org} stands for the org's slug
	STSEndpoint string // URL of a server that is not AWS
	// PlainPuts omits the condition on If-None-Match from the credentials' policy, for servers that do not support it.
	PlainPuts bool
}

// bucket is Parquet in objects, whose keys are the paths of files below a common prefix.
type bucket struct {
	S3Config
	client *s3.Client
	sts    *sts.Client
	prefix string   // ending in a slash, or empty
	work   *os.Root // local folder
	cache  *cache

	rows Rows

	// checksum is the algorithm for the checksums of parts; none if AWS_REQUEST_CHECKSUM_CALCULATION says that
	// the server does not support them. S3 needs to know at the beginning of an upload which checksums its parts
	// will have.
	checksum types.ChecksumAlgorithm
}

const (
	defaultRegion    = "us-east-1"
	defaultPartBytes = 16 << 20
	leastPartBytes   = 5 << 20 // S3's own
)

// Characters with a meaning in policies or URLs cannot be in a prefix.
var (
	prefixPattern = late.Pattern(`^[A-Za-z0-9_][A-Za-z0-9._=-]*(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*$`)
	bucketPattern = late.Pattern(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
)

// Validate checks the config without accessing the bucket.
func (c S3Config) Validate() error {
	switch {
	case !bucketPattern.MatchString(c.Bucket):
		return fault.New(fault.Invalid, "bucket %q is not a valid bucket name", c.Bucket)
	case c.Prefix != "" && !prefixPattern.MatchString(c.Prefix):
		return fault.New(fault.Invalid, "prefix %q is not valid", c.Prefix).
			WithHint("use letters, digits and . _ - =, with slashes only between them")
	case (c.AccessKeyID == "") != (c.SecretAccessKey == ""):
		return fault.New(fault.Invalid, "access_key_id and secret_access_key go together").
			WithHint("leave both out to take them from the environment or the machine's role")
	case c.PartBytes != 0 && c.PartBytes < leastPartBytes:
		return fault.New(fault.Invalid, "parts of %d bytes are too small; S3 needs at least %d", c.PartBytes,
			leastPartBytes)
	case c.CacheBytes < 0:
		return fault.New(fault.Invalid, "the cache cannot have %d bytes", c.CacheBytes)
	}
	return nil
}

func newBucket(c S3Config, work *os.Root, rows Rows) (*bucket, error) {
	if err := c.Validate(); err != nil {
		return nil, fault.New(fault.Invalid, "storage.s3: %w", err)
	}
	options := []func(*config.LoadOptions) error{}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	if c.AccessKeyID != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.AccessKeyID,
			c.SecretAccessKey, "")))
	}

	// It reads variables and files. The network is needed for credentials only, at their first use.
	loaded, err := config.LoadDefaultConfig(context.Background(), options...)
	if err != nil {
		return nil, fault.New(fault.Invalid, "storage.s3: %w", err)
	}

	loaded.Region = cmp.Or(loaded.Region, defaultRegion)
	c.Region, c.PartBytes = loaded.Region, cmp.Or(c.PartBytes, defaultPartBytes)
	b := &bucket{S3Config: c, work: work, rows: rows}
	if b.cache, err = openCache(filepath.Join(work.Name(), ".cache"), c.CacheBytes); err != nil {
		return nil, fmt.Errorf("storage.s3: the cache: %w", err)
	}
	if loaded.RequestChecksumCalculation != aws.RequestChecksumCalculationWhenRequired {
		b.checksum = types.ChecksumAlgorithmCrc32
	}
	if c.Prefix != "" {
		b.prefix = strings.TrimSuffix(c.Prefix, "/") + "/"
	}

	b.client = s3.NewFromConfig(loaded, func(o *s3.Options) {
		o.UsePathStyle = c.PathStyle
		o.DisableLogOutputChecksumValidationSkipped = true // ranges and parts have none
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
		}
	})

	b.sts = sts.NewFromConfig(loaded, func(o *sts.Options) {
		if c.STSEndpoint != "" {
			o.BaseEndpoint = aws.String(c.STSEndpoint)
		}
	})
	return b, nil
}

// key returns the key of an object by its path; name is its inverse.
func (b *bucket) key(name string) string { return b.prefix + name }

func (b *bucket) name(key string) string { return strings.TrimPrefix(key, b.prefix) }

func (*bucket) location(a Attempt) string { return attemptDir(a) }

func (*bucket) owns(location string) bool { return isAttemptDir(location) }

// seal puts each file under a new key. Nobody knows the objects until the manifest is committed, so half a seal does no
// harm; the record of the attempt leads to what a killed seal has left. seal itself removes nothing, because another
// process may be sealing the same attempt after a repeated completion, and both then have the same objects.
func (b *bucket) seal(ctx context.Context, a Attempt, local []string, m Manifest) (Manifest, error) {
	m.Location = attemptDir(a)
	for i, source := range local {
		file := &m.Files[i]
		file.Path = fmt.Sprintf("%s%05d.parquet", m.Location, i)
		put, err := b.putFile(ctx, b.key(file.Path), source)
		file.ETag, file.SHA256 = put.etag, put.sha256
		if fault.Is(err, fault.Conflict) {
			return m, fault.New(fault.Conflict, "attempt %d of task %s is already sealed", a.Number, a.Task)
		}
		if err != nil {
			return m, err
		}
		b.cache.keep(*file, source)
	}
	return m, nil
}

func (b *bucket) verify(ctx context.Context, m Manifest) error {
	if err := m.ownPartition(); err != nil {
		return err
	}
	return inParallel(ctx, len(m.Files), func(ctx context.Context, i int) error {
		file := m.Files[i]
		if err := plainPath(file.Path); err != nil {
			return err
		}
		have, err := b.look(ctx, b.key(file.Path))
		if err != nil {
			return err
		}
		same, err := b.committed(ctx, file, have)
		if err != nil {
			return err
		}
		if !same {
			return fault.New(fault.Invalid, "object %s has %d bytes and ETag %s, but %d and %s in its manifest",
				b.key(file.Path), have.bytes, have.etag, file.Bytes, file.ETag)
		}
		return nil
	})
}

func (b *bucket) verifyPublished(ctx context.Context, _ Generation, _ string, _ int64, m Manifest) error {
	return b.verify(ctx, m)
}

// publish has nothing to do: the committed list is the publication.
func (*bucket) publish(context.Context, pgx.Tx, Attempt, int64, Manifest) error { return nil }

func (*bucket) renumber(context.Context, pgx.Tx, Generation, string, int64) error { return nil }

func (*bucket) forget(context.Context, Generation, string, int64) error { return nil }

// drop has nothing to do: a bucket has no folders.
func (*bucket) drop(context.Context, Generation, []string) error { return nil }

func (b *bucket) discard(ctx context.Context, location string) error {
	return b.removeAll(ctx, location)
}

// takeOver copies within the bucket, because an object has only one name.
func (b *bucket) takeOver(
	ctx context.Context, tx pgx.Tx, from Generation, a Attempt, _ int64, m Manifest,
) (Manifest, error) {
	old := m.Files
	if err := ofGeneration(from, old); err != nil {
		return m, err
	}

	m.Location, m.Files = attemptDir(a), make([]File, len(old))
	return m, pg.WhileAlive(ctx, tx, func() error {
		return inParallel(ctx, len(old), func(ctx context.Context, i int) error {
			if err := plainPath(old[i].Path); err != nil {
				return err
			}

			m.Files[i] = old[i]
			m.Files[i].Path = fmt.Sprintf("%s%05d.parquet", m.Location, i)

			etag, err := b.copy(ctx, old[i], b.key(m.Files[i].Path))
			m.Files[i].ETag = etag
			if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict) {
				return fault.New(fault.Conflict, "object %s no longer exists", b.key(old[i].Path))
			}
			return err
		})
	})
}

// parallel is how many requests one call makes at the same time.
const parallel = 8

func inParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

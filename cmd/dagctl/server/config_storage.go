package server

import (
	"cmp"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/storage"
)

// StorageConfig says where the bytes of datasets are.
type StorageConfig struct {
	Root        string    `yaml:"root"`          // folder of the Parquet files, or of the cache of the bucket's objects
	MaxUploadMB int64     `yaml:"max_upload_mb"` // per file that a task uploads
	S3          *S3Config `yaml:"s3"`            // bucket of the Parquet files; absent: they are in Root
}

// S3Config is a bucket, and how the server reaches it.
type S3Config struct {
	Bucket          string `yaml:"bucket"`
	Prefix          string `yaml:"prefix"`   // of every key
	Region          string `yaml:"region"`   // empty: the region in the AWS settings of the process
	Endpoint        string `yaml:"endpoint"` // empty: the endpoint of AWS
	PathStyle       bool   `yaml:"path_style"`
	AccessKeyID     string `yaml:"access_key_id"` // empty: the AWS SDK finds credentials
	SecretAccessKey string `yaml:"secret_access_key"`
	CacheMB         int64  `yaml:"cache_mb"`     // of objects kept in the root folder; negative: none
	RoleARN         string `yaml:"role_arn"`     // role whose credentials tasks get
	ExternalID      string `yaml:"external_id"`  // that the role requires
	STSEndpoint     string `yaml:"sts_endpoint"` // empty: the endpoint of AWS
	PlainPuts       bool   `yaml:"plain_puts"`   // issue credentials without the condition on If-None-Match
}

var defaultStorage = StorageConfig{MaxUploadMB: storage.DefaultMaxUploadBytes >> 20}

// defaultCacheMB is the size of the cache where there is a bucket.
const defaultCacheMB = 4096

// storage returns the config of the storage slice. pool and rows may be nil where no row is read.
func (c StorageConfig) storage(pool *pgxpool.Pool, rows storage.Rows) storage.Config {
	cfg := storage.Config{Root: c.Root, Pool: pool, Rows: rows, MaxUploadBytes: c.MaxUploadMB << 20}
	if s := c.S3; s != nil {
		cfg.S3 = &storage.S3Config{
			Bucket: s.Bucket, Prefix: s.Prefix, Region: s.Region, Endpoint: s.Endpoint, PathStyle: s.PathStyle,
			AccessKeyID: s.AccessKeyID, SecretAccessKey: s.SecretAccessKey,
			CacheBytes: max(cmp.Or(s.CacheMB, defaultCacheMB), 0) << 20,
			RoleARN:    s.RoleARN, ExternalID: s.ExternalID, STSEndpoint: s.STSEndpoint, PlainPuts: s.PlainPuts,
		}
	}
	return cfg
}

func (c StorageConfig) check(found *problems) {
	if c.Root == "" {
		found.add("storage.root", "is not set: --storage-root, DAGCTL_STORAGE_ROOT or the config file")
	}
	found.between("storage.max_upload_mb", c.MaxUploadMB, 1, storage.DefaultMaxUploadBytes>>20)
	if c.S3 != nil {
		if err := c.storage(nil, nil).S3.Validate(); err != nil {
			found.add("storage.s3", "%v", err)
		}
	}
}

package main

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/storage"
)

type storageConfig struct {
	Root        string    `yaml:"root"`          // folder of the Parquet files, or of what is kept of them here
	MaxUploadMB int64     `yaml:"max_upload_mb"` // of one file that a task uploads
	S3          *s3Config `yaml:"s3"`            // bucket of the Parquet files; absent: they are in the folder
}

type s3Config struct {
	Bucket          string `yaml:"bucket"`
	Prefix          string `yaml:"prefix"`   // of every key
	Region          string `yaml:"region"`   // empty: as AWS_REGION and the like say
	Endpoint        string `yaml:"endpoint"` // of S3, where it is not AWS's own
	PathStyle       bool   `yaml:"path_style"`
	AccessKeyID     string `yaml:"access_key_id"` // empty: as the AWS SDK finds credentials
	SecretAccessKey string `yaml:"secret_access_key"`
	CacheMB         int64  `yaml:"cache_mb"`     // of objects kept in the root folder
	RoleARN         string `yaml:"role_arn"`     // whose credentials tasks get
	ExternalID      string `yaml:"external_id"`  // that the role asks for
	STSEndpoint     string `yaml:"sts_endpoint"` // of STS, where it is not AWS's own
	PlainPuts       bool   `yaml:"plain_puts"`   // leave the condition on If-None-Match out of the credentials
}

var defaultStorage = storageConfig{MaxUploadMB: storage.DefaultMaxUploadBytes >> 20}

// defaultCacheMB is of a server with a bucket.
const defaultCacheMB = 4096

// storage is what the config means. pool may be nil where no generation in Postgres is read.
func (c storageConfig) storage(pool *pgxpool.Pool) storage.Config {
	cfg := storage.Config{Root: c.Root, Pool: pool, MaxUploadBytes: c.MaxUploadMB << 20}
	if s := c.S3; s != nil {
		cfg.S3 = &storage.S3Config{
			Bucket: s.Bucket, Prefix: s.Prefix, Region: s.Region, Endpoint: s.Endpoint, PathStyle: s.PathStyle,
			AccessKeyID: s.AccessKeyID, SecretAccessKey: s.SecretAccessKey, CacheBytes: cmp.Or(s.CacheMB, defaultCacheMB) << 20,
			RoleARN: s.RoleARN, ExternalID: s.ExternalID, STSEndpoint: s.STSEndpoint, PlainPuts: s.PlainPuts,
		}
		if s.CacheMB < 0 { // none
			cfg.S3.CacheBytes = 0
		}
	}
	return cfg
}

func (c storageConfig) check(wrong func(where, format string, args ...any)) {
	if c.Root == "" {
		wrong("storage.root", "is not set: --storage-root, DAGCTL_STORAGE_ROOT or the config file")
	}
	const most = storage.DefaultMaxUploadBytes >> 20
	if c.MaxUploadMB < 1 || c.MaxUploadMB > most {
		wrong("storage.max_upload_mb", "%d is not between 1 and %d", c.MaxUploadMB, most)
	}
	if c.S3 != nil {
		if err := c.storage(nil).S3.Validate(); err != nil {
			wrong("storage.s3", "%v", err)
		}
	}
}

// checkStorage tries the bucket.
func checkStorage(ctx context.Context, cfg *serverConfig) (findings []finding) {
	if cfg.Storage.S3 == nil || cfg.Storage.Root == "" {
		return nil
	}
	const check = "storage"
	s, err := storage.New(cfg.Storage.storage(nil))
	if err != nil {
		return []finding{failed(check, err)}
	}
	for _, f := range s.Check(ctx) {
		findings = append(findings, finding{Check: check, OK: f.OK, Detail: f.Detail, Hint: f.Hint})
	}
	if err := s.Close(); err != nil {
		findings = append(findings, failed(check, err))
	}
	return findings
}

package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// CredentialsLifetime is how long the credentials of a task are valid: the shortest time that STS allows. They cannot
// be revoked, so they outlive a lease.
const CredentialsLifetime = 15 * time.Minute

// Grant is what the credentials of one attempt should allow.
type Grant struct {
	Org     uuid.UUID
	OrgSlug string
	Task    uuid.UUID
	Attempt int
	Outputs []int          // indexes of the task's outputs
	Inputs  []GrantedInput // the task's pinned inputs, in order
}

// GrantedInput is the pinned content of one input.
type GrantedInput struct {
	Generation Generation
	Partitions []Partition
}

// Credentials give a task access to the bucket for CredentialsLifetime: to read its pinned inputs and to put new
// objects under its attempt's prefixes. They cannot list, overwrite or delete anything.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	ExpiresAt       time.Time
	Endpoint        string // empty: AWS
	Region          string
	Bucket          string
	// Keys that may be read. If a pinned object is missing here, it did not fit: the server reads it for the task
	ReadPrefixes  []string
	WritePrefixes []string // one for each output, ending in a slash
}

// Credentials asks STS for the credentials of an attempt: AssumeRole with the external id and a session policy of
// exactly what is granted, so that they allow only what both the role and the policy allow. {org} in the role and the
// external id stands for the org's slug, so that each org may have a role of its own.
//
// The policy is tested with a third-party evaluator. The request to STS and the condition on If-None-Match follow AWS's
// documentation and were not tested against AWS: see docs/decisions/0014-credentials-by-session-policy.md.
//
// It returns a fault.NotFound if the server has no bucket or no role for this, and a fault.Unavailable if STS refuses.
func (s *Storage) Credentials(ctx context.Context, g Grant) (Credentials, error) {
	if s.s3 == nil || s.s3.RoleARN == "" {
		return Credentials{}, fault.New(fault.NotFound, "this server issues no credentials").
			WithHint("use PUT /v1/task/outputs/{index}/{file} and GET /v1/task/inputs/{index}")
	}
	return s.s3.credentials(ctx, g)
}

func (b *bucket) credentials(ctx context.Context, g Grant) (Credentials, error) {
	role := strings.ReplaceAll(b.RoleARN, "{org}", g.OrgSlug)
	scope := policyScope{partition: partitionOfARN(role), bucket: b.Bucket, plainPuts: b.PlainPuts}
	attempt := UploadKey{Org: g.Org, Task: g.Task, Attempt: g.Attempt}

	var writes []string
	for _, output := range g.Outputs {
		attempt.Output = output
		writes = append(writes, b.key(attempt.outputPrefix()))
	}
	if len(writes) > 0 {
		scope.write = b.key(attempt.attemptPrefix())
	}

	inputs := b.keysOf(g.Inputs)
	for limit := mostPolicy; ; limit /= 2 {
		policy, reads := scope.fit(inputs, limit)
		in := &sts.AssumeRoleInput{
			RoleArn: &role, RoleSessionName: aws.String(fmt.Sprintf("dagctl-%s-%d", g.Task, g.Attempt)),
			Policy:          &policy,
			DurationSeconds: aws.Int32(int32(CredentialsLifetime / time.Second)),
		}
		if b.ExternalID != "" {
			in.ExternalId = aws.String(strings.ReplaceAll(b.ExternalID, "{org}", g.OrgSlug))
		}

		out, err := b.sts.AssumeRole(ctx, in)
		// The limit of the packed policy cannot be computed in advance.
		if large := new(types.PackedPolicyTooLargeException); errors.As(err, &large) && len(reads) > 0 {
			continue
		}
		if err == nil && out.Credentials == nil {
			err = errors.New("the answer has no credentials")
		}
		if err != nil {
			return Credentials{}, b.refused(ctx, role, err)
		}

		c := out.Credentials
		return Credentials{
			AccessKeyID: aws.ToString(c.AccessKeyId), SecretAccessKey: aws.ToString(c.SecretAccessKey),
			SessionToken: aws.ToString(c.SessionToken),
			ExpiresAt:    aws.ToTime(c.Expiration), Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Bucket,
			ReadPrefixes: reads, WritePrefixes: writes,
		}, nil
	}
}

func (b *bucket) refused(ctx context.Context, role string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fault.New(fault.Unavailable, "credentials of role %s: %w", role, err).
		WithHint("the server's own credentials need sts:AssumeRole on it, and the role's trust policy must name " +
			"them and the external id")
}

// keysOf returns the objects of each input. Inputs in Postgres have none.
func (b *bucket) keysOf(inputs []GrantedInput) [][]string {
	var keys [][]string
	for _, in := range inputs {
		var list []string
		for _, p := range in.Partitions {
			// Reading a list that names another generation's file is an error; here the list grants nothing.
			if in.Generation.Kind != Parquet || ofGeneration(in.Generation, p.Files) != nil {
				continue
			}
			for _, f := range p.Files {
				if plainPath(f.Path) == nil {
					list = append(list, b.key(f.Path))
				}
			}
		}

		slices.Sort(list)
		keys = append(keys, slices.Compact(list))
	}
	return keys
}

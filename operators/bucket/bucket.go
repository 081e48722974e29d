// Package bucket connects to the buckets that users name in configs, with the keys that they name: never with those of
// the server.
//
// Vocabulary: an address is a bucket with its server and its keys. It owns no tables.
package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/operators"
)

// Schema has the properties of an Address in a config's schema. No bucket has an empty name.
const Schema = `
    "bucket": {"type": "string", "minLength": 1, "description": "The name of the bucket."},
    "endpoint": {"type": "string", "pattern": "^https?://",
      "description": "URL of the S3 server; that of AWS in the region by default."},
    "region": {"type": "string", "pattern": "^[a-z0-9-]{1,63}$",
      "description": "The bucket's region; us-east-1 by default."},
    "path_style": {"type": "boolean",
      "description": "The bucket is part of the path of URLs, the default; false: of their host."},
    "access_key_id": {"type": "string", "minLength": 1,
      "description": "The id of the key to sign with; it may be {secret: NAME}. Without one, requests are not signed."},
    "secret_access_key": {"type": "string", "minLength": 1, "description": "The key, as {secret: NAME}."}`

const defaultRegion = "us-east-1"

// MaxKey is the most bytes of a key in S3.
const MaxKey = 1024

// Address is the part of a config that names a bucket.
type Address struct {
	Bucket          string `json:"bucket"`
	Endpoint        string `json:"endpoint"`
	Region          string `json:"region"`
	PathStyle       *bool  `json:"path_style"`
	AccessKeyID     any    `json:"access_key_id"`
	SecretAccessKey any    `json:"secret_access_key"`

	// URL is that of the server, once Check has passed.
	URL *url.URL `json:"-"`
}

var bucketName = late.Pattern(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`)

// Check returns what is wrong with an address.
func (a *Address) Check() *dag.ConfigError {
	if !bucketName.MatchString(a.Bucket) {
		return &dag.ConfigError{Key: "bucket", Message: "it must be the name of a bucket alone, such as acme-data"}
	}
	if err := operators.WrittenOut("secret_access_key", "key", a.SecretAccessKey); err != nil {
		return err
	}
	if (a.AccessKeyID == nil) != (a.SecretAccessKey == nil) {
		return &dag.ConfigError{Key: "secret_access_key", Message: "access_key_id and secret_access_key go together"}
	}

	var err error
	if a.URL, err = url.Parse(endpoint(a.Endpoint, a.Region)); err != nil || a.URL.Host == "" || a.URL.User != nil ||
		path.Clean("/"+a.URL.Path) != "/" || a.URL.RawQuery != "" {
		return &dag.ConfigError{Key: "endpoint", Message: "it must be the URL of a server alone, such as " +
			"https://s3.example.com"}
	}
	if a.PathStyle != nil && !*a.PathStyle && !hostName.MatchString(a.Bucket) {
		return &dag.ConfigError{Key: "path_style", Message: "only a bucket with a name of small letters, digits and " +
			"hyphens can be part of a host"}
	}
	return nil
}

var hostName = late.Pattern(`^[a-z0-9][a-z0-9-]*[a-z0-9]$`)

func endpoint(given, region string) string {
	return cmp.Or(strings.TrimSuffix(given, "/"), "https://s3."+cmp.Or(region, defaultRegion)+".amazonaws.com")
}

// SecretsTo is the SecretsTo of operators whose configs have an address.
func SecretsTo(config map[string]any) string {
	text, _ := config["endpoint"].(string)
	region, _ := config["region"].(string)
	return endpoint(text, region)
}

// Client returns a client for the server. secretTo returns the text of a config field for requests to a URL. Requests
// are signed with the address's keys, or not at all. Answers to retryer are tried again; nil: as the SDK does.
func (a *Address) Client(
	d *dial.Dialer, secretTo func(*url.URL, any, string) (string, error), retryer aws.Retryer,
) (*s3.Client, error) {
	id, err := secretTo(a.URL, a.AccessKeyID, "config.access_key_id")
	if err != nil {
		return nil, err
	}
	key, err := secretTo(a.URL, a.SecretAccessKey, "config.secret_access_key")
	if err != nil {
		return nil, err
	}

	options := s3.Options{
		Region: cmp.Or(a.Region, defaultRegion), BaseEndpoint: aws.String(a.URL.String()),
		UsePathStyle: a.PathStyle == nil || *a.PathStyle, Retryer: retryer,
		HTTPClient: bounded{d.StrictClient(0)}, Credentials: aws.AnonymousCredentials{},
		DisableLogOutputChecksumValidationSkipped: true,
	}
	if id != "" {
		options.Credentials = aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(id, key, ""))
	}
	return s3.New(options), nil
}

// StatusOf returns the status of the answer that an error is about; 0: there was none.
func StatusOf(err error) int {
	var answered *smithyhttp.ResponseError
	if errors.As(err, &answered) && answered.Response != nil {
		return answered.HTTPStatusCode()
	}
	return 0
}

var errorCode = late.Pattern(`^[A-Za-z][A-Za-z0-9.]{0,63}$`)

// Failed classifies the error of a request. It quotes nothing of the answer but the code of the error. Errors that
// another request would meet, too, are permanent. needs says what the key must be allowed to do.
func (a *Address) Failed(ctx context.Context, what, needs string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case fault.Is(err, fault.Forbidden):
		return operators.Permanent(fault.New(fault.Forbidden,
			"%s of bucket %s: %s may not be reached: its address is not public", what, a.Bucket, a.URL.Hostname()).
			WithHint("an admin can allow its network in the server's config"))
	case fault.Is(err, fault.TooLarge):
		return err
	}

	var api smithy.APIError
	status, code := StatusOf(err), ""
	if errors.As(err, &api) && errorCode.MatchString(api.ErrorCode()) {
		code = api.ErrorCode()
	}

	at := fmt.Sprintf("%s of bucket %s at %s", what, a.Bucket, a.URL.Host)
	switch {
	case status == 0, status/100 == 2: // it is gone, or what it sends is cut or no XML
		return fault.New(fault.Unavailable, "%s: the server does not answer as S3 does", at)
	case code == "NoSuchBucket":
		return operators.Permanent(fault.New(fault.NotFound, "%s: there is no such bucket", at))
	case status == http.StatusNotFound && (code == "" || code == "NoSuchKey" || code == "NotFound"):
		return fault.New(fault.NotFound, "%s: it is not there", at)
	}

	said := fault.New(fault.Unavailable, "%s: the server answered %d %s", at, status, code)
	switch {
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return operators.Permanent(said.WithHint("its key needs %s", needs))
	case status/100 == 3:
		return operators.Permanent(said.WithHint(
			"name the bucket's `region` or `endpoint`: redirects are not followed"))
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return said
	}
	return operators.Permanent(said)
}

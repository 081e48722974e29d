package s3source

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Users name the server, and what it answers to a listing is kept in the memory of this process: it is bounded.
const (
	// maxAnswer is the most bytes of an answer that is no object. A listing of 1,000 of the longest keys, each byte of
	// which is escaped, has half of that.
	maxAnswer = 8 << 20
	// maxObjects is how many objects a listing may have.
	maxObjects = 2_000_000
	// maxKey is the most bytes of a key in S3.
	maxKey = 1024
	// maxTag is the most bytes of an ETag; those of S3 have up to 38.
	maxTag = 256
)

// bounded is an HTTP client whose answers, other than objects, are cut after maxAnswer bytes.
type bounded struct{ client *http.Client }

// Do implements s3.HTTPClient.
func (b bounded) Do(request *http.Request) (*http.Response, error) {
	response, err := b.client.Do(request)
	if err != nil {
		return response, err
	}
	listing := request.URL.Query().Has("list-type")
	if response.StatusCode/100 != 2 || listing {
		response.Body = cut{io.LimitReader(response.Body, maxAnswer), response.Body}
	}
	if response.StatusCode/100 != 2 || !listing {
		return response, nil
	}

	// A page of HTML has no objects either: that is no empty bucket.
	body := bufio.NewReaderSize(response.Body, 1<<10)
	if begin, _ := body.Peek(1 << 10); !bytes.Contains(begin, []byte("ListBucketResult")) {
		return nil, errors.Join(errors.New("the answer is no listing"), response.Body.Close())
	}
	response.Body = cut{body, response.Body}
	return response, nil
}

// cut is the beginning of a body.
type cut struct {
	io.Reader
	io.Closer
}

// check refuses objects that no server would list that speaks S3, and those behind the last that a listing may have.
func check(key string, o types.Object, number int) error {
	switch {
	case number > maxObjects:
		return operators.Permanent(fault.New(fault.TooLarge, "there are more than %d objects", maxObjects).
			WithHint("read them by several jobs, each with a prefix of its own"))
	case len(key) > maxKey || len(aws.ToString(o.ETag)) > maxTag:
		return operators.Permanent(fault.New(fault.Invalid,
			"the server lists an object whose key or ETag is longer than those of S3"))
	}
	return nil
}

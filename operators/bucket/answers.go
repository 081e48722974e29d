package bucket

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
)

// maxAnswer is the most bytes of an answer that is no object. A listing of 1,000 of the longest keys, each byte of
// which is escaped, has half of that.
const maxAnswer = 8 << 20

// bounded is an HTTP client whose answers, other than objects, are cut after maxAnswer bytes: users name the server.
type bounded struct{ client *http.Client }

// Do implements s3.HTTPClient.
func (b bounded) Do(request *http.Request) (*http.Response, error) {
	response, err := b.client.Do(request)
	if err != nil {
		return response, err
	}
	listing := request.URL.Query().Has("list-type")
	if response.StatusCode/100 != 2 || listing || request.Method != http.MethodGet {
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

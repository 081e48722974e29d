// Package testaws gives tests, and benchmarks, an SQS server and Lambda endpoints on loopback ports: fauxqs and
// serverless-offline, which tools/ pins and scripts/test_servers.sh installs. They run on Node, start in under a
// second, and never outlive the test process. Neither checks credentials, but both speak AWS's own protocols, so
// product code talks to them unchanged.
//
// Vocabulary: an endpoint is the URL that replaces AWS's own. ServeX starts a server that the caller stops, X one that
// a test shares or owns. It owns no tables.
package testaws

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// Region is the region of every server.
const Region = "us-east-1"

// Config returns a config with the region and credentials that the servers accept, and connections that end with the
// test. Each client gets its endpoint separately.
func Config(t testing.TB) aws.Config {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return aws.Config{Region: Region, Credentials: credentials.NewStaticCredentialsProvider("AKIATEST", "secret", ""),
		HTTPClient: &http.Client{Transport: transport}}
}

// Front stands between a client and an endpoint, for faults that a server does not produce by itself. The response that
// it returns replaces the server's; nil passes the request on, with its current body.
func Front(t testing.TB, endpoint string, meddle func(r *http.Request,
	body []byte) (passed []byte, answer *http.Response)) string {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
	}, Transport: meddler{transport, meddle}}
	front := httptest.NewServer(proxy)
	t.Cleanup(func() { front.Close(); transport.CloseIdleConnections() })
	return front.URL
}

type meddler struct {
	next   http.RoundTripper
	meddle func(*http.Request, []byte) ([]byte, *http.Response)
}

// RoundTrip implements http.RoundTripper.
func (m meddler) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	body, answer := m.meddle(r, body)
	if answer != nil {
		return answer, nil
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return m.next.RoundTrip(r)
}

// Answer returns an answer with a body in JSON, which may be empty.
func Answer(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(strings.NewReader(body))}
}

// Refusal returns an error in the form of AWS's services.
func Refusal(status int, code, message string) *http.Response {
	r := Answer(status, `{"__type": "`+code+`", "message": "`+message+`"}`)
	r.Header.Set("X-Amzn-Errortype", code)
	return r
}

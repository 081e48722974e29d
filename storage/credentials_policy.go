package storage

import (
	"encoding/json"
	"slices"
	"strings"
)

// mostPolicy is the longest session policy, from the limits of AssumeRole in the STS API reference.
const mostPolicy = 2048

// policyScope is what a session policy is about, apart from the objects that it lets the task read.
type policyScope struct {
	partition string // of ARNs: aws, aws-cn
	bucket    string
	write     string // key prefix; empty: writing is not allowed
	plainPuts bool
}

type policyDocument struct {
	Version   string
	Statement []policyStatement
}

type policyStatement struct {
	Effect    string
	Action    string
	Resource  []string
	Condition map[string]map[string]string `json:",omitempty"`
}

// fit returns a policy of at most limit bytes that allows reading all objects of as many inputs as fit, in order, and
// returns these objects. The policy has an input as a whole or not at all, and never a pattern that would allow reading
// more than was pinned.
func (s policyScope) fit(inputs [][]string, limit int) (policy string, reads []string) {
	reads = []string{}
	policy = s.document(nil)
	for _, keys := range inputs {
		if len(keys) == 0 {
			continue
		}
		longer := slices.Concat(reads, keys)
		slices.Sort(longer)
		longer = slices.Compact(longer)
		if with := s.document(longer); len(with) <= limit {
			policy, reads = with, longer
		}
	}
	return policy, reads
}

// document returns the policy. It denies all that it does not allow.
func (s policyScope) document(reads []string) string {
	doc := policyDocument{Version: "2012-10-17"}
	if len(reads) > 0 {
		get := policyStatement{Effect: "Allow", Action: "s3:GetObject"}
		for _, key := range reads {
			get.Resource = append(get.Resource, s.arn(key))
		}
		doc.Statement = append(doc.Statement, get)
	}

	if s.write != "" {
		put := policyStatement{Effect: "Allow", Action: "s3:PutObject", Resource: []string{s.arn(s.write) + "*"}}
		if !s.plainPuts { // only with If-None-Match, for which S3 accepts only *, so that nothing is overwritten
			put.Condition = map[string]map[string]string{"Null": {"s3:if-none-match": "false"}}
		}
		doc.Statement = append(doc.Statement, put)
	}

	if len(doc.Statement) == 0 { // a policy needs a statement
		doc.Statement = []policyStatement{{Effect: "Deny", Action: "*", Resource: []string{"*"}}}
	}
	text, _ := json.Marshal(doc) // plain strings always marshal
	return string(text)
}

func (s policyScope) arn(key string) string {
	return "arn:" + s.partition + ":s3:::" + s.bucket + "/" + key
}

// partitionOfARN returns the second part of an ARN.
func partitionOfARN(arn string) string {
	if parts := strings.Split(arn, ":"); len(parts) > 1 && parts[1] != "" {
		return parts[1]
	}
	return "aws"
}

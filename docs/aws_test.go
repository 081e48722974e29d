package docs_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/worker"
)

// texts is a string, or a list of strings.
type texts []string

func (l *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*l = texts{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(l))
}

// policy is an IAM policy: a role's own, or its trust policy.
type policy struct {
	Version   string
	Statement []statement
}

type statement struct {
	Sid       string
	Effect    string
	Action    texts
	Resource  texts
	Principal map[string]texts
	Condition map[string]map[string]texts
}

// strictly decodes a block, and fails on unknown keys.
func strictly[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&v), text)
	return v
}

// awsBlocks returns the blocks of docs/aws.md of one sort, by the name that follows the sort.
func awsBlocks(t *testing.T, sort string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, b := range pageAt(t, "docs/aws.md").blocks {
		if name, ok := strings.CutPrefix(b.info, "json "+sort); ok {
			found[strings.TrimSpace(name)] = b.text
		}
	}
	require.NotEmpty(t, found, sort)
	return found
}

func policies(t *testing.T) map[string]policy {
	t.Helper()
	found := map[string]policy{}
	for role, text := range awsBlocks(t, "policy") {
		found[role] = strictly[policy](t, text)
	}
	return found
}

var (
	iamAction = regexp.MustCompile(`^(ecr|kms|lambda|logs|s3|sqs|ssm|sts):[A-Z][A-Za-z]+$`)
	iamARN    = regexp.MustCompile(`^arn:aws:(ecr|iam|kms|lambda|logs|s3|sqs|ssm):(REGION)?:(ACCOUNT)?:\S+$`)
	iamValue  = regexp.MustCompile(`^(Null|(String(Equals|Like)|Arn(Equals|Like)|Bool)(IfExists)?)$`)
)

func TestJSONOnAWSIsOfAKnownSort(t *testing.T) {
	t.Parallel()
	sorts := []string{"policy", "trust", "task-definition", "queue-attributes"}
	for _, b := range pageAt(t, "docs/aws.md").blocks {
		if words := strings.Fields(b.info); len(words) > 0 && words[0] == "json" {
			require.Contains(t, sorts, strings.Join(words[1:min(2, len(words))], ""), "line %d", b.line)
		}
	}
}

func TestAWSPoliciesAreWellFormed(t *testing.T) {
	t.Parallel()
	for role, p := range policies(t) {
		require.Equal(t, "2012-10-17", p.Version, role)
		require.NotEmpty(t, p.Statement, role)
		for _, s := range p.Statement {
			checkStatement(t, role, s)
			require.Empty(t, s.Principal, "%s: a role's own policy is about the role", role)
			require.NotEmpty(t, s.Resource, role)
			for _, resource := range s.Resource {
				if resource == "*" {
					require.Equal(t, texts{"ecr:GetAuthorizationToken"}, s.Action,
						"%s: of these calls only the login has no resource", role)
					continue
				}
				require.Regexp(t, iamARN, resource, role)
				for _, action := range s.Action {
					checkResource(t, role, action, resource)
				}
			}
		}
	}
}

func TestAWSTrustPoliciesAreWellFormed(t *testing.T) {
	t.Parallel()
	trusts := map[string]policy{}
	for role, text := range awsBlocks(t, "trust") {
		p := strictly[policy](t, text)
		trusts[role] = p
		require.Equal(t, "2012-10-17", p.Version, role)
		require.NotEmpty(t, p.Statement, role)
		for _, s := range p.Statement {
			checkStatement(t, role, s)
			require.Empty(t, s.Resource, "%s: a trust policy is about its own role", role)
			require.Equal(t, texts{"sts:AssumeRole"}, s.Action, role)
			require.Len(t, s.Principal, 1, role)
			for kind, who := range s.Principal {
				require.Contains(t, []string{"AWS", "Service"}, kind, role)
				require.NotContains(t, who, "*", role)
			}
		}
	}
	task := trusts["task"].Statement[0]
	require.NotEmpty(t, task.Condition["StringEquals"]["sts:ExternalId"], "tasks' role asks for an external id")
	require.Equal(t, texts{"arn:aws:iam::ACCOUNT:role/dagctl-server"}, task.Principal["AWS"])
}

func checkStatement(t *testing.T, role string, s statement) {
	t.Helper()
	require.Equal(t, "Allow", s.Effect, role)
	require.NotEmpty(t, s.Action, role)
	for _, action := range s.Action {
		require.Regexp(t, iamAction, action, role)
	}
	for operator := range s.Condition {
		require.Regexp(t, iamValue, operator, role)
	}
}

// checkResource checks that an action's resource belongs to its service, and in S3 that it is an object or a bucket, as
// the action needs.
func checkResource(t *testing.T, role, action, resource string) {
	t.Helper()
	service, name, _ := strings.Cut(action, ":")
	if service == "sts" {
		service = "iam"
	}
	require.Equal(t, service, strings.Split(resource, ":")[2], "%s: %s on %s", role, action, resource)
	if service != "s3" {
		return
	}
	ofObjects := !strings.HasPrefix(name, "ListBucket") && !strings.HasPrefix(name, "GetBucket")
	require.Equal(t, ofObjects, strings.Contains(resource, "/"), "%s: %s on %s", role, action, resource)
}

// needed has the actions that each SDK call needs, from the API references of the services.
var needed = map[string][]string{
	"kms.GetPublicKey":                    {"kms:GetPublicKey"},
	"kms.Sign":                            {"kms:Sign"},
	"lambda.GetFunctionEventInvokeConfig": {"lambda:GetFunctionEventInvokeConfig"},
	"lambda.Invoke":                       {"lambda:InvokeFunction"},
	"s3.AbortMultipartUpload":             {"s3:AbortMultipartUpload"},
	"s3.CompleteMultipartUpload":          {"s3:PutObject"},
	"s3.CopyObject":                       {"s3:GetObject", "s3:PutObject"},
	"s3.CreateMultipartUpload":            {"s3:PutObject"},
	"s3.DeleteObject":                     {"s3:DeleteObject"},
	"s3.GetBucketVersioning":              {"s3:GetBucketVersioning"},
	"s3.GetObject":                        {"s3:GetObject"},
	"s3.HeadBucket":                       {"s3:ListBucket"},
	"s3.HeadObject":                       {"s3:GetObject"},
	"s3.ListMultipartUploads":             {"s3:ListBucketMultipartUploads"},
	"s3.ListObjectsV2":                    {"s3:ListBucket"},
	"s3.PutObject":                        {"s3:PutObject"},
	"s3.UploadPart":                       {"s3:PutObject"},
	"s3.UploadPartCopy":                   {"s3:GetObject", "s3:PutObject"},
	"sqs.ChangeMessageVisibility":         {"sqs:ChangeMessageVisibility"},
	"sqs.DeleteMessageBatch":              {"sqs:DeleteMessage"},
	"sqs.GetQueueAttributes":              {"sqs:GetQueueAttributes"},
	"sqs.GetQueueUrl":                     {"sqs:GetQueueUrl"},
	"sqs.ReceiveMessage":                  {"sqs:ReceiveMessage"},
	"sqs.SendMessageBatch":                {"sqs:SendMessage"},
	"sts.AssumeRole":                      {"sts:AssumeRole"},
}

// whose has the role of the process that each package runs in. Operators have none: they sign with a
// user's own keys.
var whose = map[string]string{"authz": "server", "dispatcher/backends": "server", "storage": "server",
	"worker/queue": "worker", "operators/s3source": "user", "operators/parquetexport": "exporter"}

// TestAWSPoliciesAllowTheCallsOfTheCode checks that each role may do what the calls of its process need, and nothing
// else.
func TestAWSPoliciesAllowTheCallsOfTheCode(t *testing.T) {
	t.Parallel()
	want := map[string]map[string]bool{"server": {}, "worker": {}, "task": {}, "user": {}, "exporter": {}}
	for folder, calls := range awsCalls(t) {
		role, known := whose[folder]
		require.True(t, known, "%s calls AWS: whose role does it have?", folder)
		for _, call := range calls {
			actions, known := needed[call]
			require.True(t, known, "%s calls %s: which actions does that need?", folder, call)
			for _, action := range actions {
				want[role][action] = true
			}
		}
	}
	// Tasks need at most the actions of session policies.
	source, err := os.ReadFile(filepath.Join(root, "storage", "credentials_policy.go"))
	require.NoError(t, err)
	for _, match := range regexp.MustCompile(`Action: "(s3:\w+)"`).FindAllSubmatch(source, -1) {
		want["task"][string(match[1])] = true
	}
	require.Equal(t, map[string]bool{"s3:GetObject": true, "s3:ListBucket": true}, want["user"],
		"docs/operators.md says what a user's key needs")
	exporter := []string{"s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"}
	require.Equal(t, exporter, slices.Sorted(maps.Keys(want["exporter"])),
		"docs/operators.md says what an export's key needs")
	delete(want, "user")
	delete(want, "exporter")

	all := policies(t)
	for role, actions := range want {
		allowed := map[string]bool{}
		for _, s := range all[role].Statement {
			for _, action := range s.Action {
				allowed[action] = true
			}
		}
		require.Equal(t, slices.Sorted(maps.Keys(actions)), slices.Sorted(maps.Keys(allowed)), role)
	}
	for _, s := range all["lambda-execution"].Statement {
		for _, action := range s.Action {
			require.True(t, strings.HasPrefix(action, "logs:"), "a function needs nothing but its log, and not %s",
				action)
		}
	}
}

// awsCalls returns the AWS calls in the code, such as s3.PutObject, by folder.
func awsCalls(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))
		if entry.IsDir() {
			if base := entry.Name(); name != root &&
				(strings.HasPrefix(base, ".") || base == "node_modules" || base == "testdata") ||
				strings.HasPrefix(rel, "internal/test") || rel == "tools" ||
				rel == "bench" { // which speak to the test servers
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		services := map[string]string{} // by the package's name in the file
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			service, ok := strings.CutPrefix(path, "github.com/aws/aws-sdk-go-v2/service/")
			if !ok || strings.Contains(service, "/") {
				continue
			}
			local := service
			if spec.Name != nil {
				local = spec.Name.Name
			}
			services[local] = service
		}
		folder := filepath.ToSlash(filepath.Dir(rel))
		ast.Inspect(file, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := selector.X.(*ast.Ident)
			if !ok || services[pkg.Name] == "" {
				return true
			}
			if call, ok := strings.CutSuffix(selector.Sel.Name, "Input"); ok {
				found[folder] = append(found[folder], services[pkg.Name]+"."+call)
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

// taskDefinition has the fields of an ECS task definition that the page uses.
type taskDefinition struct {
	Family, NetworkMode, CPU, Memory, TaskRoleArn, ExecutionRoleArn string
	RequiresCompatibilities                                         []string
	EphemeralStorage                                                struct{ SizeInGiB int }
	ContainerDefinitions                                            []struct {
		Name, Image string
		Essential   bool
		Command     []string
		Environment []struct{ Name, Value string }
		Secrets     []struct{ Name, ValueFrom string }
		StopTimeout int
		HealthCheck struct {
			Command                                 []string
			Interval, Timeout, Retries, StartPeriod int
		}
		LogConfiguration struct {
			LogDriver string
			Options   map[string]string
		}
	}
}

func TestECSTaskDefinitionFitsTheWorker(t *testing.T) {
	t.Parallel()
	d := strictly[taskDefinition](t, awsBlocks(t, "task-definition")[""])
	require.Len(t, d.ContainerDefinitions, 1)
	c := d.ContainerDefinitions[0]
	require.Equal(t, "worker", c.Command[0])
	help := processtest.Must(t, t.TempDir(), "worker", "--help")
	flags := map[string]string{}
	for i, word := range c.Command {
		if strings.HasPrefix(word, "--") {
			require.Contains(t, help, word+" ")
			flags[word] = c.Command[i+1]
		}
	}
	drain, err := time.ParseDuration(flags["--drain-timeout"])
	require.NoError(t, err)
	require.Equal(t, worker.DefaultDrainTimeout, drain)
	require.Less(t, drain, time.Duration(c.StopTimeout)*time.Second)
	require.LessOrEqual(t, c.StopTimeout, 120, "ECS waits no longer")
	require.Contains(t, strings.Join(c.HealthCheck.Command, " "), "http://"+flags["--health-address"]+"/healthz")
	require.Equal(t, "DAGCTL_TOKEN", c.Secrets[0].Name)
	for _, e := range c.Environment {
		require.NotContains(t, e.Name, "TOKEN", "a token is a secret")
	}
	var readsToken bool
	for _, s := range policies(t)["ecs-execution"].Statement {
		readsToken = readsToken || slices.Contains(s.Action, "ssm:GetParameters") &&
			slices.Contains(s.Resource, c.Secrets[0].ValueFrom)
	}
	require.True(t, readsToken, "the execution role may not read %s", c.Secrets[0].ValueFrom)
	pool, err := strconv.Atoi(flags["--pool-size"])
	require.NoError(t, err)
	each, err := strconv.Atoi(flags["--memory-mb"])
	require.NoError(t, err)
	memory, err := strconv.Atoi(d.Memory)
	require.NoError(t, err)
	require.Less(t, pool*each, memory)
}

func TestQueueAttributesAreThoseThatDoctorWants(t *testing.T) {
	t.Parallel()
	q := strictly[struct {
		VisibilityTimeout, DelaySeconds, ReceiveMessageWaitTimeSeconds, MessageRetentionPeriod, SqsManagedSseEnabled,
		RedrivePolicy string
	}](t, awsBlocks(t, "queue-attributes")[""])
	redrive := strictly[struct {
		DeadLetterTargetArn string `json:"deadLetterTargetArn"`
		MaxReceiveCount     string `json:"maxReceiveCount"`
	}](t, q.RedrivePolicy)
	visibility, err := strconv.Atoi(q.VisibilityTimeout)
	require.NoError(t, err)
	receives, err := strconv.Atoi(redrive.MaxReceiveCount)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, visibility, 30)
	assert.GreaterOrEqual(t, receives, 3)
	assert.Equal(t, "0", q.DelaySeconds)
	assert.Regexp(t, iamARN, redrive.DeadLetterTargetArn)
	assert.True(t, strings.HasSuffix(redrive.DeadLetterTargetArn, ":dagctl-dead"))
}

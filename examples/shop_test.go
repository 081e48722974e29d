package examples_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/testmysql"
	"github.com/dagctl/dagctl/internal/tests3"
)

// newShop returns the story of the shop with databases, a bucket and an API of the test's own.
func newShop(t *testing.T) *story {
	t.Helper()
	my, bucket := testmysql.New(t), tests3.Start(t)
	crmURL, analystsURL := testdb.Empty(t), testdb.Empty(t)
	crm, analysts := testdb.Behind(t, crmURL, nil), testdb.Behind(t, analystsURL, nil)
	require.Equal(t, crm.User+crm.Password, analysts.User+analysts.Password)
	api := processtest.FreeAddress(t)
	database := func(port int, name, user string) string {
		return fmt.Sprintf("port: %d\n      database: %s\n      user: %s\n", port, name, user)
	}

	return newStory(t, "shop",
		database(3306, "shop", "dagctl"), database(my.Port, my.Database, my.User),
		database(5432, "crm", "dagctl"), database(crm.Port, crm.Database, crm.User),
		database(5432, "analysts", "dagctl"), database(crm.Port, analysts.Database, analysts.User),
		"http://127.0.0.1:3306", fmt.Sprintf("http://127.0.0.1:%d", my.Port),
		"http://127.0.0.1:5432", fmt.Sprintf("http://127.0.0.1:%d", crm.Port),
		"sudo mariadb shop", fmt.Sprintf("mariadb --protocol tcp -h 127.0.0.1 -P %d -u %s -p%s %s", my.Port, my.User,
			my.Password, my.Database),
		"sudo -u postgres psql -q crm", "psql -q '"+crmURL+"'",
		"sudo -u postgres psql --csv analysts", "psql --csv '"+analystsURL+"'",
		"mysql-password", my.Password, "postgres-password", crm.Password,
		"--user shop:bucket-password", "--user "+bucket.AccessKeyID+":"+bucket.SecretAccessKey,
		"access_key_id: shop", "access_key_id: "+bucket.AccessKeyID, "bucket-password", bucket.SecretAccessKey,
		"http://127.0.0.1:7480", bucket.Endpoint, "http://127.0.0.1:7180", "http://"+api,
		"shop/api.py\n", "shop/api.py --port "+strings.TrimPrefix(api, "127.0.0.1:")+"\n")
}

// TestShopExample runs the commands of the README against a MariaDB, a PostgreSQL, an S3 server, and the API that lies
// beside it.
func TestShopExample(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.do(t, "fill")
	start(t, s.shell(t, "api"))
	server := s.serve(t)
	s.do(t, "secrets")
	s.settle(t)
	s.shows(t, "sales")
	s.shows(t, "report")
	s.settle(t)
	loaded := s.tasks(t, "report")
	s.do(t, "change")
	s.shows(t, "changed")
	s.settle(t)
	require.Equal(t, loaded+1, s.tasks(t, "report"), "the day of the order is loaded, and no other")

	s.do(t, "ship", "tasks")
	s.shows(t, "shipped")

	s.do(t, "kronor")
	s.shows(t, "why")
	s.shows(t, "shipped")
	s.do(t, "rate")
	s.shows(t, "paid")
	s.settle(t)
	loaded = s.tasks(t, "report")
	s.do(t, "load")
	processtest.Eventually(t, "the day is loaded again", func() bool { return s.tasks(t, "report") == loaded+1 })
	s.shows(t, "paid")
	server.Stop(t)
}

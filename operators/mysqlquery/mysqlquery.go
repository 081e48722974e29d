// Package mysqlquery has the operator mysql_query, a source that runs one SELECT on a MySQL or MariaDB database of the
// user's and publishes its rows. Package remotequery has what it shares with the sources of other databases. It owns no
// tables.
package mysqlquery

import (
	"context"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/mysqlremote"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/remotequery"
	"github.com/dagctl/dagctl/operators/textfile"
)

// New returns the operator.
func New(o operators.Options) (operators.Operator, error) {
	return remotequery.New(o, remotequery.Database{Operator: "mysql_query", Version: "1.0.0",
		Address: mysqlremote.Schema, SecretsTo: mysqlremote.SecretsTo, Parse: parse})
}

type config struct {
	mysqlremote.Address
	remotequery.Config
}

func parse(given map[string]any) (asked remotequery.Asked, refused *dag.ConfigError) {
	var c config
	if err := operators.DecodeConfig(given, &c); err != nil {
		return asked, &dag.ConfigError{Message: err.Error()}
	}
	if err := c.Address.Check(); err != nil {
		return asked, &dag.ConfigError{Message: err.Error()}
	}
	s, refused := c.Config.Check(dialect, "MySQL")
	asked = remotequery.Asked{Config: c.Config, Statement: s, Host: c.Host}
	asked.Read = func(
		ctx context.Context, d *dial.Dialer, t *operators.Task, standing []textfile.Column, file string,
	) (remotequery.Answer, error) {
		return c.read(ctx, d, t, s, standing, file)
	}
	return asked, refused
}

package proof_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pgdev"
)

// follow gives the server a standby, and makes commits wait until the standby has them. The standby reaches the server
// through the plain proxy, because a server that was killed comes back on another port.
func (p *postgres) follow(ctx context.Context) {
	p.t.Helper()
	p.standbyDir = p.folder()
	require.NoError(p.t, p.server.BackUp(ctx, p.standbyDir, pgdev.Standby))
	leader, err := url.Parse(p.server.LoopbackURL())
	require.NoError(p.t, err)
	host, port, err := net.SplitHostPort(p.plain.address())
	require.NoError(p.t, err)
	password, _ := leader.User.Password()
	standby := p.run(p.standbyDir, map[string]string{"primary_conninfo": fmt.Sprintf(
		"host=%s port=%s user=%s password=%s sslmode=disable", host, port, leader.User.Username(), password),
		"wal_retrieve_retry_interval": "100ms", "wal_receiver_timeout": "5s"})
	p.t.Cleanup(func() { require.NoError(p.t, standby.Stop(context.Background())) })
	p.standby = standby

	p.ask(ctx, p.server, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	p.ask(ctx, p.server, `SELECT pg_reload_conf()`)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.Equal(c, "1", p.ask(ctx, p.server,
			`SELECT count(*)::text FROM pg_stat_replication WHERE sync_state = 'sync'`))
	}, time.Minute, 20*time.Millisecond)
}

// failOver loses the server with all that it has, and promotes its standby.
func (p *postgres) failOver(ctx context.Context) {
	p.t.Helper()
	p.end()
	p.ask(ctx, p.standby, `SELECT pg_promote()`)
	p.dir = p.standbyDir
	p.lead(p.standby)
	p.follow(ctx)
}

// ask runs a statement with at most one row of one text.
func (p *postgres) ask(ctx context.Context, server *pgdev.Server, sql string) (answer string) {
	p.t.Helper()
	conn, err := pgx.Connect(ctx, server.LoopbackURL())
	require.NoError(p.t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(p.t, err)
	defer rows.Close()
	if rows.Next() {
		values, err := rows.Values()
		require.NoError(p.t, err)
		answer = fmt.Sprint(values[0])
	}
	rows.Close()
	require.NoError(p.t, rows.Err())
	return answer
}

// Command gomysql serves go-mysql-server, with its tables in memory, on a port of the loopback address.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"log"
	"net"
	"strconv"

	sqle "github.com/dolthub/go-mysql-server"
	"github.com/dolthub/go-mysql-server/memory"
	"github.com/dolthub/go-mysql-server/server"
	"github.com/dolthub/go-mysql-server/sql"
	"github.com/dolthub/go-mysql-server/sql/mysql_db"
)

func main() {
	port := flag.Int("port", 3306, "port of the loopback address")
	cert, key := flag.String("cert", "", "file of the certificate"), flag.String("key", "", "file of its key")
	admin, password := flag.String("admin", "root", "account that may do all"), flag.String("password", "", "its password")
	flag.Parse()
	if err := serve(net.JoinHostPort("127.0.0.1", strconv.Itoa(*port)), *cert, *key, *admin, *password); err != nil {
		log.Fatal(err)
	}
}

func serve(address, cert, key, admin, password string) error {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	databases := memory.NewDBProvider()
	engine := sqle.NewDefault(databases)
	accounts := engine.Analyzer.Catalog.MySQLDb
	accounts.SetEnabled(true)
	accounts.SetPersister(&mysql_db.NoopPersister{})
	editor := accounts.Editor()
	accounts.AddSuperUser(editor, admin, "%", password)
	if err := accounts.Persist(sql.NewContext(context.Background()), editor); err != nil {
		return err
	}
	editor.Close()

	config := server.Config{Protocol: "tcp", Address: address, Version: "8.0.33",
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}
	s, err := server.NewServer(config, engine, sql.NewContext, memory.NewSessionBuilder(databases), nil)
	if err != nil {
		return err
	}
	return s.Start()
}

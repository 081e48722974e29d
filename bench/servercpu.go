package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// serverCPU returns the processor time of PostgreSQL, including all of its processes and those that have ended. It is
// 0 if PostgreSQL runs on another machine, or if this machine is not Linux.
func serverCPU(ctx context.Context, conn *pgx.Conn) (time.Duration, error) {
	var backend int
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		return 0, err
	}
	self, ok := readProcess(backend)
	if !ok || !strings.HasPrefix(self.name, "postgres") {
		return 0, nil
	}

	for {
		server, _ := readProcess(self.parent)
		ticks, err := ticksOf(self.parent)
		if err != nil {
			return 0, err
		}
		// A process that ends meanwhile may not be counted at all.
		if after, _ := readProcess(self.parent); after.ended == server.ended {
			const ticksPerSecond = 100 // of /proc, on every Linux that Go knows
			return time.Duration(server.own+server.ended+ticks) * time.Second / ticksPerSecond, nil
		}
	}
}

// ticksOf adds up a process and its running descendants.
func ticksOf(parent int) (ticks int64, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, folder := range processes {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if p, ok := readProcess(pid); ok && p.parent == parent {
			ticks += p.own
		}
	}
	return ticks, nil
}

// process is what /proc says about a process; times are in ticks.
type process struct {
	name       string
	parent     int
	own, ended int64 // of itself; of its children that have ended
}

func readProcess(pid int) (p process, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	_, rest, _ := strings.Cut(string(text), "(")
	end := strings.LastIndex(rest, ")")
	if end < 0 {
		return p, false
	}

	p.name = rest[:end]
	fields := strings.Fields(rest[end+1:])
	const parent, userTime, endedTime = 1, 11, 13 // proc(5), from the state on
	if len(fields) <= endedTime+1 {
		return p, false
	}

	number := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
	p.parent = int(number(parent))
	p.own, p.ended = number(userTime)+number(userTime+1), number(endedTime)+number(endedTime+1)
	return p, true
}

#!/bin/sh
# Install what dagctl's build and tests need and this machine lacks. Says nothing when nothing is missing.
set -eu

say() { echo "setup: $*" >&2; }

if ! command -v go >/dev/null; then
	say "Go is missing. Install it from https://go.dev/dl/ (the version in go.mod or newer) and put its bin folder on the PATH."
	exit 1
fi

# A PostgreSQL server of version 15 or newer, where internal/pgdev looks for one.
has_postgres() {
	for server in "$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres \
		/usr/libexec/postgresql*/postgres /opt/homebrew/opt/postgresql*/bin/postgres \
		/usr/local/opt/postgresql*/bin/postgres /home/linuxbrew/.linuxbrew/opt/postgresql*/bin/postgres \
		/Applications/Postgres.app/Contents/Versions/*/bin/postgres /usr/local/pgsql/bin/postgres; do
		[ -x "$server" ] || continue
		major=$("$server" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
		[ "$major" -ge 15 ] && return 0
	done
	return 1
}

# DuckDB is C++ behind cgo, so a C compiler, the C++ library and libc's headers are needed.
has_compilers() {
	command -v gcc >/dev/null && command -v g++ >/dev/null && echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1
}

# The Python SDK runs on 3.9 and newer.
has_python() {
	command -v python3 >/dev/null && python3 -c 'import ssl, sys; sys.exit(sys.version_info < (3, 9))'
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
		sudo "$@"
	else
		say "run this as root, then try again: $*"
		exit 1
	fi
}

debian() {
	missing=
	has_compilers || missing="$missing gcc g++ libc6-dev"
	has_postgres || missing="$missing postgresql"
	has_python || missing="$missing python3"
	[ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
	[ -n "$missing" ] || return 0
	say "installing with apt-get:$missing"
	# The package would make a cluster and start a server on it; dagctl starts its own.
	quiet=/etc/postgresql-common/createcluster.d/dagctl.conf
	as_root mkdir -p "${quiet%/*}"
	as_root sh -c "echo 'create_main_cluster = false' >$quiet"
	as_root apt-get update -qq
	# shellcheck disable=SC2086 # a list of words
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
	as_root rm -f "$quiet"
}

macos() {
	if ! xcode-select -p >/dev/null 2>&1; then
		say "the compilers are missing. Install them with: xcode-select --install"
		exit 1
	fi
	missing=
	has_postgres || missing="$missing postgresql@17"
	has_python || missing="$missing python@3.13"
	[ -n "$missing" ] || return 0
	if ! command -v brew >/dev/null; then
		say "these are missing:$missing. Install Homebrew from https://brew.sh, or PostgreSQL 15 or newer from https://postgresapp.com"
		say "and Python 3.9 or newer from https://www.python.org"
		exit 1
	fi
	say "installing with Homebrew:$missing"
	# shellcheck disable=SC2086 # a list of words
	brew install --quiet $missing
}

case "$(uname -s)" in
Darwin) macos ;;
*)
	if command -v apt-get >/dev/null; then
		debian
	elif ! has_compilers || ! has_postgres || ! has_python; then
		say "install gcc, g++, libc's headers, a PostgreSQL server (15 or newer) and Python (3.9 or newer), for example:"
		say "dnf install gcc gcc-c++ glibc-devel postgresql-server python3"
		exit 1
	fi
	;;
esac

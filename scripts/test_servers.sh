#!/bin/sh
# Install what tests talk to and is not written in Go: the servers that tools/*/package-lock.json pin, beside them, a
# Node for .cache where this machine has none or one too old, a browser, MariaDB, clients of databases and pandas. Says
# nothing when nothing is missing.
set -eu
cd "$(dirname "$0")/.."

# Node has certificates of its own; the machine's, which Go and git go by, may have more.
ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
[ ! -r "$ca" ] || export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$ca}"

say() { echo "setup: $*" >&2; }

# Node 20 or newer.
runs() { command -v "$1" >/dev/null && "$1" -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; }

own=$PWD/.cache/node/node_modules/.bin

has_node() { runs node || runs "$own/node"; }

# A browser of Chromium's kind, where chromedp looks for one.
has_browser() {
	for browser in chromium chromium-browser google-chrome google-chrome-stable \
		/Applications/Chromium.app/Contents/MacOS/Chromium \
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
		command -v "$browser" >/dev/null && return 0
	done
	return 1
}

apt_install() {
	root=
	[ "$(id -u)" = 0 ] || root=sudo
	say "installing with apt-get: $*"
	$root apt-get update -qq
	$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

get_browser() {
	has_browser && return 0
	if [ "$(uname -s)" != Darwin ] && command -v apt-get >/dev/null; then
		apt_install chromium
	fi
	has_browser || { say "install Chromium or Chrome, for example: dnf install chromium"; exit 1; }
}

get_npm() {
	command -v npm >/dev/null && return 0
	if [ "$(uname -s)" = Darwin ]; then
		command -v brew >/dev/null || { say "Node is missing: install version 20 or newer from https://nodejs.org"; exit 1; }
		say "installing with Homebrew: node"
		brew install --quiet node
	elif command -v apt-get >/dev/null; then
		apt_install nodejs npm
	else
		say "install Node 20 or newer with npm, for example: dnf install nodejs npm"
		exit 1
	fi
}

# MariaDB, where internal/testmysql looks for it.
has_mariadb() {
	PATH="$PATH:/usr/sbin:/usr/libexec:/opt/homebrew/opt/mariadb/bin:/usr/local/opt/mariadb/bin:/usr/local/mysql/bin"
	# mariadb-install-db runs my_print_defaults.
	command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null &&
		command -v my_print_defaults >/dev/null
}

get_mariadb() {
	(has_mariadb) && return 0
	if [ "$(uname -s)" != Darwin ] && command -v apt-get >/dev/null; then
		# The programs without the service; the tests start servers of their own. Debian has my_print_defaults in that
		# of the client.
		apt_install mariadb-server-core mariadb-client-core
	elif command -v brew >/dev/null; then
		say "installing with Homebrew: mariadb"
		brew install --quiet mariadb
	fi
	(has_mariadb) || { say "install MariaDB, for example: dnf install mariadb-server"; exit 1; }
}

# The clients by which the README of examples/shop fills what it reads.
get_clients() {
	for client in psql mariadb curl; do
		command -v "$client" >/dev/null && continue
		if [ "$(uname -s)" != Darwin ] && command -v apt-get >/dev/null; then
			apt_install postgresql-client mariadb-client-core curl
		fi
		command -v "$client" >/dev/null || { say "install $client"; exit 1; }
	done
}

# libfaketime, for PostgreSQL servers whose clock a test sets.
has_faketime() {
	for library in /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib64/faketime/libfaketimeMT.so.1 \
		/usr/lib/faketime/libfaketimeMT.so.1 /opt/homebrew/lib/faketime/libfaketime.1.dylib \
		/usr/local/lib/faketime/libfaketime.1.dylib; do
		[ -e "$library" ] && return 0
	done
	return 1
}

get_faketime() {
	has_faketime && return 0
	if [ "$(uname -s)" = Darwin ] && command -v brew >/dev/null; then
		say "installing with Homebrew: libfaketime"
		brew install --quiet libfaketime
	elif command -v apt-get >/dev/null; then
		apt_install libfaketime
	fi
	has_faketime || { say "install libfaketime, for example: dnf install libfaketime"; exit 1; }
}

# A Python with pandas, for the frames that the Python SDK writes, where sdk/python/frames_test.go looks for one.
has_pandas() {
	for python in "$PWD/.cache/frames/bin/python" python3 /usr/bin/python3; do
		"$python" -c 'import pandas' 2>/dev/null && return 0
	done
	return 1
}

get_pandas() {
	has_pandas && return 0
	if [ "$(uname -s)" != Darwin ] && command -v apt-get >/dev/null; then
		apt_install python3-pandas
	else
		say "installing pandas into .cache"
		python3 -m venv .cache/frames && .cache/frames/bin/python -m pip install --quiet pandas
	fi
	has_pandas || { say "install pandas for python3"; exit 1; }
}

for lock in tools/*/package-lock.json; do
	folder=${lock%/*}
	cmp -s "$lock" "$folder/node_modules/.installed" && continue
	get_npm
	if ! has_node; then
		say "installing Node 22 into .cache"
		npm install --prefix .cache/node --no-fund --no-audit --loglevel=error node@22 >/dev/null
	fi
	say "installing the packages of $folder"
	(PATH="$own:$PATH" && cd "$folder" && npm ci --no-fund --no-audit --loglevel=error >/dev/null)
	cp "$lock" "$folder/node_modules/.installed"
done
get_mariadb
get_clients
has_node || { say "Node is gone: remove tools/*/node_modules, and run this again"; exit 1; }
get_browser
get_faketime
get_pandas

#!/bin/sh
# Run the flights example. With a terminal it keeps serving until Ctrl-C; with ONCE=1, or with nobody there to press
# Ctrl-C, it ends when everything is computed.
set -eu
cd "$(dirname "$0")/.."
once=
if [ -n "${ONCE:-}" ]; then
	once=--once
elif [ "${CI:-}" = true ] || { [ ! -t 0 ] && [ ! -t 1 ]; }; then
	echo "demo: nobody at a terminal, so this ends when everything is computed (as ONCE=1 does)"
	once=--once
fi
exec bin/dagctl dev examples/us-flights $once

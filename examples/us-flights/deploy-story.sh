#!/bin/sh
# Change one SQL file, plan, deploy, watch the old numbers being served until the swap, roll back.
#
#   examples/us-flights/deploy-story.sh       with dagctl on the PATH; it works in a folder of its own
set -eu
example=$(cd "$(dirname "$0")" && pwd)
story=$(mktemp -d)
cd "$story"
server=
end() {
	[ -z "$server" ] || { kill -INT "$server" && wait "$server" || true; } 2>/dev/null
	rm -rf "$story"
}
trap end EXIT
trap 'exit 1' INT TERM

# What is deployed, and what somebody works on: a server that runs here deploys what is saved in its own folder.
for folder in deployed work; do
	mkdir "$folder"
	cp -R "$example/dag.yaml" "$example/sql" "$example/data" "$folder"
done
dagctl dev deployed --addr 127.0.0.1:0 >server.log 2>&1 &
server=$!

# quiet runs dagctl without the line that names the server.
quiet() { dagctl "$@" 2>errors || { cat errors >&2; return 1; }; }
say() { printf '\n# %s\n' "$1"; }
run() {
	printf '$ dagctl %s\n' "$*"
	quiet "$@"
}
# best is the airport with the largest share of delayed flights, as readers see it.
best() { quiet datasets preview airport_ranking --limit 1 | tail -n 1 | tr -s ' '; }

until dagctl datasets preview airport_ranking --limit 1 2>>server.log | grep -q 2001-01; do
	kill -0 "$server" 2>/dev/null || { cat server.log >&2; exit 1; }
	sleep 0.2
done

say "The month's ranking. A flight counts as delayed from 15 minutes on."
run datasets preview airport_ranking --limit 3

say "It is to count from 30 minutes on: one SQL file changes."
sed 's/f.delay >= 15/f.delay >= 30/g' deployed/sql/airport_delays.sql >work/sql/airport_delays.sql
diff deployed/sql/airport_delays.sql work/sql/airport_delays.sql || true

say "What a deploy would do: two datasets are computed anew, the flights and the routes are not."
run plan work

say "Deploy it while somebody keeps reading. These are the different answers they get, in order."
printf '$ dagctl deploy work\n'
dagctl deploy work >deployed.txt 2>deploy.log &
deploy=$!
: >answers
while kill -0 "$deploy" 2>/dev/null; do
	best >>answers
done
wait "$deploy" || { cat deploy.log >&2; exit 1; }
best >>answers
cat deployed.txt
uniq answers

say "Between the two there was nothing else: no half of a deploy, no empty table."
run datasets preview airport_ranking --limit 3

say "Back again: nothing is computed, and every dataset goes back at once, with the definition."
run rollback us-flights --yes
run datasets preview airport_ranking --limit 3

say "And forward, because what was built is still there."
run plan work

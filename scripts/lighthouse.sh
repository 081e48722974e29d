#!/bin/sh
# Measure pages of a dev server with Lighthouse, as a desktop has them: performance, accessibility and best practices have
# to be 95 or more. Needs Node, npm and Chromium, which scripts/test_servers.sh installs.
set -eu
cd "$(dirname "$0")/.."
root=$PWD work=$(mktemp -d)
server=
end() {
	[ -z "$server" ] || { kill -INT "$server" && wait "$server" || true; } 2>/dev/null
	rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

cp -R examples/us-flights "$work"
"$root/bin/dagctl" dev "$work/us-flights" --data "$work/data" --addr 127.0.0.1:0 >"$work/log" 2>&1 &
server=$!
touch "$work/log"
active() {
	until grep -q "us-flights v$1 is Active" "$work/log"; do
		kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
		sleep 0.5
	done
}
active 1
# A second version to compare with, a secret, a task: for the pages of each.
sed -i.old 's/at most two of its tasks/at most three of its tasks/; s/max_concurrency: 2/max_concurrency: 3/' \
	"$work/us-flights/dag.yaml"
active 2
dagctl() { "$root/bin/dagctl" "$@" --data "$work/data"; }
printf 'a value' | dagctl secrets set DEMO >/dev/null
task=$(dagctl tasks list --dag us-flights --limit 1 --output json | sed -n 's/.*"id": *"\([0-9a-f-]*\)".*/\1/p' | head -n 1)
link=$(sed -n 's/^dagctl dev: //p' "$work/log" | head -n 1)
url=${link%%/\?*}
cookie=$(curl -s -o "$work/page" -D - "$link" | tr -d '\r' | sed -n 's/^[Ss]et-[Cc]ookie: \([^;]*\).*/\1/p')
printf '{"Cookie": "%s"}' "$cookie" >"$work/headers.json"

CHROME_PATH=${CHROME_PATH:-$(command -v chromium || command -v google-chrome || command -v chromium-browser)}
export CHROME_PATH
measure() {
	npx --yes lighthouse@12.8.2 "$url$1" --quiet --preset=desktop --extra-headers="$work/headers.json" \
		--chrome-flags="--headless --no-sandbox" --only-categories=performance,accessibility,best-practices \
		--output=json --output-path="$work/report.json" >"$work/lighthouse.log" 2>&1
}

failed=0
for page in / /dags /dags/us-flights /dags/us-flights/jobs/airport_delays /dags/us-flights/versions/1 \
	'/dags/us-flights/versions/2/diff?with=1' /dags/us-flights/plan /dags/us-flights/backfills /dags/us-flights/pause /plan /tasks \
	"/tasks/$task" /dead /late /workers /timers '/datasets?search=delay' /datasets/airport_delays \
	/datasets/airport_delays/lineage /query /sources /sources/us-flights/flights_raw /costs /usage /secrets /secrets/DEMO \
	/tokens /users /roles /trust /audit; do
	# Now and then the browser records nothing.
	measure "$page" || measure "$page" || { cat "$work/lighthouse.log" >&2; exit 1; }
	node -e '
		const report = JSON.parse(require("fs").readFileSync(process.argv[1]));
		const scores = Object.values(report.categories).map((c) => [c.title, Math.round(c.score * 100)]);
		console.log(process.argv[2].padEnd(44), scores.map((s) => s.join(" ")).join(", "));
		process.exit(scores.every((s) => s[1] >= 95) ? 0 : 1);' "$work/report.json" "$page" || failed=1
done
exit $failed

#!/bin/sh
# Runs each fuzz target of the repository for a while, one after the other: FUZZ=60s scripts/fuzz.sh. It finds them by
# itself; what it finds wrong stays in testdata/fuzz of the package, for a test of every later run. Go sometimes ends a
# target with "context deadline exceeded" when its time is over, having found nothing: that is no failure.
set -eu
cd "$(dirname "$0")/.."

failed=0
began=$(mktemp) said=$(mktemp)
trap 'rm -f "$began" "$said"' EXIT
for file in $(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do
	package=$(dirname "$file")
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "== $package $target"
		# Go may spend a minute on making one interesting input smaller, in which it tries nothing else.
		touch "$began"
		if go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZ:-60s}" -fuzzminimizetime 1s \
			-parallel "${FUZZ_PARALLEL:-2}" >"$said" 2>&1; then
			tail -n 2 "$said"
			continue
		fi
		cat "$said"
		found=$(find "$package/testdata/fuzz/$target" -newer "$began" -type f 2>/dev/null || true)
		if [ -n "$found" ] || ! grep -q 'context deadline exceeded' "$said"; then
			failed=1
		fi
	done
done
exit $failed

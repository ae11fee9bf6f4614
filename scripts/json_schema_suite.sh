#!/usr/bin/env bash
# Puts the JSON Schema Test Suite into build/json-schema-suite, for the long tests. The package jsonschema carries it in
# its source archive, which is pinned with its hash in requirements-test.txt; the suite's own packages at npm end at an
# older draft. Where the index cannot be reached, the test skips and says so.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=build/json-schema-suite
log=build/json-schema-suite.log
pinned=$(sed -n '/^jsonschema==/,/[^\\]$/p' requirements-test.txt)
[ "$(cat "$suite/installed.txt" 2>/dev/null)" != "$pinned" ] || exit 0

echo "deskmate: getting the JSON Schema Test Suite into $suite"
rm -rf "$suite"
mkdir -p "$suite"
printf '%s\n' "$pinned" >"$suite/wanted.txt"
pip=(.venv/bin/python -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
    pip=(uv tool run pip)
fi
if ! "${pip[@]}" download --quiet --no-deps --no-binary jsonschema --require-hashes --dest "$suite" \
    --requirement "$suite/wanted.txt" >"$log" 2>&1; then
    if grep -qE 'Failed to fetch|dns error|Temporary failure|timed out|Connection|No matching distribution' "$log"; then
        echo "deskmate: the package index does not answer: the test with the suite is skipped" >&2
        exit 0
    fi
    tail -n 15 "$log" >&2
    exit 1
fi
tar --extract --gzip --file "$suite"/jsonschema-*.tar.gz --directory "$suite" --strip-components 2 --wildcards '*/json/tests'
mv "$suite/wanted.txt" "$suite/installed.txt"

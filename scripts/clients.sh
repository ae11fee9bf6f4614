#!/usr/bin/env bash
# Installs the programs that the long tests run against the server, apart from .venv: those of
# tests/clients/requirements-clients.txt into build/clients, those of tests/clients/node into its node_modules.
# `scripts/clients.sh lock` pins them again. Where an index cannot be reached, the tests skip and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

lock=tests/clients/requirements-clients.txt
python=build/clients/bin/python
log=build/clients.log
uv=$(command -v uv || echo .venv/bin/uv)
say() { echo "deskmate: $*"; }
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} NODE_USE_SYSTEM_CA=${NODE_USE_SYSTEM_CA:-1}
mkdir -p build

if [ "${1:-}" = lock ]; then
    # guidellm needs torch for its data loader: it takes the one of .venv, see below.
    echo 'torch; sys_platform == "never"' >build/clients-overrides.txt
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
        --override build/clients-overrides.txt "${lock%.txt}.in" >build/clients-lock.txt
    {
        echo "# Written by scripts/clients.sh lock from requirements-clients.in; edit that, not this."
        cat build/clients-lock.txt
    } >"$lock"
    .venv/bin/npm install --prefix tests/clients/node --package-lock-only --ignore-scripts --no-audit --no-fund
    exit
fi

settings=$(.venv/bin/python scripts/pip_settings.py) && eval "$settings"

# Returns for an index that does not answer; ends the script with the output for any other failure.
skip_if_unreachable() { # $1: what is not installed
    if grep -qE 'Failed to fetch|dns error|error sending request|timed out|ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|ERR_SOCKET' "$log"; then
        say "the package index does not answer: the tests of $1 are skipped" >&2
        return
    fi
    tail -n 15 "$log" >&2
    say "$1 could not be installed; see the output above" >&2
    exit 1
}

if ! cmp -s "$lock" build/clients/installed.txt; then
    say "installing programs that speak OpenAI's API into build/clients"
    rm -rf build/clients
    "$uv" venv --quiet --no-config --python .venv/bin/python build/clients
    if "$uv" pip install --python "$python" --no-deps --index-strategy unsafe-best-match --require-hashes \
        -r "$lock" >"$log" 2>&1; then
        # Behind the clients' own packages, those of .venv: torch, which is large.
        .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
        cp "$lock" build/clients/installed.txt
    else
        skip_if_unreachable "clients from PyPI"
    fi
fi

node=tests/clients/node
if ! cmp -s "$node/package-lock.json" "$node/node_modules/installed.json"; then
    say "installing programs that speak OpenAI's API into $node/node_modules"
    if .venv/bin/npm ci --prefix "$node" --ignore-scripts --no-audit --no-fund --no-update-notifier --fetch-retries 1 \
        --fetch-timeout 90000 >"$log" 2>&1; then
        cp "$node/package-lock.json" "$node/node_modules/installed.json"
    else
        skip_if_unreachable "clients from npm"
    fi
fi

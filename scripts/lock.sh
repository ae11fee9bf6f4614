#!/usr/bin/env bash
# Pins every dependency for Linux and macOS, Python 3.11 and later, into requirements.txt and requirements-test.txt.
# torch's CUDA libraries are left out on purpose: torch pins them itself, and its CPU build does without them.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    .venv/bin/python -m pip install --quiet uv
    uv=.venv/bin/uv
fi

pin() { # pin OUTPUT [uv options]
    local output=$1
    shift
    {
        echo "# Written by scripts/lock.sh (make lock) from pyproject.toml; edit that, not this."
        "$uv" pip compile pyproject.toml --universal --python-version 3.11 --quiet --no-header --no-annotate "$@" |
            grep -Ev "^(nvidia-|cuda-|triton)|== 'emscripten'|== 'win32'$" |
            sed "s/ ; sys_platform != 'emscripten'$//"
    } >"$output.new"
    mv "$output.new" "$output"
    echo "$output: $(grep -c == "$output") packages"
}

pin requirements.txt "$@"
pin requirements-test.txt --extra test --constraint requirements.txt "$@"

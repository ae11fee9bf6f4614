#!/usr/bin/env bash
# Pins every dependency for Linux and macOS, Python 3.11 and later, into requirements.txt, requirements-test.txt and
# requirements-bench.txt.
# torch's CUDA libraries are left out on purpose: torch pins them itself, and its CPU build does not need them.
# requirements-full.txt adds Triton, in the version that torch requires, and the fuzzing tools. The long tests run our
# kernel in Triton's interpreter; at 190 MB Triton is too large for `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    .venv/bin/python -m pip install --quiet uv
    uv=.venv/bin/uv
fi

everywhere() { grep -Ev "^(nvidia-|cuda-|triton)|== 'emscripten'|== 'win32'$" | sed "s/ ; sys_platform != 'emscripten'$//"; }
long_tests() {
    local all
    all=$(cat)
    grep "^triton==" <<<"$all"
    everywhere <<<"$all" | grep -vxFf requirements-test.txt
}

pin() { # pin OUTPUT FILTER [uv options]
    local output=$1 filter=$2
    shift 2
    {
        echo "# Written by scripts/lock.sh (make lock) from pyproject.toml; edit that, not this."
        "$uv" pip compile pyproject.toml --universal --python-version 3.11 --quiet --no-header --no-annotate "$@" |
            "$filter"
    } >"$output.new"
    mv "$output.new" "$output"
    echo "$output: $(grep -c == "$output") packages"
}

pin requirements.txt everywhere "$@"
pin requirements-test.txt everywhere --extra test --constraint requirements.txt "$@"
pin requirements-bench.txt everywhere --extra bench --constraint requirements.txt "$@"
pin requirements-full.txt long_tests --extra test --extra fuzz --constraint requirements-test.txt "$@"

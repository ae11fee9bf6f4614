#!/usr/bin/env bash
# Makes .venv with the pinned dependencies: `scripts/setup.sh run` for the chat, `scripts/setup.sh test` for the tests,
# `scripts/setup.sh full` for the long tests too, `scripts/setup.sh bench` for the bench's plots and model conversion.
# The tests' set brings Node with npm into .venv, and what checks the pages' scripts into tests/web/node_modules.
# Fast when nothing has changed (a stamp records what is installed); safe to interrupt and run again.
# TORCH=cpu or TORCH=gpu overrides the detection of an NVIDIA driver. NPM_TIMEOUT_S is how long npm may take (300 s).
set -euo pipefail
cd "$(dirname "$0")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0 PIP_NO_INPUT=1
torch_cpu_index=https://download.pytorch.org/whl/cpu
log=.venv/install.log

case ${1:-run} in
run) requirements=requirements.txt ;;
test) requirements=requirements-test.txt ;;
bench) requirements=requirements-bench.txt ;;
full) scripts/setup.sh test && requirements=requirements-full.txt ;;
*) echo "usage: scripts/setup.sh [run|test|full|bench]" >&2 && exit 2 ;;
esac

say() { echo "deskmate: $*"; }
fail() {
    printf 'deskmate: %s\n' "$@" >&2
    exit 1
}

recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
        if recent_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed and was not found." \
        "On Debian 12 and Ubuntu 24.04 or later: sudo apt install python3 python3-venv"
}

make_venv() {
    recent_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1 && return
    local python
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        fail "$python cannot make virtual environments." \
            "Install its venv module: sudo apt install python3-venv" \
            "(for a Python that is not the system's own: sudo apt install $(basename "$python")-venv)"
    fi
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
}

torch_build() { # prints the build of torch for this machine
    if [ -n "${TORCH:-}" ]; then
        echo "$TORCH"
    elif [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; then
        echo gpu
    else
        echo cpu
    fi
}

pip_install() { # pip's whole output goes to the log, the downloads to the screen
    .venv/bin/python -m pip install "$@" 2>&1 | tee -a "$log" |
        { grep --line-buffered -oE '(Downloading|Using cached) .*\.(whl|gz)( \(.*\))?|^Installing collected packages' || true; }
}

torch_cpu_index_answers() {
    timeout 10 .venv/bin/python - "$torch_cpu_index/torch/" <<'PY' >/dev/null 2>&1
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5)
PY
}

install_torch() { # $1: cpu or gpu
    local pinned
    pinned=$(grep '^torch==' requirements.txt)
    # Builds share one version number, so pip alone would keep the old one after a driver was installed or removed.
    if [ -e .venv/torch-build ] && [ "$(cat .venv/torch-build)" != "$1" ]; then
        .venv/bin/python -m pip uninstall --quiet --yes torch
    fi
    if [ "$1" = cpu ] && [ "$(uname)" = Linux ] && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
        if torch_cpu_index_answers; then
            say "no NVIDIA driver found: installing the small CPU build of torch"
            pip_install --no-deps --index-url "$torch_cpu_index" "$pinned" ||
                say "that failed; installing torch from the package index instead"
        else
            say "$torch_cpu_index does not answer: installing torch from the package index (usually a larger download)"
        fi
    fi
    echo "$1" >.venv/torch-build
}

# Runs a command for at most $1 seconds; returns 124 if it took longer. macOS has no `timeout`, and npm's own limits cover
# single downloads only. The command gets its own process group, so that what it has started ends with it.
run_limited() {
    local limit=$1 job status=0 waited=0
    shift
    set -m
    "$@" </dev/null &
    job=$!
    set +m
    trap 'kill -KILL -- "-$job" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$job" 2>/dev/null && [ "$waited" -lt "$limit" ]; do
        sleep 1
        waited=$((waited + 1))
    done
    if kill -0 "$job" 2>/dev/null; then
        kill -KILL -- "-$job" 2>/dev/null || true
        status=124
    fi
    wait "$job" 2>/dev/null || status=$((status ? status : $?))
    trap - INT TERM
    return "$status"
}

npm_registry() { run_limited 20 .venv/bin/npm config get registry || echo "the one in npm's settings"; }

install_web_tools() { # the packages of tests/web/package-lock.json, and no script of theirs
    local folder=tests/web/node_modules output=.venv/npm.log limit=${NPM_TIMEOUT_S:-300} status=0
    cmp -s tests/web/package-lock.json "$folder/.installed-package-lock.json" && return
    say "installing what checks the pages' scripts into $folder (details in $output)"
    # It begins by removing the folder, so a stamp in it never outlives an interrupted installation.
    run_limited "$limit" .venv/bin/npm ci --prefix tests/web --ignore-scripts --no-audit --no-fund --no-update-notifier \
        --fetch-retries 1 --fetch-retry-mintimeout 1000 --fetch-timeout 90000 >"$output" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        tail -n 15 "$output" >&2
        if [ "$status" = 124 ]; then
            fail "npm was stopped because it did not finish within $limit seconds." \
                "Its registry may not answer: $(npm_registry)" \
                "Check the network, or name a mirror: npm_config_registry=https://… Then run the same command again." \
                "On a slow network, give it more time: NPM_TIMEOUT_S=900." \
                "Only the tests need it; make run does not."
        fi
        if grep -qE 'ENOTFOUND|EAI_AGAIN|ECONN(REFUSED|RESET)|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|network timeout|ERR_SOCKET_TIMEOUT' "$output"; then
            fail "the npm registry cannot be reached: $(npm_registry)" \
                "Check the network, or name a mirror: npm_config_registry=https://… Then run the same command again." \
                "Only the tests need it; make run does not."
        fi
        fail "npm could not install tests/web/package-lock.json; see the output above. Run the same command to try again."
    fi
    cp tests/web/package-lock.json "$folder/.installed-package-lock.json"
}

make_venv
build=$(torch_build)
# The content of .venv/installed-$1 after installing $1; includes the folder because the project is linked, not copied.
stamp() { echo "$build $PWD" | cat - "$1"; }
if stamp "$requirements" | cmp -s - ".venv/installed-$requirements"; then
    [ "$requirements" != requirements-test.txt ] || install_web_tools
    exit 0
fi

say "installing the dependencies into .venv; the first time this takes a few minutes (details in $log)"
install_torch "$build"
if ! pip_install --prefer-binary -r "$requirements" || ! pip_install --no-deps --no-build-isolation --editable .; then
    tail -n 15 "$log" >&2
    fail "the installation failed; see the output above. Run the same command to try again."
fi
# The test and bench sets include the chat's set; the full set is installed after the test set.
stamp requirements.txt >.venv/installed-requirements.txt
[ "$requirements" = requirements.txt ] || stamp "$requirements" >".venv/installed-$requirements"
[ "$requirements" != requirements-test.txt ] || install_web_tools
say "installed"

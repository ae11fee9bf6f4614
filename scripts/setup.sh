#!/usr/bin/env bash
# Makes .venv with the pinned dependencies: `scripts/setup.sh run` for the chat, `scripts/setup.sh test` for the tests,
# `scripts/setup.sh full` for the long tests too, `scripts/setup.sh bench` for the bench's plots and model conversion;
# `scripts/setup.sh lock` pins them again. uv installs them: the one on the PATH, or else the one of requirements-uv.txt,
# which pip installs into .venv. Every file is checked against the lock files' hashes.
# The tests' set brings Node with npm into .venv, and what checks the pages' scripts into tests/web/node_modules.
# Fast when nothing has changed (a stamp records what is installed); safe to interrupt and run again, also twice at once.
#
# TORCH=cpu or TORCH=gpu overrides the detection of an NVIDIA driver. NPM_TIMEOUT_S is how long npm may take (300 s).
# Mirrors: pip's settings are used (PIP_INDEX_URL or pip.conf), or uv's (UV_DEFAULT_INDEX or uv.toml), which come first;
# TORCH_INDEX is a mirror of https://download.pytorch.org/whl/cpu.
set -euo pipefail
cd "$(dirname "$0")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0 PIP_NO_INPUT=1
# uv's settings say where packages come from, not which: these would change what is installed, or where.
unset UV_BREAK_SYSTEM_PACKAGES UV_BUILD_CONSTRAINT UV_COMPILE_BYTECODE UV_CONSTRAINT UV_EXCLUDE UV_EXCLUDE_NEWER \
    UV_INDEX_STRATEGY UV_NO_BINARY UV_NO_BUILD UV_NO_BUILD_ISOLATION UV_NO_EDITABLE UV_NO_VERIFY_HASHES UV_ONLY_BINARY \
    UV_OVERRIDE UV_PRERELEASE UV_PROJECT UV_PYTHON UV_REQUIRE_HASHES UV_RESOLUTION UV_SYSTEM_PYTHON UV_TORCH_BACKEND \
    UV_WORKING_DIR
# The system's certificates, as pip uses them: a company's proxy may have one of its own.
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
# So does Node: without it npm fails behind such a proxy.
export NODE_USE_SYSTEM_CA=${NODE_USE_SYSTEM_CA:-1}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
log=.venv/install.log

goal=${1:-run}
case $goal in
run | lock) requirements=requirements.txt ;;
test) requirements=requirements-test.txt ;;
bench) requirements=requirements-bench.txt ;;
full) scripts/setup.sh test && requirements=requirements-full.txt ;;
*) echo "usage: scripts/setup.sh [run|test|full|bench|lock]" >&2 && exit 2 ;;
esac

say() { echo "deskmate: $*"; }
fail() {
    printf 'deskmate: %s\n' "$@" >&2
    exit 1
}

recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Whether .venv was made completely, and for the Python that it runs now: an upgrade of the system's Python leaves its
# packages behind in the folder of the old version.
venv_works() {
    [ -e .venv/made ] || [ -e .venv/installed-requirements.txt ] || return
    .venv/bin/python -c 'import os, sys, sysconfig
sys.exit(sys.version_info < (3, 11) or not os.path.isdir(sysconfig.get_path("purelib")))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
        if recent_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed and was not found." \
        "On Debian 12 and Ubuntu 24.04 or later: sudo apt install python3 python3-venv" \
        "With uv: uv python install 3.13"
}

recent_uv() { # 0.13 or later: earlier ones refuse ===, which names a build of torch
    local words major minor
    read -r -a words <<<"$("$1" --version 2>/dev/null || true)"
    IFS=. read -r major minor _ <<<"${words[1]:-}"
    [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] && ((major > 0 || minor >= 13))
}

make_venv() {
    venv_works && { .venv/bin/python -m pip --version >/dev/null 2>&1 || recent_uv uv; } && return
    local python with_pip=yes
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        if ! recent_uv uv; then
            fail "$python cannot make virtual environments." \
                "Install its venv module: sudo apt install python3-venv" \
                "(for a Python that is not the system's own: sudo apt install $(basename "$python")-venv)" \
                "or install uv, which needs no such module: https://docs.astral.sh/uv"
        fi
        with_pip=no
    fi
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    if [ "$with_pip" = yes ]; then
        "$python" -m venv .venv || fail "$python could not make .venv; see the output above."
    else
        uv venv --quiet --no-config --python "$python" --no-python-downloads .venv || fail "uv could not make .venv; see the output above."
    fi
    touch .venv/made
}

# One set-up at a time in this folder. The lock belongs to the open file, so it ends with the last process of a set-up.
lock_folder() {
    local python=.venv/bin/python
    recent_enough "$python" || python=$(find_python)
    exec 9<.
    "$python" - <<'PY'
import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("deskmate: another set-up is running in this folder; waiting until it has finished", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks
PY
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

# uv does not read pip's settings. Those that say how to reach packages are handed on where uv has no setting of its own.
use_pip_settings() {
    local settings
    settings=$(.venv/bin/python scripts/pip_settings.py) && eval "$settings"
}

find_uv() {
    local pinned status=0
    pinned=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements-uv.txt)
    if recent_uv uv; then
        uv=$(command -v uv)
        say "installing with $("$uv" --version) ($uv)"
        return
    fi
    uv=.venv/bin/uv
    [[ "$("$uv" --version 2>/dev/null || true) " == "uv $pinned "* ]] && return
    if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
        say "$(uv --version) on the PATH is too old (0.13 or later is needed): installing uv $pinned into .venv"
    else
        say "uv is not on the PATH: installing uv $pinned into .venv"
    fi
    .venv/bin/python -m pip install --only-binary :all: --require-hashes -r requirements-uv.txt >>"$log" 2>&1 || status=$?
    [ "$status" = 0 ] || explain_failure
}

choose_uv_cache() { # uv keeps downloads in the user's folder, where it can write
    local cache
    cache=$("$uv" cache dir 2>/dev/null || true)
    if [ -n "$cache" ] && mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ]; then
        say "downloads are kept in $cache"
    else
        say "${cache:-the cache of uv} cannot be written: downloads are kept in .venv until they are installed"
        export UV_CACHE_DIR=$PWD/.venv/uv-cache
    fi
}

# uv's whole output goes to the log, the downloads to the screen. The order of indexes does not matter: the hashes decide.
uv_install() {
    "$uv" pip install --python .venv/bin/python --no-deps --index-strategy unsafe-best-match "$@" 2>&1 | tee -a "$log" |
        { grep --line-buffered -E '^ *Downloading |^(Installed|Uninstalled) ' || true; }
}

# Sets torch to the lock file of the build, and where it comes from.
choose_torch() { # $1: cpu or gpu
    local pinned source
    torch=(-r requirements-torch.txt)
    if [ "$1" != cpu ] || [ "$(uname)" != Linux ]; then
        return
    fi
    pinned=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements-torch-cpu.txt)
    if [ "$reinstall" = "" ] && compgen -G ".venv/lib/python*/site-packages/torch-$pinned.dist-info" >/dev/null; then
        torch=()
        return
    fi
    # The user's own sources come first, if there are any: they may have the wheel, and PyTorch's index may be out of reach.
    for source in own "$torch_index"; do
        torch=(-r requirements-torch-cpu.txt)
        if [ "$source" != own ]; then
            torch+=(--index "$source")
        elif [ -z "${UV_FIND_LINKS:-}${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] &&
            [ ! -e "${XDG_CONFIG_HOME:-${HOME:-}/.config}/uv/uv.toml" ] && [ ! -e "${UV_CONFIG_FILE:-/etc/uv/uv.toml}" ]; then
            continue
        fi
        if UV_HTTP_RETRIES=1 "$uv" pip install --python .venv/bin/python --no-deps --index-strategy unsafe-best-match \
            --dry-run --require-hashes "${torch[@]}" >>"$log" 2>&1; then
            say "no NVIDIA driver found: installing the small CPU build of torch"
            return
        fi
    done
    torch=(-r requirements-torch.txt)
    say "$torch_index does not answer: installing torch from the package index, with CUDA (a download of about 3 GB)" \
        "- for a mirror: TORCH_INDEX=https://…"
}

explain_failure() { # says what to do about the last lines of the log
    local output
    output=$(tail -n 30 "$log")
    tail -n 15 "$log" >&2
    case $output in
    *"Hash mismatch"* | *"DO NOT MATCH THE HASHES"*)
        fail "a downloaded package is not the file that the lock files name, so it was not installed; see the output above." \
            "A mirror or a proxy may have changed it, or an old download is damaged: try again after \`uv cache clean\`," \
            "and without a mirror if one is set (PIP_INDEX_URL, UV_DEFAULT_INDEX, pip.conf, uv.toml)."
        ;;
    *"No space left on device"* | *"os error 28"*)
        fail "the disk is full; see the output above. .venv takes 2 GB (8 GB with CUDA), and the downloads the same for a while:" \
            "$(df -h . | tail -n 1)" "Make room, then run the same command again."
        ;;
    *"Failed to fetch"* | *"dns error"* | *"error sending request"* | *"NewConnectionError"* | *"ConnectTimeoutError"* | \
        *"Name or service not known"* | *"Connection refused"* | *"operation timed out"* | *"ReadTimeoutError"* | *"ProxyError"* | *"SSLError"*)
        fail "the package index cannot be reached: $(index_name)" \
            "Check the network, or name a mirror: PIP_INDEX_URL=https://… (pip.conf and uv.toml are read too)." \
            "Then run the same command again; what is already downloaded is kept."
        ;;
    esac
    fail "the installation failed; see the output above. Run the same command to try again."
}

index_name() { # without a password
    sed 's|//[^/@ ]*@|//***@|g' <<<"${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-${PIP_INDEX_URL:-https://pypi.org/simple}}}"
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

build=$(torch_build)
# The content of .venv/installed-$1 after installing $1; includes the folder because the project is linked, not copied.
stamp() { echo "$build $PWD" | cat - "$1" requirements-torch.txt requirements-torch-cpu.txt; }
is_installed() { venv_works && stamp "$requirements" | cmp -s - ".venv/installed-$requirements"; }
has_web_tools() { [ "$goal" != test ] || cmp -s tests/web/package-lock.json tests/web/node_modules/.installed-package-lock.json; }

if [ "$goal" != lock ]; then
    ! is_installed || ! has_web_tools || exit 0
fi
lock_folder
make_venv

if [ "$goal" = lock ]; then # from PyPI itself: a mirror may have other files
    find_uv
    UV=$uv exec .venv/bin/python scripts/lock.py "${@:2}"
fi

if ! is_installed; then # the other set-up may have done it
    say "installing the dependencies into .venv (details in $log)"
    : >"$log"
    reinstall=""
    if [ -e .venv/installing ]; then
        # A package that was being written may look complete.
        say "the last set-up did not finish: installing every package again"
        reinstall=--reinstall
    fi
    use_pip_settings
    find_uv
    choose_uv_cache
    choose_torch "$build"
    touch .venv/installing
    uv_install --require-hashes $reinstall "${torch[@]+"${torch[@]}"}" -r "$requirements" || explain_failure
    uv_install --no-build-isolation --editable . || explain_failure
    # The test and bench sets include the chat's set; the full set is installed after the test set.
    stamp requirements.txt >.venv/installed-requirements.txt
    [ "$requirements" = requirements.txt ] || stamp "$requirements" >".venv/installed-$requirements"
    rm -rf .venv/installing .venv/uv-cache
fi
has_web_tools || install_web_tools
say "installed"

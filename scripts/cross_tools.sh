#!/usr/bin/env bash
# Installs what compiles the C++ decoder for ARM64 and runs it here, for the long tests: Debian's compiler and QEMU.
# Does nothing where they are, where apt is not allowed, or on another architecture; the tests then skip and say why.
set -euo pipefail

[ "$(uname -m)" = x86_64 ] || exit 0
if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64-static >/dev/null; then
    exit 0
fi
root=()
if [ "$(id -u)" != 0 ]; then
    root=(sudo -n)
    sudo -n true 2>/dev/null || root=(false)
fi
if command -v apt-get >/dev/null && "${root[@]}" true 2>/dev/null; then
    echo "deskmate: installing a compiler for ARM64 and QEMU with apt for the long tests"
    "${root[@]}" apt-get update -qq || true
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        g++-aarch64-linux-gnu qemu-user-static >/dev/null && exit 0
fi
echo "deskmate: no compiler for ARM64 and no QEMU: the tests of the decoder's ARM64 variants are skipped" >&2

#!/usr/bin/env bash
# Sees to it that the browser tests find a Chromium: installs Debian's where it is missing and we may.
set -euo pipefail

works() { command -v "$1" >/dev/null && "$1" --version >/dev/null 2>&1; }
chromium_works() {
    local name
    for name in ${CHROMIUM:-chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable}; do
        works "$name" && return
    done
    return 1
}

works "${CHROMIUM:-chromium-headless-shell}" && exit 0

root=()
if [ "$(id -u)" != 0 ]; then
    root=(sudo -n)
    sudo -n true 2>/dev/null || root=(false)
fi
# The shell is quicker than the Chromium that may be there; Ubuntu does not have it.
if [ -z "${CHROMIUM:-}" ] && command -v apt-get >/dev/null && "${root[@]}" true 2>/dev/null &&
    { ! chromium_works || apt-cache show chromium-headless-shell >/dev/null 2>&1; }; then
    echo "deskmate: the browser tests need Chromium: installing it with apt"
    "${root[@]}" apt-get update -qq || true
    for package in chromium-headless-shell chromium; do
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" fonts-liberation >/dev/null && break
    done
fi
chromium_works || {
    echo "deskmate: the browser tests need Chromium, and it is not installed." >&2
    echo "On Debian: sudo apt install chromium fonts-liberation" >&2
    echo "On Ubuntu: sudo snap install chromium, or Google Chrome's .deb package" >&2
    echo "Elsewhere: any Chromium or Chrome; CHROMIUM=/path/to/it says where it is." >&2
    exit 1
}

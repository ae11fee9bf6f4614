#!/usr/bin/env bash
# Makes sure that the browser tests find a Chromium: installs Debian's if it is missing and apt is allowed.
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
# chromium-headless-shell is faster than a full Chromium; Ubuntu does not have it.
if [ -z "${CHROMIUM:-}" ] && command -v apt-get >/dev/null && "${root[@]}" true 2>/dev/null &&
    { ! chromium_works || apt-cache show chromium-headless-shell >/dev/null 2>&1; }; then
    echo "deskmate: installing Chromium with apt for the browser tests"
    "${root[@]}" apt-get update -qq || true
    for package in chromium-headless-shell chromium; do
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" fonts-liberation >/dev/null && break
    done
fi
chromium_works || {
    echo "deskmate: the browser tests need Chromium, which is not installed." >&2
    echo "On Debian: sudo apt install chromium fonts-liberation" >&2
    echo "On Ubuntu: sudo snap install chromium, or install Google Chrome's .deb package" >&2
    echo "Elsewhere: install any Chromium or Chrome, and set CHROMIUM=/path/to/it if it is not on the PATH." >&2
    exit 1
}

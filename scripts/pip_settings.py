"""Prints pip's settings as shell commands that set uv's: uv does not read PIP_INDEX_URL or pip.conf.

Only settings that say how to reach packages are handed on, and only where the environment has none for uv, so that a
user behind a mirror or a proxy names it once. Runs in the Python of .venv, with pip or without.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys

#: pip's option; the variables of uv that come before it, of which the first is set; what separates several values.
OPTIONS: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("index-url", ("UV_DEFAULT_INDEX", "UV_INDEX_URL"), None),
    ("extra-index-url", ("UV_INDEX", "UV_EXTRA_INDEX_URL"), " "),
    ("find-links", ("UV_FIND_LINKS",), ","),
    ("trusted-host", ("UV_INSECURE_HOST",), " "),
    ("proxy", ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), None),
    ("cert", ("SSL_CERT_FILE",), None),
    ("client-cert", ("SSL_CLIENT_CERT",), None),
    ("timeout", ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT"), None),
    ("default-timeout", ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT"), None),
)


def pip_settings() -> dict[str, str]:
    """Returns pip's settings by option, from its files and the environment; without pip, from the environment alone."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        return {key[4:].lower().replace("_", "-"): value for key, value in os.environ.items() if key.startswith("PIP_")}
    settings = {}
    for section in ("global", "install", ":env:"):  # a later section overrides an earlier one, as in pip
        for line in listed.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(f"{section}."):
                settings[name.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return settings


def main() -> None:
    settings = pip_settings()
    used = []
    for option, names, separator in OPTIONS:
        value = settings.get(option, "").strip()
        if separator:
            value = separator.join(value.split())
        if value and not any(os.environ.get(name) for name in names):
            os.environ[names[0]] = value
            print(f"export {names[0]}={shlex.quote(value)}")
            used.append(f"{option} {re.sub('//[^/@ ]*@', '//***@', value)}")
    if used:
        print("say", shlex.quote(f"using pip's settings: {'; '.join(used)}"))


if __name__ == "__main__":
    main()

"""Pins every dependency with its hashes, for Linux and macOS and Python 3.11 and later: `make lock`.

requirements.txt, and the sets for the tests, the long tests and the bench, hold no torch, because it has two builds:

- requirements-torch-cpu.txt: the CPU build from PyTorch's own index, for Linux. It is a tenth of the size.
- requirements-torch.txt: PyPI's build with the CUDA libraries and Triton, for Linux with a GPU; and for macOS.

requirements-full.txt adds Triton and the fuzzing tools to the tests' set. The long tests run our kernel in Triton's
interpreter; at 190 MB Triton is too large for `make test`. requirements-uv.txt pins the installer itself.

Options are passed to `uv pip compile`. Raises SystemExit with a message when a command or an index fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADER = "# Written by scripts/lock.py (make lock) from pyproject.toml; edit that, not this.\n"
TORCH_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu").rstrip("/")
# The CPU wheels that are pinned: PyTorch also builds for systems that Deskmate does not support.
CPU_WHEEL = r"torch-{version}%2Bcpu-cp31[1-4]-cp31[1-4]-manylinux_\w+_(?:x86_64|aarch64)\.whl#sha256=([0-9a-f]{{64}})"


def uv_compile(*options: str, source: str = "pyproject.toml", text: str | None = None) -> dict[str, str]:
    """Returns the entries of a lock file by their first line (`name==version ; marker`), with their hashes."""
    command = [os.environ.get("UV", "uv"), "pip", "compile", source, "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--quiet", *options]
    done = subprocess.run(command, cwd=ROOT, input=text, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"deskmate: uv could not resolve the dependencies; see the output above ({' '.join(options)})")
    entries = {}
    for entry in re.split(r"(?m)^(?=[a-z0-9])", done.stdout)[1:]:
        pin, hashes = entry.split(" \\\n", 1)
        if not re.search(r"== '(?:emscripten|win32)'$", pin):
            entries[pin.removesuffix(" ; sys_platform != 'emscripten'")] = hashes
    return entries


def needs_torch_build(pin: str) -> bool:
    """Whether a package is torch or is needed by one of its builds only."""
    return re.match(r"torch==|triton==|nvidia-|cuda-", pin) is not None


def write(name: str, entries: dict[str, str], comment: str = "") -> None:
    content = HEADER + comment + "".join(f"{pin} \\\n{hashes}" for pin, hashes in entries.items())
    partial = ROOT / f"{name}.new"
    partial.write_text(content)
    partial.replace(ROOT / name)
    print(f"{name}: {len(entries)} packages")


def cpu_wheel_hashes(version: str) -> list[str]:
    """Returns the SHA-256 of each CPU wheel of this torch, as PyTorch's index states them; none without an answer."""
    try:
        with urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=30) as response:
            page = response.read().decode()
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"deskmate: {TORCH_INDEX} does not answer ({error})", file=sys.stderr)
        return []
    return sorted(set(re.findall(CPU_WHEEL.format(version=re.escape(version)), page)))


def write_cpu_build(version: str) -> None:
    """Pins the CPU build; keeps the file as it is if PyTorch's index does not answer and the version is the same."""
    name = "requirements-torch-cpu.txt"
    pin = f"torch=={version}+cpu ; sys_platform == 'linux'"
    hashes = cpu_wheel_hashes(version)
    if not hashes:
        path = ROOT / name
        if path.exists() and f"\n{pin} " in path.read_text():
            print(f"{name}: kept, because it pins the same version")
            return
        raise SystemExit(f"deskmate: no hashes of the CPU build of torch {version}; run it where {TORCH_INDEX} answers")
    comment = f"# The wheels of {TORCH_INDEX}; PyPI has other files under the same version.\n"
    write(name, {pin: " \\\n".join(f"    --hash=sha256:{digest}" for digest in hashes) + "\n"}, comment)


def main(options: list[str]) -> None:
    chat = uv_compile(*options)
    constraints = ROOT / ".venv/lock-constraints.txt"
    constraints.write_text("\n".join(chat))
    constrained = ["--constraint", str(constraints), *options]
    test = uv_compile("--extra", "test", *constrained)
    bench = uv_compile("--extra", "bench", *constrained)
    constraints.write_text("\n".join(test))
    full = uv_compile("--extra", "test", "--extra", "fuzz", *constrained)

    write("requirements.txt", {pin: chat[pin] for pin in chat if not needs_torch_build(pin)})
    # === because == would accept the CPU build, 2.13.0+cpu, from an index that has both.
    torch = {re.sub("^torch==", "torch===", pin): chat[pin] for pin in chat if needs_torch_build(pin)}
    write("requirements-torch.txt", torch, "# PyPI's build of torch (===: not another build of this version).\n")
    write("requirements-test.txt", {pin: test[pin] for pin in test if not needs_torch_build(pin)})
    write("requirements-bench.txt", {pin: bench[pin] for pin in bench if not needs_torch_build(pin)})
    added = [pin for pin in full if pin not in test and not needs_torch_build(pin)]
    write("requirements-full.txt", {pin: full[pin] for pin in full if pin in added or pin.startswith("triton==")})
    write("requirements-uv.txt", uv_compile(*options, source="-", text="uv\n"))
    (version,) = (pin.removeprefix("torch==") for pin in chat if pin.startswith("torch=="))
    write_cpu_build(version)
    constraints.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])

"""scripts/setup.sh installs what the lock files name, recovers from interruptions, and says what to do otherwise."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow  # nearly all of them run the script

ROOT = Path(__file__).parents[1]
LOCK_FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))

#: The project that the script links into .venv: its build needs no packages.
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "deskmate"
version = "1"
"""
BACKEND = """
import zipfile
from pathlib import Path

def build_editable(folder, config_settings=None, metadata_directory=None):
    info = "deskmate-1.dist-info"
    with zipfile.ZipFile(Path(folder, "deskmate-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("linked.py", "")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: deskmate\\nVersion: 1\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        names = ("linked.py", *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD")))
        wheel.writestr(info + "/RECORD", "".join(f"{name},,\\n" for name in names))
    return "deskmate-1-py3-none-any.whl"
"""
#: A pip whose settings the test chooses, and that "installs" uv by linking the real one.
PIP = """
import os, sys
from pathlib import Path

arguments = sys.argv[1:]
if arguments == ["config", "list"]:
    print(os.environ.get("PIP_LISTS", ""))
elif arguments[0] == "install":
    Path("pip-installs").open("a").write(" ".join(arguments) + "\\n")
    Path(".venv/bin/uv").symlink_to(os.environ["REAL_UV"])
"""


@pytest.fixture(scope="session")
def real_uv() -> str:
    candidates = (shutil.which("uv"), str(ROOT / ".venv/bin/uv"), str(Path(sys.prefix, "bin/uv")))
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.fail("uv is neither on the PATH nor in .venv: run scripts/setup.sh test")


@dataclass
class Index:
    """A package index on this machine, which notes the paths of the requests and the passwords that came with them."""

    url: str = ""
    wheels: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)

    def add(self, name: str, version: str) -> str:
        """Adds a wheel of one module and returns its entry for a lock file."""
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"version = {version!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
        self.wheels[f"{name}-{version}-py3-none-any.whl"] = content.getvalue()
        return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(content.getvalue()).hexdigest()}\n"


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            index.authorizations.add(self.headers.get("Authorization", ""))
            name = self.path.strip("/").split("/")[-1]
            links = [f'<a href="/files/{wheel}">{wheel}</a>' for wheel in index.wheels if wheel.startswith(f"{name}-")]
            content = index.wheels.get(name) or "".join(links).encode()
            self.send_response(200 if content else 404)
            self.send_header("Content-Type", "application/zip" if name in index.wheels else "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield index
        server.shutdown()


class Checkout:
    """A folder with the script, small lock files, an empty .venv with a stand-in for pip, and programs on the PATH."""

    def __init__(self, folder: Path, index: Index, real_uv: str) -> None:
        self.folder, self.real_uv = folder, real_uv
        self.programs = folder.parent / "programs"
        self.programs.mkdir()
        shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "backend.py").write_text(BACKEND)
        (folder / "requirements.txt").write_text(index.add("demo", "1"))
        (folder / "requirements-torch.txt").write_text(index.add("torch", "2").replace("==", "==="))
        (folder / "requirements-torch-cpu.txt").write_text("# No CPU build.\n")
        (folder / "requirements-uv.txt").write_text("uv==999\n")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
        (folder / ".venv/made").touch()
        self.packages = next((folder / ".venv/lib").glob("python*/site-packages"))
        (self.packages / "pip").mkdir()
        (self.packages / "pip/__main__.py").write_text(PIP)
        self.environment = {
            name: value for name, value in os.environ.items() if not re.match(r"(PIP|UV)_|.*_PROXY$|TORCH", name, re.I)
        } | {
            "PATH": f"{self.programs}:{os.defpath}",
            "REAL_UV": real_uv,
            "TORCH": "gpu",
            "PIP_LISTS": f"global.index-url='{index.url}'",
            "UV_CACHE_DIR": str(folder.parent / "cache"),
            "UV_NO_CONFIG": "1",
            "UV_HTTP_RETRIES": "0",
        }

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)

    def start(self, goal: str = "run", **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "scripts/setup.sh", goal],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, goal: str = "run", **environment: str) -> tuple[int, str]:
        """Returns the exit status and the output."""
        process = self.start(goal, **environment)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def installed(self, name: str) -> str:
        """The version of a package: what its module says, empty if it is not there."""
        module = self.packages / f"{name}.py"
        return module.read_text().split("'")[1] if module.exists() else ""


@pytest.fixture
def checkout(tmp_path: Path, index: Index, real_uv: str) -> Checkout:
    folder = tmp_path / "a folder"
    folder.mkdir()
    checkout = Checkout(folder, index, real_uv)
    checkout.program("uv", f'exec "{real_uv}" "$@"')
    return checkout


def test_set_up_runs_once_and_says_where_packages_come_from(checkout: Checkout, index: Index) -> None:
    status, output = checkout.run()
    assert status == 0, output
    assert f"using pip's settings: index-url {index.url}" in output
    assert f"downloads are kept in {checkout.folder.parent / 'cache'}" in output
    assert (checkout.installed("demo"), checkout.installed("torch")) == ("1", "2")
    assert (checkout.packages / "linked.py").exists()
    requests = len(index.requests)
    assert checkout.run() == (0, "")
    assert len(index.requests) == requests


def test_a_changed_lock_file_is_installed(checkout: Checkout, index: Index) -> None:
    assert checkout.run()[0] == 0
    (checkout.folder / "requirements.txt").write_text(index.add("demo", "1.1"))
    assert checkout.run()[0] == 0
    assert checkout.installed("demo") == "1.1"


def test_without_uv_on_the_path_pip_installs_the_pinned_one_by_its_hash(checkout: Checkout) -> None:
    (checkout.programs / "uv").unlink()
    status, output = checkout.run()
    assert status == 0, output
    assert "uv is not on the PATH: installing uv 999 into .venv" in output
    installs = (checkout.folder / "pip-installs").read_text()
    assert installs == "install --only-binary :all: --require-hashes -r requirements-uv.txt\n"
    assert checkout.installed("demo") == "1"


@pytest.mark.full
@pytest.mark.parametrize("version", ["uv 0.12.9", "uv 0.12.9 (0123 2025-01-01)", "no version"])
def test_a_uv_that_is_too_old_is_not_used(checkout: Checkout, version: str) -> None:
    checkout.program("uv", f"[ $1 = --version ] && echo '{version}' && exit; touch used; exit 1")
    status, output = checkout.run()
    assert status == 0, output
    assert f"{version} on the PATH is too old (0.13 or later is needed): installing uv 999 into .venv" in output
    assert not (checkout.folder / "used").exists()


def test_a_file_that_is_not_the_locked_one_is_refused(checkout: Checkout, index: Index) -> None:
    name = "demo-1-py3-none-any.whl"
    original = index.wheels[name]
    index.add("demo", "1")
    with zipfile.ZipFile(changed := io.BytesIO(original), "a") as wheel:
        wheel.writestr("added.py", "")
    index.wheels[name] = changed.getvalue()
    status, output = checkout.run()
    assert status == 1
    assert "a downloaded package is not the file that the lock files name" in output
    assert "demo" in output
    assert not checkout.installed("demo")
    index.wheels[name] = original
    assert checkout.run()[0] == 0
    assert checkout.installed("demo") == "1"


@pytest.mark.full
@pytest.mark.parametrize("settings", ["UV_DEFAULT_INDEX", "PIP_LISTS"])
def test_without_a_network_the_index_is_named(checkout: Checkout, settings: str) -> None:
    dead = "http://user:secret@127.0.0.1:9/simple"
    status, output = checkout.run(**{settings: dead if settings != "PIP_LISTS" else f"global.index-url='{dead}'"})
    assert status == 1
    assert "the package index cannot be reached: http://***@127.0.0.1:9/simple" in output
    assert "PIP_INDEX_URL" in output
    assert not (checkout.folder / ".venv/installed-requirements.txt").exists()
    assert checkout.run()[0] == 0


def test_the_password_of_a_mirror_is_used_and_not_shown(checkout: Checkout, index: Index) -> None:
    url = index.url.replace("//", "//user:secret@")
    status, output = checkout.run(PIP_LISTS=f"global.index-url='https://unused'\n:env:.index-url='{url}'")
    assert status == 0, output
    assert "secret" not in output
    assert f"Basic {base64.b64encode(b'user:secret').decode()}" in index.authorizations


@pytest.mark.full
def test_settings_of_uv_come_before_those_of_pip(checkout: Checkout, index: Index) -> None:
    status, output = checkout.run(UV_DEFAULT_INDEX=index.url, PIP_LISTS="global.index-url='http://127.0.0.1:9/simple'")
    assert status == 0, output
    assert "pip's settings" not in output


@pytest.mark.full
def test_settings_of_uv_do_not_change_what_is_installed(checkout: Checkout) -> None:
    checkout.run(UV_NO_VERIFY_HASHES="1", UV_EXCLUDE_NEWER="2000-01-01", UV_SYSTEM_PYTHON="1", UV_PYTHON="3.99")
    assert checkout.installed("demo") == "1"


@pytest.mark.full
def test_pips_environment_is_used_where_venv_has_no_pip(checkout: Checkout, index: Index) -> None:
    shutil.rmtree(checkout.packages / "pip")
    status, output = checkout.run(PIP_INDEX_URL=index.url)
    assert status == 0, output
    assert f"using pip's settings: index-url {index.url}" in output


@pytest.mark.full
@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("before", "--require-hashes"),
        ("after", "--editable"),
        pytest.param("after", "--require-hashes", marks=pytest.mark.full),
        pytest.param("before", "--editable", marks=pytest.mark.full),
    ],
)
def test_a_set_up_that_is_killed_starts_again_and_installs_everything(
    checkout: Checkout, step: str, moment: str
) -> None:
    # After the step, a file is missing: uv was killed while it wrote the package, whose metadata is there already.
    checkout.program(
        "uv",
        f"""if [[ "$*" == *{step}* ]] && [ ! -e killed ]; then
            touch killed
            if [ {moment} = after ]; then
                "{checkout.real_uv}" "$@"
                rm "{checkout.packages}/demo.py"
            fi
            kill -KILL 0
        fi
        exec "{checkout.real_uv}" "$@"
        """,
    )
    assert checkout.run()[0] == -signal.SIGKILL
    assert (checkout.folder / "killed").exists()
    status, output = checkout.run()
    assert status == 0, output
    assert "the last set-up did not finish: installing every package again" in output
    assert (checkout.installed("demo"), checkout.installed("torch")) == ("1", "2")
    assert checkout.run() == (0, "")


@pytest.mark.full
@pytest.mark.full
def test_a_venv_that_was_not_made_completely_is_made_again(checkout: Checkout, index: Index) -> None:
    (checkout.folder / ".venv/made").unlink()
    (checkout.packages / "remains.py").touch()
    status, output = checkout.run(UV_DEFAULT_INDEX=index.url)
    assert status == 0, output
    assert "making .venv" in output
    assert not (checkout.packages / "remains.py").exists()


@pytest.mark.full
def test_a_venv_without_its_python_is_made_again(checkout: Checkout, index: Index) -> None:
    assert checkout.run()[0] == 0
    (checkout.folder / ".venv/bin/python").unlink()
    (checkout.folder / ".venv/bin/python").symlink_to("/nowhere/python3")
    status, output = checkout.run(UV_DEFAULT_INDEX=index.url)
    assert status == 0, output
    assert "making .venv" in output
    assert checkout.installed("demo") == "1"


def test_a_python_that_cannot_make_environments_needs_uv(checkout: Checkout) -> None:
    shutil.rmtree(checkout.folder / ".venv")
    checkout.program("python3", f'[[ "$*" =~ ensurepip ]] && exit 1; exec "{sys.executable}" "$@"')
    status, output = checkout.run(PIP_INDEX_URL="", UV_DEFAULT_INDEX="")
    assert "making .venv" in output
    assert (checkout.folder / ".venv/made").exists()
    (checkout.programs / "uv").unlink()
    shutil.rmtree(checkout.folder / ".venv")
    status, output = checkout.run()
    assert status == 1
    assert "Install its venv module: sudo apt install python3-venv" in output


def test_a_second_set_up_waits_for_the_first_and_does_nothing_again(checkout: Checkout) -> None:
    checkout.program(
        "uv",
        f"""if [[ "$*" =~ require-hashes ]]; then
            echo install >>installs
            until [ -e go ]; do sleep 0.05; done
        fi
        exec "{checkout.real_uv}" "$@"
        """,
    )
    first = checkout.start()
    while not (checkout.folder / "installs").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = checkout.start()
    assert second.stdout is not None
    assert "another set-up is running in this folder; waiting" in second.stdout.readline()
    (checkout.folder / "go").touch()
    assert first.communicate(timeout=60)[0].endswith("deskmate: installed\n")
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert (checkout.folder / "installs").read_text() == "install\n"


@pytest.fixture
def cpu_index(checkout: Checkout, index: Index) -> Index:
    """Locks a CPU build of torch, which the index has, too. Linux only: elsewhere there is one build."""
    entry = index.add("torch", "2+cpu")
    (checkout.folder / "requirements-torch-cpu.txt").write_text(entry)
    return index


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch has one build")


@linux_only
def test_the_cpu_build_comes_from_pytorchs_index(checkout: Checkout, cpu_index: Index) -> None:
    # The user's own index, which is asked first, does not have it.
    own = checkout.folder.parent / "own"
    own.mkdir()
    for name in ("demo-1", "torch-2"):
        wheel = f"{name}-py3-none-any.whl"
        (own / wheel).write_bytes(cpu_index.wheels[wheel])
    where = {"PIP_LISTS": f"global.find-links='{own.as_uri()}'\nglobal.index-url='http://127.0.0.1:9/simple'"}
    status, output = checkout.run(TORCH="cpu", TORCH_INDEX=cpu_index.url, UV_DEFAULT_INDEX=cpu_index.url, **where)
    assert status == 0, output
    assert "installing the small CPU build of torch" in output
    assert checkout.installed("torch") == "2+cpu"


@pytest.mark.full
@linux_only
def test_the_users_own_index_may_have_the_cpu_build(checkout: Checkout, cpu_index: Index) -> None:
    status, output = checkout.run(TORCH="cpu", TORCH_INDEX="http://127.0.0.1:9/whl")
    assert status == 0, output
    assert checkout.installed("torch") == "2+cpu"


@pytest.mark.full
@linux_only
def test_without_pytorchs_index_torch_comes_from_the_package_index(checkout: Checkout, cpu_index: Index) -> None:
    del cpu_index.wheels["torch-2+cpu-py3-none-any.whl"]
    status, output = checkout.run(TORCH="cpu", TORCH_INDEX="http://127.0.0.1:9/whl")
    assert status == 0, output
    assert "http://127.0.0.1:9/whl does not answer: installing torch from the package index" in output
    assert checkout.installed("torch") == "2"


@linux_only
def test_the_build_of_torch_follows_the_driver(checkout: Checkout, cpu_index: Index) -> None:
    for build, version in (("cpu", "2+cpu"), ("gpu", "2"), ("cpu", "2+cpu")):
        status, output = checkout.run(TORCH=build, TORCH_INDEX=cpu_index.url)
        assert status == 0, output
        assert checkout.installed("torch") == version


def test_a_home_that_cannot_be_written_needs_no_cache(checkout: Checkout) -> None:
    status, output = checkout.run(HOME="/dev/null", XDG_CACHE_HOME="", UV_CACHE_DIR="")
    assert status == 0, output
    assert "cannot be written: downloads are kept in .venv until they are installed" in output
    assert checkout.installed("demo") == "1"
    assert not (checkout.folder / ".venv/uv-cache").exists()


def entries(name: str) -> dict[str, list[str]]:
    """The entries of a lock file: the first line, and those that follow it."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / name).read_text())
    found = {}
    for entry in re.split(r"(?m)^(?=\S)", text)[1:]:
        pin, *rest = entry.rstrip("\n").split(" \\\n")
        found[pin] = rest
    return found


@pytest.mark.parametrize("name", LOCK_FILES)
def test_every_locked_package_has_hashes_and_one_version(name: str) -> None:
    assert entries(name)
    for pin, lines in entries(name).items():
        assert re.match(r"[a-z0-9-]+===?[^=\s]+( ; .+)?$", pin), pin
        assert lines, pin
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in lines), pin


def pins(*names: str) -> dict[str, set[str]]:
    """The versions of each package in these lock files: several where they differ by Python or by build."""
    found: dict[str, set[str]] = {}
    for name in names:
        for pin in entries(name):
            requirement = Requirement(pin)
            found.setdefault(requirement.name, set()).add(next(iter(requirement.specifier)).version)
    return found


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("", ["requirements.txt"]),
        ("test", ["requirements-test.txt"]),
        ("bench", ["requirements-bench.txt"]),
        ("fuzz", ["requirements-test.txt", "requirements-full.txt"]),
    ],
)
def test_lock_files_are_in_step_with_the_project(extra: str, names: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = pins(*names, "requirements-torch.txt")
    for text in project["dependencies"] + (project["optional-dependencies"][extra] if extra else []):
        requirement = Requirement(text)
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"{text} is not locked: run make lock"
        assert all(requirement.specifier.contains(version) for version in versions), f"{text}: run make lock"


def test_sets_agree_on_the_versions_they_share() -> None:
    chat = pins("requirements.txt")
    for name in ("requirements-test.txt", "requirements-bench.txt"):
        other = pins(name)
        assert {package: other[package] for package in chat} == chat
    torch = pins("requirements-torch.txt")
    assert pins("requirements-torch-cpu.txt") == {"torch": {f"{version}+cpu" for version in torch["torch"]}}
    assert pins("requirements-full.txt")["triton"] == torch["triton"]


@pytest.fixture
def npm_checkout(tmp_path: Path) -> Path:
    """A folder in which everything is installed except what checks the pages' scripts."""
    for folder in ("scripts", "tests/web", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv/made").touch()
    names = ("requirements-test.txt", "requirements-torch.txt", "requirements-torch-cpu.txt")
    for name in names:
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / ".venv/installed-requirements-test.txt").write_text(
        f"cpu {tmp_path}\n" + "".join(f"{name}\n" for name in names)
    )
    (tmp_path / "tests/web/package-lock.json").write_text("{}")
    return tmp_path


def set_up(npm_checkout: Path, npm: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a stand-in for npm."""
    stand_in = npm_checkout / ".venv/bin/npm"
    stand_in.write_text(f"#!/usr/bin/env bash\n[ $1 = ci ] || {{ echo https://mirror; exit; }}\n{npm}\n")
    stand_in.chmod(0o755)
    return subprocess.run(
        ["bash", "scripts/setup.sh", "test"],
        cwd=npm_checkout,
        env={**os.environ, "TORCH": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of a process from /proc")
def test_npm_that_hangs_is_stopped_with_what_it_started(npm_checkout: Path) -> None:
    done = set_up(npm_checkout, "sleep 600 & echo $! > child; wait", NPM_TIMEOUT_S="1")
    assert done.returncode == 1
    assert "npm was stopped because it did not finish within 1 seconds" in done.stderr
    assert "https://mirror" in done.stderr
    assert "NPM_TIMEOUT_S" in done.stderr
    child = int((npm_checkout / "child").read_text())
    for _ in range(100):
        if not is_running(child):
            break
        time.sleep(0.1)
    assert not is_running(child)
    assert not (npm_checkout / "tests/web/node_modules").exists()


@pytest.mark.full
def test_npm_that_fails_shows_what_it_said(npm_checkout: Path) -> None:
    done = set_up(npm_checkout, "echo network ENOTFOUND; exit 3")
    assert done.returncode == 1
    assert "network ENOTFOUND" in done.stderr
    assert "cannot be reached: https://mirror" in done.stderr


@pytest.mark.full
def test_npm_runs_again_only_when_the_lock_file_changes(npm_checkout: Path) -> None:
    install = "mkdir -p tests/web/node_modules; echo run >> runs"
    for _ in range(2):
        assert set_up(npm_checkout, install).returncode == 0
    assert (npm_checkout / "runs").read_text() == "run\n"
    (npm_checkout / "tests/web/package-lock.json").write_text('{"changed": true}')
    assert set_up(npm_checkout, install).returncode == 0
    assert (npm_checkout / "runs").read_text() == "run\nrun\n"

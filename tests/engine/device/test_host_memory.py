"""The memory that a control group leaves to a container, in both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.device.host_memory import available_host_memory, host_memory_limit

GB = 10**9
NO_LIMIT = 9223372036854771712
"""What version 1 says where there is no limit."""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(root: Path, own_group: str) -> Path:
    """A machine with 16 GB available."""
    meminfo = f"MemTotal: {24 * GB // 1024} kB\nMemAvailable: {16 * GB // 1024} kB\n"
    return write(root, {"proc/meminfo": meminfo, "proc/self/cgroup": own_group})


def test_a_machine_without_limits(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n")
    assert available_host_memory(root) == 16 * GB
    assert host_memory_limit(root) is None


@pytest.mark.parametrize("own", ["0::/\n", "0::/docker/0a1b\n"], ids=["own namespace", "the host's path"])
def test_a_container_is_limited_by_version_2(tmp_path: Path, own: str) -> None:
    group = {"memory.max": f"{4 * GB}\n", "memory.current": f"{3 * GB}\n"}
    root = write(machine(tmp_path, own), {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    assert available_host_memory(root) == GB
    assert host_memory_limit(root) == 4 * GB


@pytest.mark.parametrize("own", ["4:memory:/\n", "9:cpu:/a\n4:memory:/docker/0a1b\n"])
def test_a_container_is_limited_by_version_1(tmp_path: Path, own: str) -> None:
    group = {"memory.limit_in_bytes": f"{4 * GB}\n", "memory.usage_in_bytes": f"{3 * GB}\n"}
    root = write(machine(tmp_path, own), {f"sys/fs/cgroup/memory/{name}": text for name, text in group.items()})
    assert available_host_memory(root) == GB
    assert host_memory_limit(root) == 4 * GB


def test_pages_of_files_can_be_taken_back(tmp_path: Path) -> None:
    """Else a mapped model file, once read, would leave no memory for its own cache."""
    stat = f"anon {GB}\nfile {2 * GB}\ninactive_file {GB}\nactive_file {GB // 2}\n"
    files = {"memory.max": f"{4 * GB}", "memory.current": f"{3 * GB}", "memory.stat": stat}
    root = write(machine(tmp_path, "0::/\n"), {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert available_host_memory(root) == GB + GB + GB // 2


def test_the_narrowest_of_nested_groups_counts(tmp_path: Path) -> None:
    groups = {"": "max", "system.slice": str(3 * GB), "system.slice/deskmate.service": str(8 * GB)}
    root = machine(tmp_path, "0::/system.slice/deskmate.service\n")
    for name, limit in groups.items():
        write(root / "sys/fs/cgroup" / name, {"memory.max": limit, "memory.current": str(GB)})
    assert available_host_memory(root) == 2 * GB
    assert host_memory_limit(root) == 3 * GB


def test_a_group_without_a_limit_leaves_the_machine_s_memory(tmp_path: Path) -> None:
    files = {"memory.limit_in_bytes": str(NO_LIMIT), "memory.usage_in_bytes": str(GB)}
    root = write(machine(tmp_path, "4:memory:/\n"), {f"sys/fs/cgroup/memory/{n}": t for n, t in files.items()})
    assert available_host_memory(root) == 16 * GB
    assert host_memory_limit(root) is None


def test_a_full_container_has_nothing_left(tmp_path: Path) -> None:
    files = {"memory.max": str(GB), "memory.current": str(2 * GB)}
    root = write(machine(tmp_path, "0::/\n"), {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert available_host_memory(root) == 0

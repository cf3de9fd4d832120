"""The available memory, from what Linux reports about the machine and its control groups."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from interp.support import memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 16 MiB, of which 8 are available; returns a function that writes files of its control groups."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=2**24, available=2**23))
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")

    def write(**files: str) -> None:
        for name, content in files.items():
            path = tmp_path.joinpath(*name.split("__"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def of_group(folder: Path, limit: str, used: int, *, version: int = 2) -> None:
    """The files of a control group that could free 1 MiB of what it uses."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{'' if version == 2 else 'total_'}inactive_file {2**20}\n")


def test_the_machines_own(machine):
    assert (memory.total(), memory.available()) == (2**24, 2**23)


def test_a_limit_of_a_container(machine, tmp_path):
    machine(cgroup="0::/jobs/one\n")
    of_group(tmp_path / "groups" / "jobs" / "one", "max", 2**21)
    of_group(tmp_path / "groups" / "jobs", str(2**22), 2**21 + 2**20)
    assert (memory.total(), memory.available()) == (2**22, 2**22 - 2**21), "what the file cache holds can be freed"


def test_a_limit_of_version_1(machine, tmp_path):
    machine(cgroup="2:cpu:/\n1:memory:/job\n0::/\n")
    of_group(tmp_path / "groups" / "memory" / "job", str(2**21), 2**20, version=1)
    of_group(tmp_path / "groups" / "memory", str(2**63 - 4096), 2**30, version=1)
    assert (memory.total(), memory.available()) == (2**21, 2**21)


def test_a_limit_beyond_the_machine(machine, tmp_path):
    machine(cgroup="0::/\n")
    of_group(tmp_path / "groups", str(2**40), 2**20)
    assert (memory.total(), memory.available()) == (2**24, 2**23)


def test_what_was_held_is_known():
    before = memory.peak()
    held = bytearray(b"x") * (2**27)
    assert memory.peak() >= before
    assert memory.peak() > len(held)
    memory.give_back()

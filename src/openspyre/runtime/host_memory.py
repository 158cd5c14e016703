"""How much memory the host can still give: for the cards' memory, and for files that say how large
they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

HOST_SHARE = 0.6  # of the memory that the process may still use
_CGROUPS = Path("/sys/fs/cgroup")


def available_host_memory() -> int:
    """Bytes this process may still use: the host's, and no more than its cgroups allow."""
    return min([_host_available(), *_cgroup_available()])


def _host_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 40


def _cgroup_available() -> Iterator[int]:
    """What every cgroup around this process has left (version 2 and 1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(_CGROUPS, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _left(_CGROUPS / "memory", path, *names)


def _left(root: Path, path: str, limit_name: str, usage_name: str) -> Iterator[int]:
    inner = root / path.lstrip("/")
    for folder in (inner, *inner.parents):
        try:
            limit = (folder / limit_name).read_text().strip()
            usage = int((folder / usage_name).read_text())
        except (OSError, ValueError):  # not mounted here, or not a group of its own
            limit, usage = "max", 0
        if limit != "max":
            yield max(0, int(limit) - usage + _reclaimable(folder))
        if folder == root:
            return


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache in the usage of a cgroup: the host gives them back when asked."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split()[:2] for line in lines)
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))

"""Where clusters may have their cgroups: below the one that we are in, so that its limits still hold for us."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.plan import Controller

CONTROLLERS = ("cpu", "memory")
_NEEDED_IN_1 = {"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes"}


@dataclass(frozen=True)
class Mount:
    """A hierarchy of cgroups: which part of it is visible, and where."""

    version: int
    root: str
    point: str
    options: tuple[str, ...]

    def folder_of(self, path: str) -> str:
        """The folder of a cgroup, or the top one where it is outside of what is visible."""
        inside = os.path.relpath(path, self.root)
        folder = os.path.normpath(os.path.join(self.point, inside))
        return folder if not inside.startswith("..") and os.path.isdir(folder) else self.point


def read_mounts(text: str) -> list[Mount]:
    """Hierarchies in a `/proc/PID/mountinfo`."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            fields = before.split()
            version = 2 if kind == "cgroup2" else 1
            found.append(Mount(version, fields[3], _unescaped(fields[4]), tuple(options.split()[-1].split(","))))
    return found


def find_controllers(process: Path = Path("/proc/self")) -> tuple[list[Controller], dict[str, str]]:
    """Controllers that we may use, and for each that we may not the reason."""
    try:
        mounts = read_mounts((process / "mountinfo").read_text(encoding="utf-8"))
        own = _own_paths((process / "cgroup").read_text(encoding="utf-8"))
    except OSError as error:
        return [], dict.fromkeys(CONTROLLERS, f"cgroups cannot be looked at: {error}")
    found, missing = [], {}
    shared = ""  # a process is in one cgroup of version 2, whatever it is controlled by
    for name in CONTROLLERS:
        place = _in_version_1(name, mounts, own) or _in_version_2(name, mounts, own, shared)
        if isinstance(place, Controller):
            found.append(place)
            shared = place.folder if place.version == 2 else shared
        else:
            missing[name] = place
    return found, missing


def _own_paths(text: str) -> dict[str, str]:
    """The cgroup of a process by controller; version 2's is under the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        found |= dict.fromkeys(names.split(","), path)
    return found


def _in_version_1(name: str, mounts: list[Mount], own: dict[str, str]) -> Controller | str:
    mount = next((one for one in mounts if one.version == 1 and name in one.options), None)
    if mount is None:
        return ""
    folder = mount.folder_of(own.get(name, "/"))
    if not os.access(folder, os.W_OK):
        return f"{folder} is not ours to write in"
    if not os.path.exists(os.path.join(folder, _NEEDED_IN_1[name])):
        return f"the kernel's controller {name} has no {_NEEDED_IN_1[name]}"
    return Controller(name, 1, folder)


def _in_version_2(name: str, mounts: list[Mount], own: dict[str, str], shared: str) -> Controller | str:
    """The nearest cgroup from ours upwards that hands the controller down and lets us add to it."""
    mount = next((one for one in mounts if one.version == 2), None)
    if mount is None:
        return f"no cgroups with the controller {name} are mounted"
    start = folder = shared or mount.folder_of(own.get("", "/"))
    knows = False
    while True:
        knows = knows or name in _words(folder, "cgroup.controllers")
        if name in _words(folder, "cgroup.subtree_control") and os.access(folder, os.W_OK):
            return Controller(name, 2, folder)
        is_top = folder == mount.point
        # Only the whole machine's cgroup may hold processes and hand controllers down as well; it alone has no type.
        is_machine = is_top and not os.path.exists(os.path.join(folder, "cgroup.type"))
        if is_machine and name in _words(folder, "cgroup.controllers") and os.access(folder, os.W_OK):
            return Controller(name, 2, folder)
        if is_top or shared:
            break
        folder = os.path.dirname(folder)
    if not knows:
        return f"the kernel offers no controller {name} below {mount.point}"
    return f"no cgroup from {start} upwards hands the controller {name} down to us"


def _words(folder: str, name: str) -> list[str]:
    try:
        return Path(folder, name).read_text(encoding="ascii").split()
    except OSError:
        return []  # a folder that is not ours to read hands nothing down to us either


def _unescaped(text: str) -> str:
    """Spaces and the like are octal in a mountinfo."""
    return text.encode("latin-1").decode("unicode_escape") if "\\" in text else text

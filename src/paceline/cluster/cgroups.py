"""Where clusters may have their cgroups: below the one that we are in, so that its limits still hold for us.

CPU shares and memory limits: a cgroup per node, of version 1 or 2, made and removed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.layout import LABEL, ClusterLayout, Controller, NodeLayout, group_folder

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


PERIOD_US = 20_000  # a share is handed out this often: much shorter costs exactness, longer makes steps uneven
LEAST_QUOTA_US = 1000  # the kernel's own limit
MOST_WEIGHT = 10_000  # the kernel's own limit, too
REMOVE_S = 5.0  # a cgroup cannot be removed before the kernel has buried all that ran in it


class GroupError(OSError):
    """The kernel refuses a CPU share or a memory limit; names the controller."""

    def __init__(self, controller: str, reason: str) -> None:
        super().__init__(reason)
        self.controller = controller


def claim_groups(plan: ClusterLayout) -> None:
    """Make the cluster's folders; one that is there already is somebody's, and nothing of it is touched."""
    made: list[Path] = []
    try:
        for controller in plan.controllers:
            folder = group_folder(controller, plan.name)
            if controller.version == 2:
                hand_down(Path(controller.folder), controller.name)
            if folder not in made:
                folder.mkdir()
                made.append(folder)
    except OSError as error:
        for folder in made:
            folder.rmdir()
        if isinstance(error, FileExistsError):
            raise OSError(f"{folder} exists already; `paceline cluster prune` removes what is left over") from None
        raise GroupError(controller.name, str(error)) from None


def limit_groups(plan: ClusterLayout) -> None:
    """Make a folder for every node and write its limits."""
    for controller in plan.controllers:
        top = group_folder(controller, plan.name)
        try:
            if controller.version == 2:
                hand_down(top, controller.name)
            for name, value in weight_files(controller, plan):
                _write(top / name, value)
            for index, node in enumerate(plan.nodes):
                folder = top / f"node-{index}"
                folder.mkdir(exist_ok=True)
                for name, value in limit_files(controller, node):
                    _write(folder / name, value)
        except OSError as error:
            raise GroupError(controller.name, str(error)) from None


def weight_files(controller: Controller, plan: ClusterLayout) -> Iterator[tuple[str, str]]:
    """Files of the cluster's folder: by default all nodes together would count as one process towards others."""
    if controller.name == "cpu":
        num_cores = sum(math.ceil(node.cpus or 1) for node in plan.nodes)
        if controller.version == 2:
            yield "cpu.weight", str(min(100 * num_cores, MOST_WEIGHT))
        else:
            yield "cpu.shares", str(1024 * num_cores)


def limit_files(controller: Controller, node: NodeLayout) -> Iterator[tuple[str, str]]:
    """Files of a node's folder with what belongs into them, in the order in which they must be written."""
    if controller.name == "cpu" and node.cpus is not None:
        period_us = max(PERIOD_US, int(LEAST_QUOTA_US / node.cpus) + 1)
        quota_us = round(period_us * node.cpus)
        if controller.version == 2:
            yield "cpu.max", f"{quota_us} {period_us}"
        else:
            yield "cpu.cfs_period_us", str(period_us)
            yield "cpu.cfs_quota_us", str(quota_us)
    if controller.name == "memory" and node.memory_bytes is not None:
        yield ("memory.max" if controller.version == 2 else "memory.limit_in_bytes"), str(node.memory_bytes)


def hand_down(folder: Path, name: str) -> None:
    """Let the cgroups below a folder of version 2 use a controller."""
    file = folder / "cgroup.subtree_control"
    if not file.exists() or name not in file.read_text(encoding="ascii").split():
        _write(file, f"+{name}")


def try_to_join(plan: ClusterLayout) -> None:
    """Prove that processes can join, before anybody relies on it: one of ours does, and ends."""
    for controller in plan.controllers:
        folder = group_folder(controller, plan.name) / "node-0"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _write(folder / "cgroup.procs", str(os.getpid()))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise GroupError(controller.name, f"processes may not join {folder}")


def members(folder: Path) -> set[int]:
    """Processes in a cgroup and in those below it."""
    found: set[int] = set()
    for group in _groups_in(folder):
        try:
            found |= {int(word) for word in (group / "cgroup.procs").read_text(encoding="ascii").split()}
        except FileNotFoundError:
            continue  # removed while we looked
    return found


def remove_group(top: Path) -> None:
    """Remove a cluster's cgroup and those below it, once nothing runs in them."""
    deadline = time.monotonic() + REMOVE_S
    for folder in _groups_in(top):
        while True:
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                break


def _groups_in(top: Path) -> list[Path]:
    """A cgroup and those below it, the innermost first; what is removed meanwhile is not among them."""
    return [Path(parent) for parent, _, _ in os.walk(top, topdown=False)]


def labelled_groups(mountinfo: Path = Path("/proc/self/mountinfo")) -> dict[str, list[Path]]:
    """Every cgroup folder with our label, by the cluster's name, wherever it is."""
    found: dict[str, list[Path]] = {}
    for point in dict.fromkeys(mount.point for mount in read_mounts(mountinfo.read_text(encoding="utf-8"))):
        for parent, names, _ in os.walk(point):
            ours = [name for name in names if name.startswith(LABEL)]
            names[:] = [name for name in names if name not in ours]
            for name in ours:
                found.setdefault(name.removeprefix(LABEL), []).append(Path(parent, name))
    return found


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="ascii")
    except OSError as error:
        raise OSError(error.errno, f"{file}: {error.strerror} (writing {text!r})") from None

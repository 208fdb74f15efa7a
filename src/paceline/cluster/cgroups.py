"""Find, create and remove the cgroups (version 1 or 2) that limit CPU and memory of emulated nodes.

The cgroups of a cluster are created below the cgroup of this process, so that the limits of this process still apply.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.group_files import groups_in, name_of_cluster, read_group_file, write_group_file
from paceline.cluster.layout import ClusterLayout, Controller, NodeLayout, group_folder

CONTROLLERS = ("cpu", "memory")
_NEEDED_IN_1 = {"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes"}
PERIOD_US = 20_000  # of a CPU quota: a much shorter period costs precision, a longer one makes step times uneven
LEAST_QUOTA_US = 1000  # the kernel's own limit
MOST_WEIGHT = 10_000  # the kernel's own limit
REMOVE_S = 5.0  # a cgroup cannot be removed before the kernel has reaped its processes


@dataclass(frozen=True)
class Mount:
    """A mounted cgroup hierarchy: its version, the cgroup at its root, its mount point and its mount options."""

    version: int
    root: str
    point: str
    options: tuple[str, ...]

    def folder_of(self, path: str) -> str:
        """Return the folder of the cgroup `path`, or the mount point if that cgroup is not visible."""
        inside = os.path.relpath(path, self.root)
        folder = os.path.normpath(os.path.join(self.point, inside))
        return folder if not inside.startswith("..") and os.path.isdir(folder) else self.point


def read_mounts(text: str) -> list[Mount]:
    """Return the cgroup hierarchies listed in the text of a `/proc/PID/mountinfo`."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            fields = before.split()
            version = 2 if kind == "cgroup2" else 1
            mounts.append(Mount(version, fields[3], _unescaped(fields[4]), tuple(options.split()[-1].split(","))))
    return mounts


def find_controllers(process: Path = Path("/proc/self")) -> tuple[list[Controller], dict[str, str]]:
    """Return the usable cgroup controllers, and a dict that says for each other controller why it is not usable."""
    try:
        mounts = read_mounts((process / "mountinfo").read_text(encoding="utf-8"))
        own = _own_paths((process / "cgroup").read_text(encoding="utf-8"))
    except OSError as error:
        return [], dict.fromkeys(CONTROLLERS, f"cgroups cannot be read: {reason_of(error)}")
    usable, missing = [], {}
    shared = ""  # folder of version 2; a process is in only one cgroup of version 2, so all controllers share it
    for name in CONTROLLERS:
        place = _in_version_1(name, mounts, own) or _in_version_2(name, mounts, own, shared)
        if isinstance(place, Controller):
            usable.append(place)
            shared = place.folder if place.version == 2 else shared
        else:
            missing[name] = place
    return usable, missing


def _own_paths(text: str) -> dict[str, str]:
    """Parse `/proc/PID/cgroup`: return the process's cgroup by controller name; the name "" means cgroup version 2."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    return paths


def _in_version_1(name: str, mounts: list[Mount], own: dict[str, str]) -> Controller | str:
    mount = next((one for one in mounts if one.version == 1 and name in one.options), None)
    if mount is None:
        return ""  # version 1 does not provide this controller, but version 2 may
    folder = mount.folder_of(own.get(name, "/"))
    if not os.access(folder, os.W_OK):
        return f"{folder} is not writable"
    if not os.path.exists(os.path.join(folder, _NEEDED_IN_1[name])):
        return f"the kernel's controller {name} has no {_NEEDED_IN_1[name]}"
    return Controller(name, 1, folder)


def _in_version_2(name: str, mounts: list[Mount], own: dict[str, str], shared: str) -> Controller | str:
    """Find the nearest cgroup, from that of this process upwards, that is writable and delegates the controller `name`.

    Return the controller with the folder of this cgroup, or the reason why there is none. If `shared` is not empty,
    consider only the folder `shared`.
    """
    mount = next((one for one in mounts if one.version == 2), None)
    if mount is None:
        return f"no cgroups with the controller {name} are mounted"
    start = folder = shared or mount.folder_of(own.get("", "/"))
    is_offered = False
    while True:
        is_offered = is_offered or name in _words(folder, "cgroup.controllers")
        if name in _words(folder, "cgroup.subtree_control") and os.access(folder, os.W_OK):
            return Controller(name, 2, folder)
        is_top = folder == mount.point
        # Only the root cgroup may both hold processes and delegate controllers; it alone has no cgroup.type.
        is_root = is_top and not os.path.exists(os.path.join(folder, "cgroup.type"))
        if is_root and name in _words(folder, "cgroup.controllers") and os.access(folder, os.W_OK):
            return Controller(name, 2, folder)
        if is_top or shared:
            break
        folder = os.path.dirname(folder)
    if not is_offered:
        return f"the kernel offers no controller {name} below {mount.point}"
    return f"no writable cgroup from {start} upwards delegates the controller {name}"


def _words(folder: str, name: str) -> list[str]:
    try:
        return Path(folder, name).read_text(encoding="ascii").split()
    except OSError:
        return []  # an unreadable cgroup delegates nothing to this process


def _unescaped(text: str) -> str:
    """Decode the octal escapes of a mountinfo file, such as those of spaces."""
    return text.encode("latin-1").decode("unicode_escape") if "\\" in text else text


def reason_of(error: OSError) -> str:
    """Describe an OSError for a message, with the file that it concerns."""
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"


def write_kernel_file(file: Path, text: str) -> None:
    """Write a text to a file through which the kernel is configured; an error names the file and the text."""
    try:
        file.write_text(text, encoding="ascii")
    except OSError as error:
        raise OSError(error.errno, f"{file}: {error.strerror} (writing {text!r})") from None


class GroupError(OSError):
    """Raised if the kernel refuses a CPU share or a memory limit; `controller` is the cgroup controller's name."""

    def __init__(self, controller: str, reason: str) -> None:
        super().__init__(reason)
        self.controller = controller


def claim_groups(layout: ClusterLayout) -> None:
    """Create the cgroup folders of a cluster.

    Raises OSError if one of them exists already; the existing folder is not touched, and folders that were just created
    are removed again.
    """
    created: list[Path] = []
    try:
        for controller in layout.controllers:
            folder = group_folder(controller, layout.name)
            if controller.version == 2:
                delegate(Path(controller.folder), controller.name)
            if folder not in created:
                folder.mkdir()
                created.append(folder)
    except OSError as error:
        for path in created:
            path.rmdir()
        if isinstance(error, FileExistsError):
            raise OSError(f"{folder} exists already; `paceline cluster prune` removes leftovers") from None
        raise GroupError(controller.name, reason_of(error)) from None


def limit_groups(layout: ClusterLayout) -> None:
    """Create a cgroup folder for every node and write the node's limits to it."""
    for controller in layout.controllers:
        top = group_folder(controller, layout.name)
        try:
            if controller.version == 2:
                delegate(top, controller.name)
            for name, value in weight_files(controller, layout):
                write_group_file(top / name, value)
            for index, node in enumerate(layout.nodes):
                folder = top / f"node-{index}"
                folder.mkdir(exist_ok=True)
                for name, value in limit_files(controller, node):
                    write_group_file(folder / name, value)
        except OSError as error:
            raise GroupError(controller.name, reason_of(error)) from None


def weight_files(controller: Controller, layout: ClusterLayout) -> Iterator[tuple[str, str]]:
    """Yield the name and content of the file that sets a cluster's CPU weight, if the controller is `cpu`.

    The weight is proportional to the cluster's number of cores. By default, the kernel would give all nodes of the
    cluster together the weight of one process.
    """
    if controller.name == "cpu":
        num_cores = sum(math.ceil(node.cpus or 1) for node in layout.nodes)
        if controller.version == 2:
            yield "cpu.weight", str(min(100 * num_cores, MOST_WEIGHT))
        else:
            yield "cpu.shares", str(1024 * num_cores)


def limit_files(controller: Controller, node: NodeLayout) -> Iterator[tuple[str, str]]:
    """Yield the names and contents of the cgroup files that limit a node, in the order in which to write them."""
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


def delegate(folder: Path, name: str) -> None:
    """Make a controller available to the cgroups below a cgroup of version 2."""
    file = folder / "cgroup.subtree_control"
    if not file.exists() or name not in read_group_file(file).split():
        write_group_file(file, f"+{name}")


def check_joining(layout: ClusterLayout) -> None:
    """Raise GroupError if the kernel does not let processes join the cgroups of nodes.

    To find out, a short-lived child process per controller tries to join the first node's cgroup.
    """
    for controller in layout.controllers:
        folder = group_folder(controller, layout.name) / "node-0"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                write_group_file(folder / "cgroup.procs", str(os.getpid()))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise GroupError(controller.name, f"processes may not join {folder}")


def remove_group(top: Path) -> None:
    """Remove a cluster's cgroup and those of its nodes.

    Raises OSError if their processes do not end in `REMOVE_S` seconds.
    """
    deadline = time.monotonic() + REMOVE_S
    for folder in groups_in(top):
        while True:
            try:
                with contextlib.suppress(FileNotFoundError):
                    folder.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def labelled_groups(mountinfo: Path = Path("/proc/self/mountinfo")) -> dict[str, list[Path]]:
    """Return all cgroup folders of this user's clusters on this machine, by cluster name."""
    found: dict[str, list[Path]] = {}
    for point in dict.fromkeys(mount.point for mount in read_mounts(mountinfo.read_text(encoding="utf-8"))):
        for parent, names, _ in os.walk(point):
            ours = {folder: name for folder in names if (name := name_of_cluster(Path(parent, folder)))}
            names[:] = [name for name in names if name not in ours]
            for folder, name in ours.items():
                found.setdefault(name, []).append(Path(parent, folder))
    return found

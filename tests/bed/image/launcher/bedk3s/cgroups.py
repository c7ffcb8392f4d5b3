"""The control groups a kubelet in a container needs, on cgroup v1 (also hybrid) and v2.

Each server has a root of its own, named after its node: several servers on one machine may share one view of
/sys/fs/cgroup, and a kubelet kills what it finds under its root and does not know.
"""

from __future__ import annotations

from pathlib import Path

from . import log

MOUNT = Path("/sys/fs/cgroup")


def root_of(node_name: str) -> str:
    """The kubelet's cgroupRoot."""
    return f"/k3s-{node_name}"


def _prepare_v1(root: str, mount: Path) -> None:
    for controller in mount.iterdir():
        if controller.is_symlink() or not (controller / "cgroup.procs").exists():
            continue
        folder = controller / root.lstrip("/")
        try:
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset has none and takes no process
                if (folder / name).exists():
                    (folder / name).write_text((controller / name).read_text())
        except OSError as error:
            log.warning(f"cgroup {folder}: {error}")


def _prepare_v2(root: str, mount: Path) -> None:
    # Controllers can be given to children only by a group without processes of its own.
    init = mount / "init"
    init.mkdir(exist_ok=True)
    for pid in (mount / "cgroup.procs").read_text().split():
        try:
            (init / "cgroup.procs").write_text(pid)
        except OSError as error:
            log.warning(f"process {pid} stays in the root cgroup: {error}")
    folder = mount / root.lstrip("/")
    folder.mkdir(exist_ok=True)
    for group in (mount, folder):
        for controller in (group / "cgroup.controllers").read_text().split():
            try:
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as error:
                log.warning(f"cgroup controller {controller} not given to children of {group}: {error}")


def prepare(node_name: str, mount: Path = MOUNT) -> str:
    """Make the node's root group; its name for the kubelet."""
    root = root_of(node_name)
    if (mount / "cgroup.controllers").exists():
        _prepare_v2(root, mount)
    else:
        _prepare_v1(root, mount)
    return root

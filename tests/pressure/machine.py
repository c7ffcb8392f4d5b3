# SPDX-License-Identifier: GPL-3.0-or-later
"""The small machine: Debian's own kernel and a minimal root, booted by QEMU in software.

The kernel, Debian's Python and the client libraries are kept in the cache; the core and what runs beside it are packed
anew for each run. Nothing is installed but QEMU itself, and only by root. What it runs is guest/run.py's.
"""

from __future__ import annotations

import compileall
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bed")]

import cache  # noqa: E402
import engine  # noqa: E402
from loads import LOADS, Load  # noqa: E402
from parts import Failed, Part  # noqa: E402

GUEST = Path(__file__).resolve().parent / "guest"
CORE = ROOT / "plugins" / "module_utils" / "regrade"
LOCK = ROOT / "requirements" / "dev.txt"
MEMORY_MIB = 1024
# A middling SD card. One bucket for all disks: on a board they are one card.
READS_AND_WRITES, BYTES = 1500, 40 << 20
KERNEL = "linux-image-cloud-amd64"
PACKAGES = (
    "busybox-static", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1",
    "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1", "libcrypt1",
)  # fmt: skip
# Of the development environment: what the service's image has too, and what the stand-in's certificates take.
LIBRARIES = (
    "kubernetes", "urllib3", "certifi", "yaml", "_yaml", "dateutil", "cryptography", "cffi", "_cffi_backend*.so",
    "typing_extensions.py",
)  # fmt: skip
MODULES = (
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk",
)  # in this order, before there is a disk  # fmt: skip
LATER = ("zsmalloc", "lzo", "lzo-rle", "zram")


class Machine:
    """`folder` gets what is made for this run, and each load's `NAME.told` and `NAME.console`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kernel = ""

    def prepare(self) -> None:
        engine.packages("qemu-system-x86", "e2fsprogs")
        self._base = _base()
        self.kernel = (self._base / "release").read_text(encoding="utf-8").strip()
        self._pack()

    def root(self) -> Path:
        """The folder that the machine's root is made of."""
        return self._base / "root"

    def _pack(self) -> None:
        """The core as the role lays it out, and what runs beside it."""
        tree = self._folder / "core"
        shutil.rmtree(tree, ignore_errors=True)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CORE, tree / "lib" / "regrade", ignore=ignore)
        types = tree / "types" / "ansible_collections" / "exadev" / "k3s_regrade"
        shutil.copytree(CORE, types / "plugins" / "module_utils" / "regrade", ignore=ignore)
        for name in ("unit/adapters", "bench"):
            shutil.copytree(ROOT / "tests" / name, types / "tests" / name, ignore=ignore)
        shutil.copytree(GUEST, tree / "guest", ignore=ignore)
        loads = {name: load._asdict() for name, load in LOADS.items()}
        (tree / "guest" / "loads.json").write_text(json.dumps(loads), encoding="utf-8")
        if not compileall.compile_dir(tree, quiet=1):
            raise Failed("the core does not compile: run `make check`")
        _filesystem(tree, self._folder / "core.img", 64)
        # Its own first process goes with this run, the modules come from the cache.
        staged = self._folder / "initramfs"
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(self._base / "initramfs", staged)
        shutil.copy2(GUEST / "init", staged / "init")
        with (self._folder / "initramfs.cpio").open("wb") as out:
            out.write(_cpio(staged))
        _sparse(self._folder / "data.img", 2048)

    def boot(self, name: str, load: Load, part: Part) -> None:
        """Until the machine ends. Raises Failed where it did not by itself."""
        folder, told = self._folder, self._folder / f"{name}.told"
        swap = folder / f"{name}.swap"
        _sparse(swap, 1024)
        fixed = (self._base / "root.img", folder / "core.img", folder / "data.img")
        words = [
            "setpriv", "--pdeathsig=TERM",  # it ends with this process, however that ends
            "qemu-system-x86_64", "-accel", "tcg", "-m", str(MEMORY_MIB), "-smp", "1", "-nodefaults",
            "-display", "none", "-no-reboot", "-no-user-config",
            "-kernel", str(self._base / "vmlinuz"), "-initrd", str(folder / "initramfs.cpio"),
            "-append", f"console=ttyS0 quiet panic=-1 regrade.load={name} {load.command_line}".strip(),
            "-serial", f"file:{folder / name}.console", "-serial", f"file:{told}",
        ]  # fmt: skip
        for path in (*fixed, swap):
            words += [
                "-drive",
                f"file={path},format=raw,if=virtio,readonly={'on' if path in fixed else 'off'},throttling.group=card,"
                f"throttling.iops-total={READS_AND_WRITES},throttling.bps-total={BYTES}",
            ]
        told.unlink(missing_ok=True)
        part.now(f"{load.title}")
        try:
            part.run(words, timeout=load.seconds + 420)
        finally:
            swap.unlink(missing_ok=True)

    def clean(self) -> None:
        """What only a run needs: the curves stay."""
        for name in ("core", "initramfs"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for name in ("core.img", "initramfs.cpio", "data.img"):
            (self._folder / name).unlink(missing_ok=True)


def _base() -> Path:
    """The folder of the cache with `vmlinuz`, `initramfs/`, `root/`, `root.img` and `release`."""
    kernel = _kernel_package()
    packages = (kernel, *PACKAGES)
    folder = cache.folder("pressure", cache.key(*_versions(packages), LOCK, Path(__file__)))
    with cache.lock("pressure"):
        if (folder / "release").is_file():
            return folder
        with Part("small machine") as part:
            shutil.rmtree(folder)
            (folder / "debs").mkdir(parents=True)
            part.now("fetching Debian packages")
            part.run(["apt-get", "-q", "download", *packages], cwd=folder / "debs", timeout=900)
            part.now("unpacking")
            for deb in sorted((folder / "debs").glob("*.deb")):
                into = "kernel" if deb.name.startswith("linux-image") else "root"
                part.run(["dpkg-deb", "-x", str(deb), str(folder / into)])
            release = _lay_out(folder)
            part.now("making the root")
            _filesystem(folder / "root", folder / "root.img", 320)
            shutil.rmtree(folder / "debs")
            shutil.rmtree(folder / "kernel")
            (folder / "release").write_text(release, encoding="utf-8")
    return folder


def _kernel_package() -> str:
    """The package that Debian's name for its newest kernel depends on."""
    said = _output("apt-cache", "depends", KERNEL)
    found = re.search(r"Depends: (linux-image-\S+)", said)
    if not found:
        raise Failed(f"apt-cache knows no {KERNEL}: run `apt-get update` as root, on Debian 12 for amd64")
    return found.group(1)


def _versions(packages: Sequence[str]) -> list[str]:
    """One after the other, as `apt-cache policy` tells them."""
    return re.findall(r"Candidate: (\S+)", _output("apt-cache", "policy", *packages))


def _output(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise Failed(f"{words[0]} could not be started ({error.strerror}): this needs Debian 12 for amd64") from error
    if done.returncode or not done.stdout.strip():
        raise Failed(f"`{' '.join(words)}` tells nothing: {done.stderr.strip()}; run `apt-get update` as root")
    return done.stdout


def _lay_out(folder: Path) -> str:
    """The root, the initramfs and the kernel out of what was unpacked; the kernel's release."""
    root, initramfs = folder / "root", folder / "initramfs"
    (kernel,) = (folder / "kernel" / "boot").glob("vmlinuz-*")
    release = kernel.name.partition("-")[2]
    shutil.copy2(kernel, folder / "vmlinuz")
    for name in ("share/doc", "share/man", "share/lintian", "share/locale"):
        shutil.rmtree(root / "usr" / name, ignore_errors=True)
    for name in ("proc", "sys", "dev", "run", "tmp", "opt", "var/lib", "root", "etc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "usr" / "bin" / "python3").symlink_to("python3.11")
    into = root / "usr" / "lib" / "python3" / "dist-packages"
    into.mkdir(parents=True, exist_ok=True)
    (site,) = (ROOT / ".venv" / "lib").glob("python3.*/site-packages")
    for pattern in LIBRARIES:
        for path in site.glob(pattern):
            ignored = shutil.ignore_patterns("__pycache__", "models", "api", "test*")
            if path.is_dir():
                shutil.copytree(path, into / path.name, ignore=ignored)
            else:
                shutil.copy2(path, into / path.name)
    compileall.compile_dir(root / "usr" / "lib", quiet=2)
    modules = folder / "kernel" / "lib" / "modules" / release
    (initramfs / "modules").mkdir(parents=True)
    (initramfs / "bin").mkdir()
    shutil.copy2(root / "bin" / "busybox", initramfs / "bin" / "busybox")
    for name in (*MODULES, *LATER):
        (found,) = modules.rglob(f"{name}.ko")
        shutil.copy2(found, initramfs / "modules" / found.name)
    (initramfs / "modules" / "order").write_text("".join(f"{name}.ko\n" for name in MODULES), encoding="utf-8")
    return release


def _filesystem(tree: Path, image: Path, mib: int) -> None:
    image.unlink(missing_ok=True)
    done = subprocess.run(
        [
            "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", str(tree), str(image),
            f"{mib}m",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"mke2fs could not make {image.name}: {done.stderr.strip()}")


def _sparse(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        file.truncate(mib << 20)


def _cpio(tree: Path) -> bytes:
    """A `newc` archive of the folder, as the kernel unpacks it; Debian's program for it would be one more to need."""
    out = bytearray()

    def add(number: int, name: str, mode: int, data: bytes) -> None:
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out.extend(b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name.encode() + b"\0")
        out.extend(bytes(-len(out) % 4))
        out.extend(data)
        out.extend(bytes(-len(out) % 4))

    for number, path in enumerate(sorted(tree.rglob("*")), start=1):
        name = path.relative_to(tree).as_posix()
        if path.is_dir():
            add(number, name, 0o040755, b"")
        else:
            add(number, name, 0o100000 | (path.stat().st_mode & 0o777), path.read_bytes())
    add(0, "TRAILER!!!", 0, b"")
    return bytes(out)

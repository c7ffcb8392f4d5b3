"""Build the image of the k3s stand-in: `python3 build.py` prints its tag as the last line.

Three layers, each built only when its inputs changed: a Debian root (debootstrap), the Go programs of stack/,
and the launcher with the few files beside it, so that changing the launcher alone takes seconds. Everything
is cached in ${XDG_CACHE_HOME:-~/.cache}/exadev-k3s-regrade/image. Needs Debian 12 as root, Go 1.25 or newer
and a Docker engine; what is missing of Debian's own tools is installed. Standard library only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cache  # noqa: E402
import podimage  # noqa: E402
from parts import Failed, Part  # noqa: E402

REPOSITORY = "exadev/k3s-bed"
RELEASE = "bookworm"
# python3-cffi-backend stands here because debootstrap does not follow virtual packages.
PACKAGES = (
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "python3",
    "python3-cffi-backend",
    "python3-cryptography",
    "python3-yaml",
    "runc",
)
KUBERNETES = "v1.34.4"
VERSION = f"{KUBERNETES}+k3s-bed"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
TAGS = "providerless"
MINIMUM_GO = (1, 25)
# As stock rancher/k3s declares them, so that data outlives the container.
CONFIG = (
    "ENV PATH=/bed/bin",
    'VOLUME ["/var/lib/kubelet", "/var/lib/rancher/k3s", "/var/lib/cni", "/var/log"]',
    'ENTRYPOINT ["/bin/k3s"]',
    'CMD ["agent"]',
)
# Applets of Debian's busybox that stock rancher/k3s does not have on its PATH.
NOT_IN_STOCK = {"busybox", "dpkg", "dpkg-deb", "rpm", "rpm2cpio", "ssl_client", "wget"}
# The same for the hosts' engines and for the containerd in here; the hosts' tests try it.
RUNC_WRAPPER = HERE.parent / "host" / "runc_without_sys_resource.py"
# The stock image's wget has no TLS: whoever probes from inside must not get used to it.
WGET = """#!/bin/sh
for argument; do
    case "$argument" in https://*)
        echo "wget: not an http or ftp url: $argument" >&2
        exit 1
    esac
done
exec /bin/busybox wget "$@"
"""


class BuildError(Failed):
    """What is missing or went wrong, and what to do, in one line."""


def folder() -> Path:
    """Where the layers are kept."""
    return cache.folder("image")


def run(command: Sequence[str | Path], **options: object) -> str:
    """Run a command; BuildError with its last words when it fails."""
    done = subprocess.run(  # type: ignore[call-overload]  # the options are run's own
        [str(part) for part in command], capture_output=True, **options
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise BuildError(f"{command[0]} {command[1] if len(command) > 1 else ''} failed: {' | '.join(words)}")
    output: str = done.stdout.decode()
    return output.strip()


# -- the Go programs


def find_go() -> tuple[str, str]:
    """The go command and its version."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        raise BuildError("no go command found: Go 1.25 or newer is needed on the PATH or in /usr/local/go")
    version = run([go, "env", "GOVERSION"])
    found = re.match(r"go(\d+)\.(\d+)", version)
    if not found or (int(found[1]), int(found[2])) < MINIMUM_GO:
        raise BuildError(f"{go} is {version}: Go 1.25 or newer is needed")
    return go, version


def link_flags() -> str:
    """-ldflags that strip the program and stamp the version the Node shows."""
    flags = ["-s", "-w"]
    major, minor, _ = KUBERNETES.lstrip("v").split(".")
    stamps = {
        "gitVersion": VERSION,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "bed",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in stamps.items()]
    return " ".join(flags)


def build_stack() -> tuple[str, Path]:
    """The key and the folder of the built programs."""
    go, version = find_go()
    key = cache.key("stack", version, TAGS, link_flags(), HERE / "stack")
    target = folder() / "stack" / key
    if target.exists():
        return key, target
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    flags = ["-tags", TAGS, "-trimpath", "-buildvcs=false", "-mod=readonly"]
    with tempfile.TemporaryDirectory(dir=folder()) as draft_name, Part("k3s stand-in: Go programs") as part:
        draft = Path(draft_name)
        part.now("fetching modules")
        listed = run([go, "list", *flags, "-deps", "./..."], cwd=HERE / "stack", env=environment)
        total, compiled = len(listed.splitlines()), 0

        def how_far(_line: str) -> str:
            nonlocal compiled
            compiled += 1
            return f"{compiled} of at most {total} packages compiled"

        command = [go, "build", *flags, "-v", "-ldflags", link_flags(), "-o", f"{draft}/", "./..."]
        part.run(command, cwd=HERE / "stack", env=environment, describe=how_far)
        (draft / "stack").rename(draft / "kube")  # named after its module
        target.parent.mkdir(exist_ok=True)
        shutil.move(draft, target)
        draft.mkdir()  # for the end of the temporary directory
    return key, target


# -- the Debian root


def mirror() -> str:
    """The address of the Debian archive this machine itself uses for the release."""
    apt = Path("/etc/apt")
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]:
        if path.exists():
            pattern = rf"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+{RELEASE}\s+.*\bmain\b"
            if found := re.search(pattern, path.read_text(), re.MULTILINE):
                return found[1]
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^(\w[\w-]*):[ \t]*(.*)$", stanza, re.MULTILINE))
            if fields.get("Enabled", "yes") != "no" and RELEASE in fields.get("Suites", "").split():
                return str(fields["URIs"].split()[0])
    raise BuildError(f"no source of Debian {RELEASE} in /etc/apt: the image is made of its packages")


def build_root() -> tuple[str, Path]:
    """The key and the tar of a Debian root with the packages."""
    key = cache.key("root", RELEASE, *PACKAGES)
    target = folder() / "root" / f"{key}.tar"
    if target.exists():
        return key, target
    if os.geteuid() != 0:
        raise BuildError("debootstrap needs root: run as root, or have the root tar in the cache already")
    if shutil.which("debootstrap") is None:
        with Part("k3s stand-in: installing debootstrap"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update", "-q"], env=environment)
            run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "debootstrap"], env=environment)
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder()) as draft_name:
        root = Path(draft_name) / "root"
        with Part("k3s stand-in: Debian root"):
            include = "--include=" + ",".join(PACKAGES)
            run(["debootstrap", "--variant=minbase", include, RELEASE, root, mirror()])
            for waste in (
                "var/cache/apt",
                "var/lib/apt/lists",
                "usr/share/doc",
                "usr/share/man",
                "usr/share/locale",
            ):
                shutil.rmtree(root / waste, ignore_errors=True)
            draft = Path(draft_name) / "root.tar"
            left_out = ["--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*"]
            run(["tar", "-C", root, "--numeric-owner", *left_out, "-cf", draft, "."])
            draft.replace(target)
    return key, target


# -- layers and images


class Layer:
    """A tar under construction: root owns everything, times are fixed."""

    def __init__(self) -> None:
        self._data = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._data, mode="w")  # noqa: SIM115 - closed by data()
        self._folders: set[str] = set()

    def _parents(self, name: str) -> None:
        for parent in reversed(Path(name).parents):
            if str(parent) not in {".", *self._folders}:
                self._folders.add(str(parent))
                info = tarfile.TarInfo(str(parent))
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                self._tar.addfile(info)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._parents(name)
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), mode
        self._tar.addfile(info, io.BytesIO(content))

    def link(self, name: str, target: str) -> None:
        self._parents(name)
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)

    def data(self) -> bytes:
        self._tar.close()
        return self._data.getvalue()


def has_image(tag: str) -> bool:
    command = ["docker", "image", "inspect", tag]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def add_layer(base: str, content: bytes, tag: str, config: Sequence[str] = ()) -> None:
    """The image `tag`: the base with the tar's files on top. Works without buildx and without a registry."""
    container = run(["docker", "create", base])
    try:
        run(["docker", "cp", "-", f"{container}:/"], input=content)
        changes = [part for line in config for part in ("--change", line)]
        run(["docker", "commit", *changes, container, tag])
    finally:
        run(["docker", "rm", "--volumes", container])


def stack_layer(programs: Path) -> bytes:
    layer = Layer()
    layer.file("bed/lib/kube", (programs / "kube").read_bytes(), 0o755)
    layer.file("bed/lib/front", (programs / "front").read_bytes(), 0o755)
    for component in COMPONENTS:
        layer.link(f"bed/lib/{component}", "kube")
    layer.file("bed/lib/version", f"{VERSION}\n".encode())
    return layer.data()


def busybox_of(root: Path) -> bytes:
    """The static busybox of the Debian root."""
    with tarfile.open(root) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith("bin/busybox"):
                extracted = archive.extractfile(member)
                assert extracted is not None
                return extracted.read()
    raise BuildError(f"no busybox in {root}: remove the file and build again")


def applets(busybox: bytes) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "busybox"  # it acts by the name it is called by
        program.write_bytes(busybox)
        program.chmod(0o755)
        return sorted(set(run([program, "--list"]).split()) - NOT_IN_STOCK)


def launcher_layer(busybox: bytes) -> bytes:
    """The launcher, the PATH of the stock image, and the pod images."""
    layer = Layer()
    launcher = HERE / "launcher"
    layer.file("bed/bin/k3s", (launcher / "k3s").read_bytes(), 0o755)
    layer.file("bed/lib/runc-without-sys-resource", RUNC_WRAPPER.read_bytes(), 0o755)
    for path in sorted((launcher / "bedk3s").glob("*.py")):
        layer.file(f"bed/launcher/bedk3s/{path.name}", path.read_bytes())
    layer.link("usr/bin/k3s", "/bed/bin/k3s")
    layer.link("bed/bin/kubectl", "../lib/kubectl")
    for name in ("crictl", "ctr"):
        layer.link(f"bed/bin/{name}", "k3s")
    layer.link("bed/bin/busybox", "/bin/busybox")
    for applet in applets(busybox):
        layer.link(f"bed/bin/{applet}", "/bin/busybox")
    layer.file("bed/bin/wget", WGET.encode(), 0o755)
    layer.file("bed/images/pods.tar", podimage.archive(busybox))
    return layer.data()


def ensure_image() -> str:
    """The tag of the image, built first where it is not there. BuildError says in one line what is missing."""
    with cache.lock("stand-in"):  # a second caller waits and then finds everything built
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stack_future = pool.submit(build_stack)
            root_future = pool.submit(build_root)
            stack_key, programs = stack_future.result()
            root_key, root = root_future.result()
        base = f"{REPOSITORY}-base:{cache.key(root_key, stack_key, stack_inputs())}"
        tag = f"{REPOSITORY}:{cache.key(base, WGET, other_inputs(), HERE / 'launcher', RUNC_WRAPPER)}"
        if has_image(tag):
            return tag
        if not has_image(base):
            with Part("k3s stand-in: base image"):
                root_tag = f"{REPOSITORY}-root:{root_key}"
                if not has_image(root_tag):
                    changes = [part for line in CONFIG for part in ("--change", line)]
                    run(["docker", "import", *changes, root, root_tag])
                add_layer(root_tag, stack_layer(programs), base)
        with Part("k3s stand-in: launcher layer"):
            add_layer(base, launcher_layer(busybox_of(root)), tag, CONFIG)
    return tag


def stack_inputs() -> str:
    """What, besides the programs, goes into the base image."""
    return " ".join([VERSION, *COMPONENTS])


def other_inputs() -> str:
    """What, besides the launcher's files, goes into the last layer and the image's configuration."""
    return (HERE / "podimage.py").read_text() + " ".join([*sorted(NOT_IN_STOCK), *CONFIG])


def pod_images() -> bytes:
    """The archive of the pod images, for containerd's import elsewhere."""
    return podimage.archive(busybox_of(build_root()[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--pod-images", metavar="FILE", type=Path, help="write the pod images' archive and end"
    )
    arguments = parser.parse_args()
    try:
        # Signs of life go beside the answer, which is the last line of standard output.
        with contextlib.redirect_stdout(sys.stderr):
            if arguments.pod_images:
                arguments.pod_images.write_bytes(pod_images())
                made = str(arguments.pod_images)
            else:
                made = ensure_image()
        print(made)
    except Failed as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Build the image of the k3s stand-in: `python3 build.py` prints its tag as the last line.

Three layers, each built only when its inputs changed: a Debian root (debootstrap), the Go programs of stack/,
and the launcher with the few files beside it, so that changing the launcher alone takes seconds. Everything
is cached in ${XDG_CACHE_HOME:-~/.cache}/exadev-k3s-regrade/image. Needs Debian 12 as root, Go 1.25 or newer
and a Docker engine; what is missing of Debian's own tools is installed. Standard library only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import podimage  # noqa: E402
from progress import Progress  # noqa: E402

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


class BuildError(Exception):
    """What is missing or went wrong, and what to do, in one line."""


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "exadev-k3s-regrade" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command: Sequence[str | Path], **options: object) -> str:
    """Run a command; BuildError with its last words when it fails."""
    done = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command], capture_output=True, **options
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise BuildError(f"{command[0]} {command[1] if len(command) > 1 else ''} failed: {' | '.join(words)}")
    output: str = done.stdout.decode()
    return output.strip()


def key_of(parts: Iterable[str | bytes]) -> str:
    """Twelve hex digits of the inputs."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]


def tree(folder: Path) -> list[Path]:
    """The files of a folder that count, in a fixed order."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )


def tree_parts(folder: Path) -> list[str | bytes]:
    parts: list[str | bytes] = []
    for path in tree(folder):
        parts += [str(path.relative_to(folder)), path.read_bytes()]
    return parts


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


def build_stack(cache: Path, progress: Progress) -> tuple[str, Path]:
    """The key and the folder of the built programs."""
    go, version = find_go()
    key = key_of(["stack", version, TAGS, link_flags(), *tree_parts(HERE / "stack")])
    target = cache / "stack" / key
    if target.exists():
        return key, target
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    flags = ["-tags", TAGS, "-trimpath", "-buildvcs=false", "-mod=readonly"]
    compiled = 0
    with tempfile.TemporaryDirectory(dir=cache) as draft_name:
        draft = Path(draft_name)
        total = 0
        with progress.part("Go modules"):
            listed = run([go, "list", *flags, "-deps", "./..."], cwd=HERE / "stack", env=environment)
            total = len(listed.splitlines())
        with progress.part("Go programs", lambda: f"{compiled} of at most {total} packages compiled"):
            command = [go, "build", *flags, "-v", "-ldflags", link_flags(), "-o", f"{draft}/", "./..."]
            process = subprocess.Popen(
                command, cwd=HERE / "stack", env=environment, stderr=subprocess.PIPE, text=True
            )
            assert process.stderr is not None
            words: list[str] = []
            for line in process.stderr:
                compiled += 1
                words = [*words[-4:], line.strip()]
            if process.wait() != 0:
                raise BuildError(f"go build failed: {' | '.join(words)}")
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


def build_root(cache: Path, progress: Progress) -> tuple[str, Path]:
    """The key and the tar of a Debian root with the packages."""
    key = key_of(["root", RELEASE, *PACKAGES])
    target = cache / "root" / f"{key}.tar"
    if target.exists():
        return key, target
    if os.geteuid() != 0:
        raise BuildError("debootstrap needs root: run as root, or have the root tar in the cache already")
    if shutil.which("debootstrap") is None:
        with progress.part("installing debootstrap"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update", "-q"], env=environment)
            run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "debootstrap"], env=environment)
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as draft_name:
        root = Path(draft_name) / "root"
        with progress.part("Debian root"):
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
    layer.file(
        "bed/lib/runc-without-sys-resource", (launcher / "runc-without-sys-resource").read_bytes(), 0o755
    )
    for path in tree(launcher / "bedk3s"):
        layer.file(f"bed/launcher/bedk3s/{path.relative_to(launcher / 'bedk3s')}", path.read_bytes())
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
    cache = cache_folder()
    progress = Progress(cache / "durations.json")
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second caller waits and then finds everything built
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stack_future = pool.submit(build_stack, cache, progress)
            root_future = pool.submit(build_root, cache, progress)
            stack_key, programs = stack_future.result()
            root_key, root = root_future.result()
        base = f"{REPOSITORY}-base:{key_of([root_key, stack_key, stack_inputs()])}"
        tag = f"{REPOSITORY}:{key_of([base, WGET, other_inputs(), *tree_parts(HERE / 'launcher')])}"
        if has_image(tag):
            return tag
        if not has_image(base):
            with progress.part("base image"):
                root_tag = f"{REPOSITORY}-root:{root_key}"
                if not has_image(root_tag):
                    changes = [part for line in CONFIG for part in ("--change", line)]
                    run(["docker", "import", *changes, root, root_tag])
                add_layer(root_tag, stack_layer(programs), base)
        with progress.part("launcher layer"):
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
    cache = cache_folder()
    return podimage.archive(busybox_of(build_root(cache, Progress(cache / "durations.json"))[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--pod-images", metavar="FILE", type=Path, help="write the pod images' archive and end"
    )
    arguments = parser.parse_args()
    try:
        if arguments.pod_images:
            arguments.pod_images.write_bytes(pod_images())
            print(arguments.pod_images)
        else:
            print(ensure_image())
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

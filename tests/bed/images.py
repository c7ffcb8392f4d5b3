# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of the bed: which k3s, the hosts' own, and the service image that the role's Dockerfile makes.

Standard library and the docker command only. Each is made at most once for the same inputs.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Optional

import cache
import engine
from parts import Failed, Part, say

HERE = Path(__file__).resolve().parent
SSHD = HERE / "host" / "sshd.conf"  # of hosts and machines alike
ROOT = HERE.parents[1]

# The image people run. Whether this tag exists could not be checked where this was written (no registry was
# reachable there); where it cannot be pulled, for whatever reason, the stand-in is used, and that is said.
OFFICIAL_K3S = "rancher/k3s:v1.34.9-k3s1"
PUBLIC_DEBIAN = "debian:bookworm-slim"
SUITE = "bookworm"
HOST = "exadev/k3s-regrade-host"
DEBIAN = "exadev/k3s-regrade-debian"
SERVICE_BASE = "exadev/k3s-regrade-service-base"
BASE_LABEL = "exadev.base"  # on the service image: the base it was built on, for a build on a host
MACHINE = "exadev/k3s-regrade-machine"
SERVICE = "exadev/k3s-regrade:bed"
SERVICE_FILES = ROOT / "roles" / "github_runner_cluster" / "files"

CONTACT_SECONDS = 15
"""A registry that has said nothing after this long is not reachable."""

UNUSED_SECONDS = 24 * 3600
"""An archive that was not used for this long goes."""


def present(image: str) -> Optional[str]:
    """The id of a local image, None where there is none."""
    found = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", image], capture_output=True, text=True
    )
    return found.stdout.strip() if found.returncode == 0 else None


def pull(image: str, limit: float = 900) -> Optional[str]:
    """Pull an image; None when it is there, else why it could not be had, in one line.

    Seconds where no registry is reachable: the first word of it is waited for, not the client's own retries.
    """
    if present(image):
        return None
    child = subprocess.Popen(
        ["docker", "pull", image],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    killer = threading.Timer(CONTACT_SECONDS, child.kill)
    killer.start()
    assert child.stdout is not None
    last = ""
    for line in child.stdout:
        last = line.strip() or last
        if "Pulling from" in line:
            say(f"[images] pulling {image}")
            killer.cancel()
            killer = threading.Timer(limit, child.kill)
            killer.start()
    code = child.wait()
    silent = not killer.is_alive()
    killer.cancel()
    if code == 0:
        return None
    return "no answer in time" if silent else last


def k3s(chosen: Optional[str]) -> str:
    """The k3s image: the one chosen, else the official one, else the stand-in built here from real parts."""
    if chosen:
        why_not = pull(chosen)
        if why_not:
            raise Failed(
                f"REGRADE_K3S_IMAGE names {chosen}, which is neither here nor to be pulled ({why_not})"
            )
        return chosen
    why_not = pull(OFFICIAL_K3S)
    if why_not is None:
        return OFFICIAL_K3S
    say(
        f"[images] {OFFICIAL_K3S} cannot be pulled ({why_not}): using the stand-in, made here from real parts"
    )
    return stand_in()


def stand_in() -> str:
    """The k3s of tests/bed/image."""
    # Here, so that two parts that run side by side never want apt at the same time.
    engine.packages("debootstrap")
    return _stand_in_build()


def is_stand_in(image: str) -> bool:
    """Whether it is the k3s of tests/bed/image, which has the test pods' image in it."""
    return image.startswith("exadev/k3s-bed:")


def pods() -> bytes:
    """The archive of the test pods' image, for a k3s image that does not have it."""
    with tempfile.TemporaryDirectory(prefix="bed-pods-") as folder:
        file = Path(folder, "pods.tar")
        _stand_in_build("--pod-images", str(file))
        return file.read_bytes()


def _stand_in_build(*arguments: str) -> str:
    # A program of its own, with its own modules and its own signs of life on standard error.
    command = [sys.executable, str(HERE / "image" / "build.py"), *arguments]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    lines = built.stdout.strip().splitlines()
    if built.returncode or not lines:
        raise Failed("the stand-in for k3s could not be built: see above")
    return lines[-1]


def debian() -> str:
    """A small Debian: pulled where a registry is reachable, else made by debootstrap."""
    own = f"{DEBIAN}:{SUITE}"
    with cache.lock("debian"):
        if present(own):
            return own
        if pull(PUBLIC_DEBIAN) is None:
            return PUBLIC_DEBIAN
        engine.packages("debootstrap")
        with Part("Debian base") as part, tempfile.TemporaryDirectory(prefix="bed-debian-") as folder:
            done = 0

            def how_far(line: str) -> str:
                nonlocal done
                done += line.startswith(("I: Retrieving", "I: Extracting", "I: Unpacking", "I: Configuring"))
                return f"debootstrap, {done} packages handled"

            tree = Path(folder, "tree")
            command = ["debootstrap", "--variant=minbase", SUITE, str(tree), *_mirror()]
            part.run(command, describe=how_far, timeout=1200)
            for useless in (
                "var/cache/apt/archives",
                "var/lib/apt/lists",
                "usr/share/doc",
                "usr/share/locale",
            ):
                shutil.rmtree(tree / useless, ignore_errors=True)
            (tree / "var/cache/apt/archives/partial").mkdir(parents=True)
            (tree / "var/lib/apt/lists/partial").mkdir(parents=True)
            part.now("docker import")
            archive = Path(folder, "tree.tar")
            part.run(["tar", "-C", str(tree), "--numeric-owner", "-cf", str(archive), "."])
            part.run(["docker", "import", "--change", "CMD /bin/bash", str(archive), own])
    return own


def _mirror() -> list[str]:
    """The Debian archive that this machine's own apt uses, where it uses one of the suite."""
    wanted = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        f"Codename: {SUITE}",
    ]
    known = subprocess.run([*wanted, "Component: main"], capture_output=True, text=True)
    return known.stdout.split()[:1]


def host(base: str, compose: Path) -> str:
    """The image of the three hosts."""
    image = f"{HOST}:{cache.key(HERE / 'host', engine.COMPOSE_VERSION, present(base) or base)}"
    with cache.lock("host-image"):
        if not present(image):
            with tempfile.TemporaryDirectory(prefix="bed-host-") as folder:
                shutil.copytree(HERE / "host", folder, dirs_exist_ok=True)
                shutil.copy2(compose, Path(folder, "docker-compose"))
                _build("host image", Path(folder), image, base)
    return image


def service_base(base: str) -> str:
    """What the service image is built on where no registry is reachable."""
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        raise Failed("this Python names no CA bundle: install ca-certificates")
    authorities = Path(bundle).read_bytes()
    source = HERE / "service_base"
    ours = f"{SERVICE_BASE}:{cache.key(source, authorities, present(base) or base)}"
    with cache.lock("service-base-image"):
        if not present(ours):
            with tempfile.TemporaryDirectory(prefix="bed-service-") as folder:
                shutil.copytree(source, folder, dirs_exist_ok=True)
                Path(folder, "ca-certificates.crt").write_bytes(authorities)
                _build("service base image", Path(folder), ours, base)
    return ours


def service(base: str, files: Path = SERVICE_FILES) -> str:
    """The role's service image, made from the Dockerfile it ships, on a base that needs no registry."""
    for name in ("Dockerfile", "requirements.txt"):
        if not (files / name).is_file():
            raise Failed(f"{files / name} is missing: the service image is built from the role's own files")
    ours = service_base(base)
    with cache.lock("service-image"):
        labels = {"exadev.inputs": cache.key(files, ours), BASE_LABEL: ours}
        if any(_label(SERVICE, name) != value for name, value in labels.items()):
            given = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
            _build("service image", files, SERVICE, ours, *given)
    return SERVICE


def machine(k3s_image: str, base: str, requirements: Path = SERVICE_FILES / "requirements.txt") -> str:
    """The image of a machine that runs the stand-in as a unit, with the wheels of the role's requirements."""
    image = f"{MACHINE}:{cache.key(k3s_image, base, HERE / 'machine', SSHD, requirements)}"
    with cache.lock("machine-image"):
        if not present(image):
            with tempfile.TemporaryDirectory(prefix="bed-machine-") as folder:
                shutil.copytree(HERE / "machine", folder, dirs_exist_ok=True)
                for file in (SSHD, requirements):
                    shutil.copy2(file, folder)
                _build("machine image", Path(folder), image, k3s_image, f"--build-arg=SERVICE_BASE={base}")
    return image


def _label(image: str, label: str) -> str:
    found = subprocess.run(
        ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{label}"}}}}', image],
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


def _build(what: str, context: Path, image: str, base: str, *more: str) -> None:
    with Part(what) as part:
        # The classic builder: Debian's client has no other, and nothing here needs another.
        command = [
            "docker",
            "build",
            "--force-rm",
            "--build-arg",
            f"BASE={base}",
            "-t",
            image,
            *more,
            str(context),
        ]
        part.run(command, env={"DOCKER_BUILDKIT": "0"}, timeout=1200)


def archive(image: str) -> Path:
    """A tar of the image for the hosts' own engines, written once for the same image."""
    folder = cache.folder("images")
    path = folder / f"{cache.key(image, present(image) or image)}.tar"
    with cache.lock("archive"):
        for old in folder.iterdir():
            # Those in use today stay: another checkout may be about to load one.
            if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                old.unlink()
        if path.is_file():
            os.utime(path)
            return path
        with Part(f"archive of {image.partition(':')[0]}") as part:
            new = path.with_suffix(".new")
            part.now("docker save")
            part.run(["docker", "save", "-o", str(new), image])
            new.replace(path)
    return path

"""Where k3s keeps what, and where the image keeps its programs. Paths only: nothing is read or written here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path("/bed/lib")
FRONT = PROGRAMS / "front"
RUNC_WRAPPER = PROGRAMS / "runc-without-sys-resource"
CNI_PROGRAMS = Path("/usr/lib/cni")
NODE_PASSWORD = Path("/etc/rancher/node/password")
KUBELET_DIR = Path("/var/lib/kubelet")
RUN = Path("/run/k3s")
SUPERVISOR_SOCKET = RUN / "supervisor.sock"
CONTAINERD_SOCKET = RUN / "containerd" / "containerd.sock"


@dataclass(frozen=True)
class Layout:
    """The data directory of one server, as k3s lays it out."""

    data: Path

    @property
    def server(self) -> Path:
        return self.data / "server"

    @property
    def tls(self) -> Path:
        return self.server / "tls"

    @property
    def cred(self) -> Path:
        return self.server / "cred"

    @property
    def etcd(self) -> Path:
        return self.server / "db" / "etcd"

    @property
    def manifests(self) -> Path:
        return self.server / "manifests"

    @property
    def agent(self) -> Path:
        return self.data / "agent"

    @property
    def agent_etc(self) -> Path:
        return self.agent / "etc"

    @property
    def balancer_file(self) -> Path:
        return self.agent_etc / "k3s-agent-load-balancer.json"

    @property
    def programs(self) -> Path:
        """Where k3s unpacks its own programs: what runs from there is of this k3s and of nobody else."""
        return self.data / "data" / "stand-in" / "bin"

    @property
    def images(self) -> Path:
        return self.agent / "images"

    @property
    def containerd(self) -> Path:
        return self.agent / "containerd"

    def create(self) -> None:
        """Make the folders k3s makes; those with secrets are for root alone."""
        for folder in (self.server, self.tls, self.cred, self.etcd, self.agent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.tls / "etcd", self.manifests, self.agent_etc, self.images, self.containerd, RUN):
            folder.mkdir(parents=True, exist_ok=True)


def write(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Replace a file at once, with that mode, whatever a kill leaves half done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.chmod(mode)
    draft.replace(path)

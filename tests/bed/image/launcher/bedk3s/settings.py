"""The typed settings of one server, made from merged flag values.

Nothing here reads a file of the data directory or starts anything.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import flags

HTTPS_PORT = 6443
BALANCER_PORT = 6444
# 15 min 01 s were measured on k3s 1.34.10 until "failed to wait for API server to become ready".
API_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True)
class Settings:
    """One server's settings; addresses are IPv4 texts, ports TCP ports, times seconds."""

    node_name: str
    node_ip: str
    token: str
    server: str
    cluster_init: bool
    apiserver: bool
    controller_manager: bool
    scheduler: bool
    agent: bool
    data_dir: Path
    https_port: int
    balancer_port: int
    tls_sans: tuple[str, ...]
    node_labels: tuple[str, ...]
    node_taints: tuple[str, ...]
    kubeconfig: Path
    kubeconfig_mode: int
    cluster_cidr: str
    service_cidr: str
    node_args: str
    extra: Mapping[str, tuple[str, ...]]
    api_timeout: float
    order: str

    @property
    def api_port(self) -> int:
        """Where kube-apiserver itself listens on loopback: one above its public port, as in k3s."""
        return self.https_port + 1

    @property
    def needs_balancer(self) -> bool:
        """Without an API server of its own the server reaches one through its balancer."""
        return not self.apiserver

    @property
    def client_port(self) -> int:
        """The loopback port on which this server's own clients find an API."""
        return self.https_port if self.apiserver else self.balancer_port


def default_address() -> str:
    """The address of the interface that leads outside; the host name's where there is no way out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def masked_args(arguments: Sequence[str]) -> str:
    """The text of the annotation k3s.io/node-args, with secrets masked as k3s masks them."""
    shown: list[str] = ["server"]
    mask_next = False
    for argument in arguments:
        name, equals, _value = argument.lstrip("-").partition("=")
        if mask_next:
            shown.append("********")
            mask_next = False
        elif argument.startswith("-") and flags.ALIASES.get(name, name) in {
            "token",
            "agent-token",
            "vpn-auth",
        }:
            shown.append(f"--{flags.ALIASES.get(name, name)}")
            if equals:
                shown.append("********")
            else:
                mask_next = True
        else:
            shown.append(argument)
    return json.dumps(shown, separators=(",", ":"))


def as_arguments(values: flags.Values) -> list[str]:
    """The values as one command line, for the annotation."""
    arguments: list[str] = []
    for name, text in values.scalars.items():
        arguments += [f"--{name}", text]
    for name, texts in values.lists.items():
        for text in texts:
            arguments += [f"--{name}", text]
    return arguments


def _port(values: flags.Values, name: str, default: int) -> int:
    text = values.scalars.get(name, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise flags.FlagError(f'invalid value "{text}" for flag -{name}: a port was expected')
    return int(text)


def from_values(values: flags.Values, environment: Mapping[str, str], hostname: str) -> Settings:
    """The settings the merged values ask for; FlagError when the bed cannot run them."""

    def on(name: str) -> bool:
        return flags.truth(name, values.scalars.get(name, "false"))

    if on("disable-etcd") or values.scalars.get("datastore-endpoint"):
        raise flags.FlagError(
            "this stand-in has embedded etcd only: no --disable-etcd, no --datastore-endpoint"
        )
    token = values.scalars.get("token", "")
    if not token and values.scalars.get("token-file"):
        try:
            token = Path(values.scalars["token-file"]).read_text().strip()
        except OSError as error:
            raise flags.FlagError(f"failed to read the token file: {error}") from error
    mode = values.scalars.get("write-kubeconfig-mode", "600")
    try:
        kubeconfig_mode = int(mode, 8)
    except ValueError as error:
        raise flags.FlagError(f'invalid value "{mode}" for flag -write-kubeconfig-mode') from error
    api_timeout = environment.get("BED_API_TIMEOUT_SECONDS", str(API_TIMEOUT_SECONDS))
    order = environment.get("BED_APISERVERS_ORDER", "random")
    if order not in {"random", "own-first", "own-last"}:
        raise flags.FlagError(
            f'BED_APISERVERS_ORDER is "{order}": random, own-first or own-last was expected'
        )
    node_ips = values.lists.get("node-ip")
    return Settings(
        # The kubelet lowers host names too.
        node_name=(values.scalars.get("node-name") or hostname).lower(),
        node_ip=node_ips[0] if node_ips else default_address(),
        token=token,
        server=values.scalars.get("server", "").rstrip("/"),
        cluster_init=on("cluster-init"),
        apiserver=not on("disable-apiserver"),
        controller_manager=not on("disable-controller-manager"),
        scheduler=not on("disable-scheduler"),
        agent=not on("disable-agent"),
        data_dir=Path(values.scalars.get("data-dir", "/var/lib/rancher/k3s")),
        https_port=_port(values, "https-listen-port", HTTPS_PORT),
        balancer_port=_port(values, "lb-server-port", BALANCER_PORT),
        tls_sans=tuple(values.lists.get("tls-san", [])),
        node_labels=tuple(values.lists.get("node-label", [])),
        node_taints=tuple(values.lists.get("node-taint", [])),
        kubeconfig=Path(values.scalars.get("write-kubeconfig", "/etc/rancher/k3s/k3s.yaml")),
        kubeconfig_mode=kubeconfig_mode,
        cluster_cidr=(values.lists.get("cluster-cidr") or ["10.42.0.0/16"])[0],
        service_cidr=(values.lists.get("service-cidr") or ["10.43.0.0/16"])[0],
        node_args=masked_args(as_arguments(values)),
        extra={name: tuple(texts) for name, texts in values.lists.items() if name.endswith("-arg")},
        api_timeout=float(api_timeout),
        order=order,
    )

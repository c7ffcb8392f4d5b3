"""The flags of `k3s server` and how a command line of them is read.

Only names and kinds live here; what a flag means is settings.py's business, files and environment are
config.py's. Names from the k3s source, release-1.34, pkg/cli/cmds/server.go and agent.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

BOOL = "bool"
STRING = "string"
LIST = "list"

_BOOLS = """
    cluster-init cluster-reset debug disable-agent disable-apiserver disable-cloud-controller
    disable-controller-manager disable-default-registry-endpoint disable-etcd disable-helm-controller
    disable-kube-proxy disable-network-policy disable-scheduler docker embedded-registry
    enable-pprof etcd-disable-snapshots etcd-expose-metrics etcd-s3 etcd-snapshot-compress
    flannel-external-ip flannel-ipv6-masq nonroot-devices node-name-from-cloud-provider-metadata
    prefer-bundled-bin protect-kernel-defaults rootless secrets-encryption selinux servicelb
    supervisor-metrics vpn-auth-disabled with-node-id write-kubeconfig-group-readable
    multus alsologtostderr kine-tls
"""
_STRINGS = """
    advertise-address advertise-port agent-token agent-token-file airgap-extra-registry bind-address
    cluster-domain cluster-reset-restore-path config container-runtime-endpoint data-dir
    datastore-cafile datastore-certfile datastore-endpoint datastore-keyfile default-local-storage-path
    default-runtime egress-selector-mode etcd-s3-bucket etcd-snapshot-dir etcd-snapshot-name
    etcd-snapshot-retention etcd-snapshot-schedule-cron flannel-backend flannel-conf flannel-cni-conf
    flannel-iface helm-job-image https-listen-port image-credential-provider-bin-dir
    image-credential-provider-config image-service-endpoint kine-server lb-server-port log node-name
    pause-image private-registry resolv-conf server service-node-port-range snapshotter
    system-default-registry token token-file v vmodule vpn-auth vpn-auth-file write-kubeconfig
    write-kubeconfig-group write-kubeconfig-mode secrets-encryption-provider
"""
_LISTS = """
    cluster-cidr cluster-dns disable etcd-arg kube-apiserver-arg kube-cloud-controller-manager-arg
    kube-controller-manager-arg kube-proxy-arg kube-scheduler-arg kubelet-arg node-external-dns
    node-external-ip node-internal-dns node-ip node-label node-taint service-cidr tls-san
    tls-san-security
"""

# Lists whose entries may hold commas (k3s turns the general separator off and splits the others itself).
_UNSPLIT = {"node-label", "node-taint"}

KINDS: dict[str, str] = {
    name: kind
    for kind, names in ((BOOL, _BOOLS), (STRING, _STRINGS), (LIST, _LISTS))
    for name in names.split()
}
ALIASES = {"c": "config", "d": "data-dir", "t": "token", "s": "server", "l": "log", "o": "write-kubeconfig"}

_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
_FALSE = {"0", "f", "F", "FALSE", "false", "False"}


class FlagError(ValueError):
    """A command line or a value k3s would refuse; the text is the one line to show."""


@dataclass
class Values:
    """What one source (command line, files, environment) says. Lists keep their order."""

    scalars: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)

    def put(self, name: str, value: str) -> None:
        """A scalar is replaced, a list grows: as a repeated flag does."""
        if KINDS[name] == LIST:
            parts = [value] if name in _UNSPLIT or name.endswith("-arg") else value.split(",")
            self.lists.setdefault(name, []).extend(part for part in parts if part)
        else:
            self.scalars[name] = value

    def over(self, lower: Values) -> Values:
        """These values where given, else the lower ones; a list replaces the lower list whole.

        k3s docs, "Configuration File": for repeatable arguments the command line overwrites the list.
        """
        return Values({**lower.scalars, **self.scalars}, {**lower.lists, **self.lists})


def truth(name: str, value: str) -> bool:
    """The boolean a flag's text stands for, by Go's rules."""
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise FlagError(f'invalid boolean value "{value}" for -{name}: parse error')


def parse(arguments: Sequence[str]) -> Values:
    """Read a command line; an unknown flag is an error, as in k3s."""
    values = Values()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            break
        if not argument.startswith("-") or argument == "-":
            raise FlagError(f"unexpected argument: {argument}")
        name, equals, value = argument.lstrip("-").partition("=")
        name = ALIASES.get(name, name)
        kind = KINDS.get(name)
        if kind is None:
            raise FlagError(f"flag provided but not defined: -{name}")
        if kind == BOOL:
            value = value if equals else "true"
            truth(name, value)
        elif not equals:
            if not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        values.put(name, value)
    return values

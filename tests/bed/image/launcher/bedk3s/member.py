"""This server's etcd member: founding, joining, restarting, and its configuration file.

The rules are k3s's (k3s source, release-1.34, pkg/etcd/etcd.go): a member that has data restarts with it,
whatever the flags say; else `server:` joins as a learner; else `cluster-init` founds a cluster. Promotion and
removal are the leader's duties, in duties.py.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence
from typing import Any

import yaml

from . import https, log
from .etcdclient import EtcdClient, Member, member_of
from .layout import Layout, write
from .settings import Settings

HEARTBEAT_MS = 500
ELECTION_MS = 5000
JOIN_PATH = "/v1-k3s/bed-join"


class Refused(Exception):
    """This server may not be a member; the text says why."""


def node_of(member_name: str) -> str:
    """The node a member belongs to: its name without the random end."""
    return member_name.rpartition("-")[0]


def plan_join(members: Sequence[Member], node_name: str, own_url: str) -> bool:
    """Whether the member must be added, or was by an earlier start that got no further.

    Refused when the node's name is a member already (k3s: "duplicate node name found").
    """
    for member in members:
        if own_url in member.peer_urls and not member.client_urls:
            return False
        if member.name and node_of(member.name) == node_name:
            raise Refused(
                "starting kubernetes: preparing server: start managed database: joining etcd cluster: "
                "duplicate node name found, please use a unique name for this node"
            )
    return True


class EtcdMember:
    """The member of one server, by its data directory."""

    def __init__(self, settings: Settings, layout: Layout, secret: str) -> None:
        self._settings = settings
        self._layout = layout
        self._secret = secret
        self._tombstone = layout.etcd / "tombstone"
        self.peer_url = f"https://{settings.node_ip}:2380"
        self.client_url = f"https://{settings.node_ip}:2379"

    @property
    def has_data(self) -> bool:
        return (self._layout.etcd / "member" / "wal").is_dir()

    def bury(self) -> None:
        """Note that the cluster removed this member, so that the next start joins anew (k3s: tombstone)."""
        write(self._tombstone, "")

    def name(self) -> str:
        """`<node>-<8 hex>`, made once and kept in db/etcd/name."""
        kept = self._layout.etcd / "name"
        if not kept.exists():
            write(kept, f"{self._settings.node_name}-{secrets.token_hex(4)}")
        return kept.read_text().strip()

    def prepare(self) -> None:
        """Write db/etcd/config for the start that is due; join first where needed. May raise Refused."""
        if self._tombstone.exists():
            log.info("etcd tombstone file has been detected, removing data dir to rejoin the cluster")
            shutil.rmtree(self._layout.etcd / "member", ignore_errors=True)
            (self._layout.etcd / "name").unlink(missing_ok=True)
            self._tombstone.unlink()
        if self.has_data:
            self._write([], "existing")
        elif self._settings.server:
            self._write(self._join(), "existing")
        elif self._settings.cluster_init:
            self._write([f"{self.name()}={self.peer_url}"], "new")
        else:
            raise Refused("this stand-in has embedded etcd only: give --cluster-init or --server")

    def _join(self) -> list[str]:
        """Become a learner by the peer `server:` names; the whole initial cluster, this member included."""
        tls = https.context(self._layout.tls / "server-ca.crt")
        headers = https.basic("server", self._secret)
        server = self._settings.server
        while True:
            try:
                listed = https.request("GET", f"{server}/db/info", tls=tls, headers=headers)
                members = [member_of(raw) for raw in listed.get("members", [])]
                if plan_join(members, self._settings.node_name, self.peer_url):
                    log.info(f"Adding member {self.name()}={self.peer_url} to etcd cluster as a learner")
                    body = {"peerURL": self.peer_url}
                    https.request("POST", f"{server}{JOIN_PATH}", tls=tls, headers=headers, body=body)
                break
            except https.Failure as failure:
                if failure.status in {401, 403}:
                    raise Refused(f"failed to join {server}: not authorized: the tokens differ") from failure
                # Also "too many learner members in cluster": one joins after the other.
                log.info(f"Waiting to join the etcd cluster: {failure}")
                time.sleep(1)
        others = [f"{m.name}={url}" for m in members if m.name for url in m.peer_urls if url != self.peer_url]
        return [*others, f"{self.name()}={self.peer_url}"]

    def _write(self, initial_cluster: list[str], state: str) -> None:
        tls = self._layout.tls / "etcd"
        address = self._settings.node_ip
        config: dict[str, Any] = {
            "name": self.name(),
            "data-dir": str(self._layout.etcd),
            "listen-client-urls": f"https://127.0.0.1:2379,https://{address}:2379",
            "listen-client-http-urls": "https://127.0.0.1:2382",
            "listen-metrics-urls": "http://127.0.0.1:2381",
            "listen-peer-urls": f"https://127.0.0.1:2380,https://{address}:2380",
            "advertise-client-urls": self.client_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(initial_cluster) or f"{self.name()}={self.peer_url}",
            "initial-cluster-state": state,
            "heartbeat-interval": HEARTBEAT_MS,
            "election-timeout": ELECTION_MS,
            "snapshot-count": 10000,
            "log-level": "warn",
            "log-outputs": ["stdout"],
            "client-transport-security": {
                "cert-file": str(tls / "server-client.crt"),
                "key-file": str(tls / "server-client.key"),
                "client-cert-auth": True,
                "trusted-ca-file": str(tls / "server-ca.crt"),
            },
            "peer-transport-security": {
                "cert-file": str(tls / "peer-server-client.crt"),
                "key-file": str(tls / "peer-server-client.key"),
                "client-cert-auth": True,
                "trusted-ca-file": str(tls / "peer-ca.crt"),
            },
        }
        for argument in self._settings.extra.get("etcd-arg", ()):
            key, _, value = argument.partition("=")
            config[key] = yaml.safe_load(value)
        write(self._layout.etcd / "config", yaml.safe_dump(config, sort_keys=False))

    def check(self, client: EtcdClient) -> str | None:
        """What keeps this member from being a voter of its cluster; None once it is one.

        A changed address is refused here for ever (k3s#2732); the words are k3s's.
        """
        try:
            members = client.members()
            if not any(self.peer_url in member.peer_urls for member in members):
                found = [f"{member.name}={','.join(member.peer_urls)}" for member in members]
                return (
                    "this server is a not a member of the etcd cluster. "
                    f"Found {found}, expect: {self.name()}={self.peer_url}"
                )
            if client.status().learner:
                return "this server has not yet been promoted from learner to voting member"
        except https.Failure as failure:
            return f"etcd is not ready: {failure}"
        return None

"""A client of the local etcd through its JSON gateway on loopback 2382.

k3s moves etcd's HTTP off the client port to 127.0.0.1:2382 (listen-client-http-urls). What the calls are
for is member.py's and duties.py's business.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from . import https
from .layout import Layout

URL = "https://127.0.0.1:2382"


@dataclass(frozen=True)
class Member:
    """One member of the etcd cluster; a member that never started has neither name nor client URLs."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    learner: bool

    def as_db_info(self) -> dict[str, Any]:
        """As k3s's /db/info shows it: Go's JSON of etcdserverpb.Member, empty fields left out."""
        shown: dict[str, Any] = {"ID": self.id, "name": self.name, "peerURLs": list(self.peer_urls)}
        shown["clientURLs"] = list(self.client_urls)
        shown["isLearner"] = self.learner
        return {key: value for key, value in shown.items() if value}


def member_of(raw: dict[str, Any]) -> Member:
    """A member from the gateway's or from /db/info's JSON."""
    return Member(
        int(raw.get("ID", 0)),
        raw.get("name", ""),
        tuple(raw.get("peerURLs", [])),
        tuple(raw.get("clientURLs", [])),
        bool(raw.get("isLearner", False)),
    )


@dataclass(frozen=True)
class Status:
    """The local member's view: its own id and its leader's (0 without one)."""

    member_id: int
    leader: int
    learner: bool


class EtcdClient:
    """Calls raise https.Failure."""

    def __init__(self, layout: Layout, url: str = URL) -> None:
        etcd = layout.tls / "etcd"
        self._tls = https.context(etcd / "server-ca.crt", etcd / "client")
        self._url = url

    def _call(self, path: str, body: dict[str, Any], timeout: float = 3.0) -> dict[str, Any]:
        answer = https.request("POST", f"{self._url}/v3/{path}", tls=self._tls, body=body, timeout=timeout)
        if not isinstance(answer, dict):
            raise https.Failure(f"etcd answered {path} with no object")
        return answer

    def members(self) -> list[Member]:
        """The members, agreed on by a quorum."""
        listed = self._call("cluster/member/list", {"linearizable": True}).get("members", [])
        return [member_of(raw) for raw in listed]

    def status(self) -> Status:
        answer = self._call("maintenance/status", {})
        header = answer.get("header", {})
        return Status(
            int(header.get("member_id", 0)),
            int(answer.get("leader", 0)),
            bool(answer.get("isLearner", False)),
        )

    def add_learner(self, peer_url: str) -> None:
        self._call("cluster/member/add", {"peerURLs": [peer_url], "isLearner": True})

    def promote(self, member_id: int) -> None:
        self._call("cluster/member/promote", {"ID": str(member_id)})

    def remove(self, member_id: int) -> None:
        self._call("cluster/member/remove", {"ID": str(member_id)})

    def get(self, key: str) -> str | None:
        """The value of a key, read with a quorum; None where it is not set."""
        answer = self._call("kv/range", {"key": base64.b64encode(key.encode()).decode()})
        found = answer.get("kvs", [])
        return base64.b64decode(found[0].get("value", "")).decode() if found else None

    def put(self, key: str, value: str) -> None:
        encoded = {"key": base64.b64encode(key.encode()).decode()}
        self._call("kv/put", {**encoded, "value": base64.b64encode(value.encode()).decode()})

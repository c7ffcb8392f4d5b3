"""What the cluster's duties do to Nodes and members, on objects as the API gives them."""

from __future__ import annotations

import datetime
from typing import Any

from bedk3s import duties, https
from bedk3s.election import Election
from bedk3s.etcdclient import Member

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)
VOTER = Member(7, "one-00000001", ("https://10.0.0.1:2380",), ("https://10.0.0.1:2379",), False)


def a_node(**metadata: Any) -> dict[str, Any]:
    annotations = {duties.NODE_NAME: "one-00000001", duties.NODE_ADDRESS: "10.0.0.1"}
    base = {"name": "one", "resourceVersion": "5", "annotations": annotations}
    return {"metadata": base | {"labels": {duties.ETCD_LABEL: "true"}, "finalizers": []} | metadata}


class Etcd:
    def __init__(self) -> None:
        self.listed = [VOTER]
        self.removed: list[int] = []
        self.put_values: list[str] = []

    def members(self) -> list[Member]:
        return self.listed

    def remove(self, member_id: int) -> None:
        self.removed.append(member_id)

    def put(self, _key: str, value: str) -> None:
        self.put_values.append(value)


class API:
    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes = list(nodes)
        self.patches: list[tuple[str, Any]] = []
        self.deleted: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def find(self, path: str) -> dict[str, Any]:
        return {"path": path}

    def delete(self, path: str) -> None:
        self.deleted.append(path)

    def patch(self, path: str, body: Any, *_: str) -> None:
        self.patches.append((path, body))


def test_a_deleted_node_loses_its_member_its_secret_and_then_its_finalizer() -> None:
    api, etcd = API(a_node(deletionTimestamp="now", finalizers=[duties.FINALIZER])), Etcd()
    duties.care_for_members(api, etcd)  # type: ignore[arg-type]
    assert etcd.removed == [7]
    assert api.deleted == ["/api/v1/namespaces/kube-system/secrets/one.node-password.k3s"]
    assert api.patches == [("/api/v1/nodes/one", {"metadata": {"finalizers": None, "resourceVersion": "5"}})]


def test_the_annotation_remove_does_it_too_and_is_taken_off() -> None:
    node = a_node(finalizers=[duties.FINALIZER])
    node["metadata"]["annotations"][duties.REMOVE] = "true"
    api, etcd = API(node), Etcd()
    duties.care_for_members(api, etcd)  # type: ignore[arg-type]
    assert etcd.removed == [7]
    assert api.patches[0][1]["metadata"]["annotations"][duties.REMOVE] is None


def test_a_member_of_another_address_is_left_alone() -> None:
    node = a_node(deletionTimestamp="now", finalizers=[duties.FINALIZER])
    node["metadata"]["annotations"][duties.NODE_ADDRESS] = "10.0.0.9"
    etcd = Etcd()
    duties.care_for_members(API(node), etcd)  # type: ignore[arg-type]
    assert etcd.removed == []


def test_an_etcd_node_gets_the_finalizer_by_which_its_deletion_waits() -> None:
    api = API(a_node())
    duties.care_for_members(api, Etcd())  # type: ignore[arg-type]
    assert api.patches[0][1]["metadata"]["finalizers"] == [duties.FINALIZER]


def condition(node: dict[str, Any], *members: Member, after: float = 0) -> dict[str, Any] | None:
    return duties.voter_condition(node, members, NOW + datetime.timedelta(seconds=after))


def test_the_reasons_of_the_condition() -> None:
    learner = Member(7, VOTER.name, VOTER.peer_urls, VOTER.client_urls, True)
    for members, status, reason in (
        ([VOTER], "True", "MemberNotLearner"),
        ([learner], "False", "MemberIsLearner"),
        ([], "False", "NotAMember"),
    ):
        made = condition(a_node(), *members)
        assert made is not None
        assert (made["status"], made["reason"]) == (status, reason)


def test_a_right_condition_is_refreshed_every_five_minutes_and_a_wrong_one_at_once() -> None:
    node = a_node()
    first = condition(node, VOTER)
    node["status"] = {"conditions": [first]}
    assert condition(node, VOTER, after=299) is None
    again = condition(node, VOTER, after=301)
    assert again is not None and first is not None
    assert again["lastTransitionTime"] == first["lastTransitionTime"] != again["lastHeartbeatTime"]
    changed = condition(node, after=10)
    assert changed is not None and changed["status"] == "False"


def test_the_list_is_written_when_it_changes_and_never_empty(monkeypatch) -> None:
    etcd, lists = Etcd(), iter([["a:1"], ["a:1"], [], ["b:1"]])
    monkeypatch.setattr(duties, "endpoints", lambda _api: next(lists))
    last: list[str] = []
    for _ in range(4):
        last = duties.write_addresses(None, etcd, last)  # type: ignore[arg-type]
    assert etcd.put_values == ['["a:1"]', '["b:1"]']


class Leases:
    """One Lease as the API keeps it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.down = False

    def find(self, _path: str) -> dict[str, Any] | None:
        if self.down:
            raise https.Failure("down")
        return None if self.lease is None else {**self.lease, "spec": dict(self.lease["spec"])}

    def post(self, _path: str, body: dict[str, Any]) -> None:
        self.lease = body

    put = post


def candidate(leases: Leases, name: str, clock: list[float]) -> Election:
    return Election(leases, "x", name, duration=45, renew_deadline=30, clock=lambda: clock[0])  # type: ignore[arg-type]


def test_a_lease_is_not_released_on_stop_and_passes_on_after_its_duration_unrenewed() -> None:
    leases, clock = Leases(), [0.0]
    first, second = candidate(leases, "a", clock), candidate(leases, "b", clock)
    first.attempt()
    second.attempt()
    assert first.held and not second.held
    clock[0] = 44
    second.attempt()
    assert not second.held
    clock[0] = 46
    second.attempt()
    assert second.held
    assert leases.lease is not None and leases.lease["spec"]["leaseTransitions"] == 1


def test_the_same_server_takes_its_own_lease_up_at_once_after_a_restart() -> None:
    leases, clock = Leases(), [0.0]
    candidate(leases, "a", clock).attempt()
    restarted = candidate(leases, "a", clock)
    restarted.attempt()
    assert restarted.held


def test_a_holder_that_cannot_renew_has_lost_after_the_deadline_and_a_candidate_never() -> None:
    leases, clock = Leases(), [0.0]
    holder, other = candidate(leases, "a", clock), candidate(leases, "b", clock)
    holder.attempt()
    leases.down = True
    clock[0] = 29
    assert holder.attempt()
    clock[0] = 31
    assert not holder.attempt()
    assert other.attempt()

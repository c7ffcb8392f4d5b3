"""Holding a Lease by client-go's rules: expiry is judged by an unchanged record and the local clock.

What is done while the Lease is held is the caller's business. Like k3s, nothing releases a Lease on stop.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

from . import https
from .kubeapi import KubeAPI


def micro_time() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election:
    """One candidate for one Lease of kube-system; times in seconds."""

    def __init__(
        self,
        api: KubeAPI,
        name: str,
        identity: str,
        *,
        duration: int,
        renew_deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._name = name
        self._identity = identity
        self._duration = duration
        self._deadline = renew_deadline
        self._clock = clock
        self._seen: Any = None
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self.held = False

    def attempt(self) -> bool:
        """Take or renew the Lease if that may be. False once a held Lease is lost, else True."""
        try:
            renewed = self._attempt()
        except https.Failure:
            renewed = False
        now = self._clock()
        if renewed:
            self.held = True
            self._renewed_at = now
        elif self.held and now - self._renewed_at > self._deadline:
            self.held = False
            return False
        return True

    def _attempt(self) -> bool:
        collection = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        now = micro_time()
        lease = self._api.find(f"{collection}/{self._name}")
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": self._duration, "renewTime": now}
        if lease is None:
            kinds = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            spec |= {"acquireTime": now, "leaseTransitions": 0}
            self._api.post(collection, {**kinds, "metadata": {"name": self._name}, "spec": spec})
            return True
        old = lease.get("spec", {})
        if old != self._seen:
            self._seen, self._seen_at = old, self._clock()
        if old.get("holderIdentity") != self._identity:
            expires = self._seen_at + old.get("leaseDurationSeconds", self._duration)
            if old.get("holderIdentity") and self._clock() < expires:
                return False
            spec |= {"acquireTime": now, "leaseTransitions": old.get("leaseTransitions", 0) + 1}
        lease["spec"] = {**old, **spec}
        self._api.put(f"{collection}/{self._name}", lease)
        return True

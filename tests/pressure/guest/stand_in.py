# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands for k3s and the other servers in the small machine: the ports a k3s shows on its loopback, and the APIs
of two peers. They keep their memory, as if they were elsewhere. What a real k3s takes is a load of its own (load.py).

The certificates are made on the way: nothing of them is kept.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from ansible_collections.exadev.k3s_regrade.tests.bench import stub_cluster
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority, StubApi
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_local_k3s import LocalStub

FOLDER = Path("/run/k3s")
PODS = 6


def main() -> None:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    authority = Authority()
    authority.kubeconfig(FOLDER / "kubeconfig")
    record = FOLDER / "record"
    k3s = LocalStub(FOLDER, authority.server(FOLDER), lambda: record.read_text().strip())
    k3s.api_port, k3s.moved, k3s.metrics_port, k3s.balancer_port = 6443, 16443, 2381, 6444
    k3s.members = [
        {
            "ID": stub_cluster.MEMBER_IDS[name],
            "name": stub_cluster.member_name(name),
            "peerURLs": [f"https://{address}:2380"],
            "clientURLs": [f"https://{address}:2379"],
        }
        for name, address in stub_cluster.SERVERS.items()
    ]
    k3s.start()
    stub_cluster.PODS = PODS
    cluster = stub_cluster.Cluster(k3s)  # type: ignore[arg-type]  # of it only the boots are asked
    kept = [
        StubApi(authority.server(FOLDER, address), cluster.answer, 6443, host=address)
        for address in stub_cluster.PEERS.values()
    ]
    ctypes.CDLL(None).mlockall(3)
    sys.stdout.write(f"{len(kept)} peers answer\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()

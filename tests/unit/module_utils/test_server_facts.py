# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows of its server: the kernel's tables, and other servers' APIs over real TLS."""

from __future__ import annotations

import http.server
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils import server_facts

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.168.1.0/24 2 0 2
        |-- 192.168.1.0
           /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 192.168.1.11
        /32 host LOCAL
     |-- 192.168.1.100
        /32 host LOCAL
     |-- 192.168.1.255
        /32 link BROADCAST
     |-- 169.254.7.7
        /32 host LOCAL
"""
IF_INET6 = """00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000dea632fffe010203 02 40 20 80     eth0
fd7a115ca1e000000000000000000011 05 80 00 80 tailscale0
garbled
"""


def test_addresses_are_those_a_peer_may_call() -> None:
    assert server_facts.local_addresses(FIB_TRIE, IF_INET6) == [
        "192.168.1.100",
        "192.168.1.11",
        "fd7a:115c:a1e0::11",
    ]
    assert server_facts.local_addresses("", "") == []


def test_the_addresses_of_this_process_are_read() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        own = probe.getsockname()[0]
    assert own in server_facts.of_process(1)["addresses"]


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({}, []),
        ({"/k3s.slice/d.scope/memory.max": "max\n", "/k3s.slice/memory.max": "max\n"}, []),
        ({"/k3s.slice/d.scope/memory.max": "2147483648\n"}, [("/k3s.slice/d.scope", 2147483648)]),
        (
            {"/k3s.slice/memory.high": "1073741824\n", "/k3s.slice/memory.max": "2147483648\n"},
            [("/k3s.slice", 1073741824)],
        ),
    ],
)
def test_a_memory_limit_is_found_wherever_it_is_set(
    files: Dict[str, str], limits: List[Tuple[str, int]]
) -> None:
    def read(path: str) -> Tuple[str, str]:
        return files.get(path[len("/sys/fs/cgroup") :], ""), ""

    cgroup = server_facts.cgroup_of("12:memory:/docker/0a1b\n0::/k3s.slice/d.scope\n")
    found = [(limit["cgroup"], limit["bytes"]) for limit in server_facts.memory_limits(cgroup, read)]
    assert found == limits
    assert server_facts.memory_limits(server_facts.cgroup_of("12:memory:/docker/0a1b\n"), read) == []


def test_the_pressure_is_the_files_text_or_why_not(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    assert server_facts.pressure(str(file)) == {
        "pressure": "",
        "pressure_error": f"{file}: No such file or directory",
    }
    file.write_text("some total=1\n")
    assert server_facts.pressure(str(file)) == {"pressure": "some total=1\n", "pressure_error": ""}
    assert server_facts.memory_total("MemTotal:        4000 kB\nMemFree: 1 kB\n") == 4000 << 10
    assert server_facts.memory_total("") == 0


def test_units_of_regrading_are_found_whoever_made_them(tmp_path: Path) -> None:
    for name in ("k3s.service", "regrade.service", "old-regrade.service", "regrade.service.d", "regrade.timer"):
        (tmp_path / name).touch()
    assert server_facts.regrade_units(str(tmp_path)) == ["old-regrade.service", "regrade.service"]
    assert server_facts.regrade_units(str(tmp_path / "none")) == []


# --- other servers' APIs ---


class Api:
    """An API on this machine whose certificate is for 127.0.0.1 and ::1, and for no name."""

    def __init__(self, folder: Path) -> None:
        self.status = 401
        self.authority = (folder / "ca.pem").read_text()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert "Authorization" not in self.headers
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(b"said")

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "api.pem", folder / "api.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.handle_error = lambda *_words: None  # type: ignore[method-assign]  # callers who trust it not
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reach(self, url: str, authority: str = "", timeout: float = 5) -> Tuple[str, str]:
        (found,) = server_facts.reach([url.format(port=self.port)], authority or self.authority, timeout)
        return found["problem"], found["words"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("openssl"), "openssl makes the certificates: apt-get install openssl"
    made = tmp_path_factory.mktemp("certificates")
    (made / "san").write_text("subjectAltName=IP:127.0.0.1")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]
    for command in (
        [*new, "/CN=ca", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"],
        [*new, "/CN=other", "-x509", "-keyout", "other.key", "-out", "other.pem", "-days", "2"],
        [*new, "/CN=k3s", "-keyout", "api.key", "-out", "api.csr"],
        ["openssl", "x509", "-req", "-in", "api.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-days", "2", "-extfile", "san", "-out", "api.pem"],
    ):  # fmt: skip
        subprocess.run(command, cwd=made, check=True, capture_output=True)
    return made


@pytest.fixture
def api(folder: Path) -> Iterator[Api]:
    made = Api(folder)
    yield made
    made.server.shutdown()


@pytest.mark.parametrize("status", [200, 401, 403])
def test_an_api_that_serves_has_no_problem(api: Api, status: int) -> None:
    api.status = status
    assert api.reach("https://127.0.0.1:{port}") == ("", "")


@pytest.mark.parametrize("status", [404, 500, 503])
def test_one_that_serves_something_else_is_told(api: Api, status: int) -> None:
    api.status = status
    assert api.reach("https://127.0.0.1:{port}") == ("answer", f"{status} said")


def test_an_address_that_is_not_in_the_certificate(api: Api) -> None:
    problem, words = api.reach("https://localhost:{port}")
    assert problem == "certificate" and "localhost" in words


def test_another_authority_and_none(api: Api, folder: Path) -> None:
    assert api.reach("https://127.0.0.1:{port}", (folder / "other.pem").read_text())[0] == "authority"
    assert api.reach("https://127.0.0.1:{port}", "no PEM") == (
        "authority",
        "the cluster names no certificate authority",
    )


def test_nobody_listens_nobody_answers_nobody_has_that_name(api: Api) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert api.reach(f"https://127.0.0.1:{port}") == ("network", "Connection refused")
        silent.listen()
        assert api.reach(f"https://127.0.0.1:{port}", timeout=0.3)[0] == "network"
    assert api.reach("https://no-such-host.invalid:6443")[0] == "name"
    assert api.reach("https://127.0.0.1:notaport")[0] == "name"


def test_every_url_is_called_and_its_addresses_told(api: Api) -> None:
    urls = [f"https://127.0.0.1:{api.port}", f"https://localhost:{api.port}"]
    found = server_facts.reach(urls, api.authority, 5)
    assert [entry["url"] for entry in found] == urls
    assert all("127.0.0.1" in entry["addresses"] for entry in found)
    assert server_facts.reach([], "", 5) == []


def test_a_hybrid_hierarchy_counts_as_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not server_facts.version_2(str(tmp_path))
    (tmp_path / "cgroup.controllers").touch()
    assert server_facts.version_2(str(tmp_path))
    monkeypatch.setattr(server_facts, "read_text", lambda path: ("4:memory:/docker/0a1b\n0::/d.scope\n", ""))
    for version_2, cgroup in ((True, "/d.scope"), (False, "")):
        monkeypatch.setattr(server_facts, "version_2", lambda found=version_2: found)
        assert server_facts.of_process(1)["cgroup"] == cgroup

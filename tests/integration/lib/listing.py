# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything on a host that a run of the role could leave a trace in, as text to compare.

Reads only. What k3s, the engine and the fixtures write by themselves is left out.
"""

from __future__ import annotations

from bed import Bed, Server

FOLDERS = (
    "/etc",
    "/srv",
    "/root",
    "/home",
    "/opt",
    "/usr/local",
    "/var/lib",
    "/var/spool",
    "/run/lock",
    "/tmp",
)
# Written by the engine and k3s, by the pressure's generator, and by Ansible itself in whichever run copies first.
LIVELY = ("/var/lib/docker", "/var/lib/containerd", "/srv/fixture", "/etc/resolv.conf", "/root/.ansible")


def of_host(server: Server) -> list[str]:
    """A line for each file (path, owner, mode, size, time, target), container, volume, network and image."""
    skipped = " -o ".join(f"-path {path}" for path in LIVELY)
    files = server.sh(
        f"find {' '.join(FOLDERS)} \\( {skipped} \\) -prune -o ! -type d "
        "-printf '%p %u %g %m %s %T@ %l\\n' -o -type d -printf '%p/ %u %g %m\\n' 2>/dev/null",
        check=False,
    ).stdout.splitlines()
    containers = server.docker("ps", "--all", "--quiet", "--no-trunc").stdout.split()
    listed = [f"file {line}" for line in files]
    for kind, words in (
        (
            "container",
            ["inspect", "--format={{.Name}} {{.Id}} {{.Created}} {{.State.StartedAt}}", *containers],
        ),
        ("image", ["images", "--no-trunc", "--format={{.ID}} {{.Repository}}:{{.Tag}}"]),
        ("volume", ["volume", "ls", "--format={{.Name}}"]),
        ("network", ["network", "ls", "--no-trunc", "--format={{.ID}} {{.Name}}"]),
    ):
        listed += [f"{kind} {line}" for line in server.docker(*words).stdout.splitlines()]
    return sorted(listed)


def of_bed(bed: Bed) -> dict[str, list[str]]:
    return {server.name: of_host(server) for server in bed.servers}


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """What came (+), went or changed (-), by host."""
    return [
        f"{host}: {sign} {line}"
        for host in before
        for sign, lines, others in (("-", before[host], after[host]), ("+", after[host], before[host]))
        for line in sorted(set(lines) - set(others))
    ]

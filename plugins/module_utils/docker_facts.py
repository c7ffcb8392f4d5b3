# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What Docker shows of a k3s server in a container, before regrading is turned on, with what may be secret left out.

Runs on the target, with the standard library and the `docker` command, and only reads. A container's arguments and
environment may hold the cluster's token: what is known to be harmless is let through by name, all else stays here.
Nothing is judged here (`plugin_utils` does).
"""

from __future__ import annotations

import functools
import os
import stat
import subprocess
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import (
    mapping,
    mappings,
    number,
    parsed,
    text,
    texts,
)

SECONDS = 30
# Of k3s's arguments and environment: where its configuration and data lie, and nothing else.
FLAGS = ("--config", "-c", "--data-dir", "-d")
VARIABLES = ("K3S_CONFIG_FILE", "K3S_DATA_DIR")
PROJECT_LABEL = "com.docker.compose.project"
ROLES = ("server", "agent")


class Said(NamedTuple):
    """Of a command: its exit code (-1 where it could not be run), and its two outputs."""

    code: int
    output: str
    errors: str


def _run(socket_path: str, *words: str) -> Said:
    """The docker command, for the engine at that socket."""
    try:
        done = subprocess.run(
            ["docker", *words],
            env={**os.environ, "DOCKER_HOST": f"unix://{socket_path}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return Said(-1, "", "missing")
    except subprocess.TimeoutExpired:
        return Said(-1, "", f"no answer within {SECONDS} s")
    except OSError as error:
        return Said(-1, "", error.strerror or str(error))
    return Said(
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )


def look(container: str, socket_path: str) -> Dict[str, Any]:
    """What of Docker and of that container the placement rests on."""
    run = functools.partial(_run, socket_path)
    version = run("version", "--format={{json .}}")
    found: Dict[str, Any] = {
        "container": container,
        "socket": socket_path,
        "socket_there": _is_socket(socket_path),
        "error": "",
        **engine(version),
        "security": [],
        "compose": "",
        "inspect": None,
        "pid": 0,
        "others": [],
    }
    if found["engine_error"] or found["podman"]:
        return found
    found["security"] = list(texts(_document(run("info", "--format={{json .SecurityOptions}}").output)))
    found["compose"] = run("compose", "version", "--short").output.strip()
    inspected = run("inspect", "--type=container", container)
    documents = mappings(_document(inspected.output))
    if inspected.code == 0 and documents:
        found["inspect"] = harmless(documents[0])
        found["pid"] = number(mapping(documents[0], "State").get("Pid")) or 0
    else:
        found["error"] = one_line(inspected.errors) or "no answer"
    found["others"] = regrade_services(run)
    return found


def of_server(found: Dict[str, Any]) -> Dict[str, Any]:
    """Of what `look` found, what is told of any server whatever runs it."""
    inspect = mapping(found.get("inspect"))
    return {
        "kind": "container",
        "error": text(found.get("error")),
        "role": role_of(texts(inspect.get("Args"))),
        "running": mapping(inspect, "State").get("Running") is True,
        "memory_limit": mapping(inspect, "HostConfig").get("Memory", 0),
    }


def engine(version: Said) -> Dict[str, Any]:
    """Of `docker version`: what answers, how old it is, and why nothing does."""
    document = mapping(_document(version.output))
    server, client = mapping(document, "Server"), mapping(document, "Client")
    names = [text(part.get("Name")) for part in mappings(server.get("Components"))]
    # Podman's engine names itself; its stand-in for the docker command says so unless told to be quiet, and has a
    # field that Docker's has not.
    podman = "podman" in " ".join([*names, version.errors]).lower() or "OsArch" in client
    error = ""
    if not podman and (version.code != 0 or not server):
        error = one_line(version.errors) or "no answer"
    return {
        "engine": text(server.get("Version")),
        "api": text(server.get("ApiVersion")),
        "podman": podman,
        "engine_error": error,
    }


def harmless(inspect: Dict[str, Any]) -> Dict[str, Any]:
    """Of `docker inspect`, in its own shape, only what the placement rests on and what can hold no secret."""
    host, state = mapping(inspect, "HostConfig"), mapping(inspect, "State")
    networks = mapping(inspect, "NetworkSettings", "Networks")
    return {
        "Args": harmless_words(list(texts(inspect.get("Args")))),
        "Config": {
            "Image": text(mapping(inspect, "Config").get("Image")),
            "Labels": {PROJECT_LABEL: text(mapping(inspect, "Config", "Labels").get(PROJECT_LABEL))},
            "Env": [
                pair
                for pair in texts(mapping(inspect, "Config").get("Env"))
                if pair.partition("=")[0] in VARIABLES
            ],
        },
        "State": {"Running": state.get("Running") is True, "Status": text(state.get("Status"))},
        "HostConfig": {
            "NetworkMode": text(host.get("NetworkMode")),
            "Memory": number(host.get("Memory")) or 0,
            "RestartPolicy": {"Name": text(mapping(host, "RestartPolicy").get("Name"))},
            "LogConfig": {"Type": text(mapping(host, "LogConfig").get("Type"))},
            "Tmpfs": dict.fromkeys(mapping(host, "Tmpfs"), ""),
        },
        "Mounts": [
            {key: mount[key] for key in ("Type", "Name", "Source", "Destination", "RW") if key in mount}
            for mount in mappings(inspect.get("Mounts"))
        ],
        "NetworkSettings": {
            "Networks": {
                name: {
                    "IPAMConfig": {
                        key: value
                        for key, value in mapping(networks, name, "IPAMConfig").items()
                        if key in ("IPv4Address", "IPv6Address")
                    },
                    **{
                        key: mapping(networks, name).get(key)
                        for key in ("IPAddress", "IPPrefixLen", "GlobalIPv6Address", "GlobalIPv6PrefixLen")
                    },
                }
                for name in networks
            }
        },
    }


def harmless_words(words: Sequence[str]) -> List[str]:
    """Of a command line: k3s's role, and the flags of FLAGS with their values."""
    kept: List[str] = []
    value_next = False
    role = role_of(words)
    for word in words:
        if value_next or word.partition("=")[0] in FLAGS:
            value_next = not value_next and "=" not in word
            kept.append(word)
        elif word == role:
            kept.append(word)
            role = ""
    return kept


def role_of(words: Sequence[str]) -> str:
    """k3s's subcommand: the first word that is one and no flag's value."""
    before = ["", *words]
    roles = [word for flag, word in zip(before, words) if word in ROLES and flag not in FLAGS]
    return roles[0] if roles else ""


def regrade_services(run: Callable[..., Said]) -> List[Dict[str, str]]:
    """Every container of a Compose service `regrade`, whoever made it."""
    said = run(
        "ps",
        "--all",
        "--filter=label=com.docker.compose.service=regrade",
        f'--format={{{{.Names}}}}\t{{{{.Label "{PROJECT_LABEL}"}}}}',
    )
    lines = [line.partition("\t") for line in said.output.splitlines() if line]
    return [{"name": name, "project": project} for name, _tab, project in lines]


def services(socket_path: str) -> List[Dict[str, str]]:
    """The same on a host whose k3s is no container; none where no Docker answers."""
    return regrade_services(functools.partial(_run, socket_path))


def one_line(said: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _document(said: str) -> Any:
    try:
        return parsed(said)
    except ValueError:
        return None


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False

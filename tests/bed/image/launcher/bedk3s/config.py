"""Configuration files, drop-ins and environment, merged by k3s's rules.

Command line over drop-ins over config.yaml over environment. Among files the last wins, `key+` appends
(measured, and k3s source, release-1.34, pkg/configfilearg/parser.go). Unknown keys in files are ignored in
silence. What the merged values mean is settings.py's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from . import flags

DEFAULT_FILE = Path("/etc/rancher/k3s/config.yaml")

ENVIRONMENT = {
    "K3S_TOKEN": "token",
    "K3S_TOKEN_FILE": "token-file",
    "K3S_URL": "server",
    "K3S_NODE_NAME": "node-name",
    "K3S_DATA_DIR": "data-dir",
    "K3S_KUBECONFIG_OUTPUT": "write-kubeconfig",
    "K3S_KUBECONFIG_MODE": "write-kubeconfig-mode",
    "K3S_AGENT_TOKEN": "agent-token",
    "K3S_CLUSTER_INIT": "cluster-init",
    "K3S_RESOLV_CONF": "resolv-conf",
    "K3S_SELINUX": "selinux",
    "K3S_DEBUG": "debug",
    "K3S_LB_SERVER_PORT": "lb-server-port",
}


def _texts(value: Any) -> list[str]:
    """A YAML value as the texts of so many flags."""
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [] if value is None else [str(value)]


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise flags.FlagError(f"failed to read {path}: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise flags.FlagError(f"failed to read {path}: a mapping was expected")
    return {str(key): value for key, value in loaded.items()}


def files(config: Path) -> list[Path]:
    """The file and the drop-ins of the folder beside it, in the order they are merged."""
    folder = config.with_name(config.name + ".d")
    drop_ins = sorted(
        path for path in folder.glob("*") if path.suffix in {".yaml", ".yml"} and path.is_file()
    )
    return [config, *drop_ins]


def from_files(config: Path) -> flags.Values:
    """What config.yaml and its drop-ins say together."""
    merged: dict[str, list[str]] = {}
    for path in files(config):
        for key, value in _load(path).items():
            name = key.rstrip("+")
            merged[name] = [*(merged.get(name, []) if key.endswith("+") else []), *_texts(value)]
    values = flags.Values()
    for key, texts in merged.items():
        name = flags.ALIASES.get(key, key)
        if name not in flags.KINDS:
            continue
        for text in texts:
            if flags.KINDS[name] == flags.BOOL:
                flags.truth(name, text)
            values.put(name, text)
    return values


def from_environment(environment: Mapping[str, str]) -> flags.Values:
    """What the K3S_ variables say; an empty one says nothing."""
    values = flags.Values()
    for variable, name in ENVIRONMENT.items():
        if environment.get(variable):
            values.put(name, environment[variable])
    return values


def merge(arguments: Sequence[str], environment: Mapping[str, str]) -> flags.Values:
    """All sources of one start, the stronger over the weaker."""
    command_line = flags.parse(arguments)
    where = command_line.scalars.get("config") or environment.get("K3S_CONFIG_FILE") or str(DEFAULT_FILE)
    return command_line.over(from_files(Path(where))).over(from_environment(environment))

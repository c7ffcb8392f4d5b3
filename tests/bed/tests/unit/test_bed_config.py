"""Flags, files and environment are merged by k3s's rules (measured, and its source, pkg/configfilearg)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedk3s import config, flags, settings


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "config.yaml", "node-name: from-file\n")


def merged(file: Path, *arguments: str, **environment: str) -> flags.Values:
    return config.merge(arguments, {"K3S_CONFIG_FILE": str(file), **environment})


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(flags.FlagError, match="flag provided but not defined: -no-such-flag"):
        flags.parse(["--no-such-flag"])


def test_an_unknown_key_in_a_file_is_ignored_in_silence(file: Path) -> None:
    write(file, "disable-apisever: true\nnode-name: a\n")
    values = merged(file)
    assert values.scalars == {"node-name": "a"}
    assert settings.from_values(values, {}, "host").apiserver, "a misspelt key must leave the server at full"


def test_drop_ins_win_over_the_file_in_name_order(file: Path) -> None:
    write(file.with_name("config.yaml.d") / "20-b.yaml", "node-name: second\n")
    write(file.with_name("config.yaml.d") / "10-a.yaml", "node-name: first\ndisable-apiserver: true\n")
    values = merged(file)
    assert values.scalars == {"node-name": "second", "disable-apiserver": "true"}


def test_only_yaml_files_are_drop_ins(file: Path) -> None:
    write(file.with_name("config.yaml.d") / "10-a.yaml.bak", "node-name: other\n")
    assert merged(file).scalars["node-name"] == "from-file"


def test_a_drop_in_through_a_symlink_counts(file: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere" / "level.yaml", "disable-apiserver: true\n")
    folder = file.with_name("config.yaml.d")
    folder.mkdir()
    (folder / "99-level.yaml").symlink_to(target)
    assert merged(file).scalars["disable-apiserver"] == "true"


def test_a_key_with_plus_appends_and_one_without_replaces(file: Path) -> None:
    write(file, "tls-san: [one]\nnode-label: [a=1]\n")
    write(file.with_name("config.yaml.d") / "10.yaml", "tls-san+: [two]\nnode-label: [b=2]\n")
    assert merged(file).lists == {"tls-san": ["one", "two"], "node-label": ["b=2"]}


def test_the_order_is_command_line_drop_ins_file_environment(file: Path) -> None:
    write(file, "node-name: file\ntoken: file\nserver: https://file\n")
    write(file.with_name("config.yaml.d") / "10.yaml", "node-name: drop-in\ntoken: drop-in\n")
    values = merged(
        file,
        "--node-name",
        "line",
        K3S_NODE_NAME="env",
        K3S_TOKEN="env",
        K3S_URL="https://env",
        K3S_DATA_DIR="/env",
    )
    assert values.scalars == {
        "node-name": "line",
        "token": "drop-in",
        "server": "https://file",
        "data-dir": "/env",
    }


def test_a_list_on_the_command_line_replaces_the_files_list(file: Path) -> None:
    write(file, "tls-san: [one, two]\n")
    assert merged(file, "--tls-san", "three").lists["tls-san"] == ["three"]


def test_a_repeated_flag_collects_and_commas_split_addresses_but_not_arguments() -> None:
    values = flags.parse(["--tls-san", "a,b", "--tls-san=c", "--kubelet-arg", "eviction-hard=x,y"])
    assert values.lists == {"tls-san": ["a", "b", "c"], "kubelet-arg": ["eviction-hard=x,y"]}


def test_the_config_flag_and_variable_move_the_drop_ins_too(file: Path, tmp_path: Path) -> None:
    moved = write(tmp_path / "data" / "config.yaml", "")
    write(moved.with_name("config.yaml.d") / "10.yaml", "disable-agent: true\n")
    assert merged(moved).scalars == {"disable-agent": "true"}
    assert merged(file, "--config", str(moved)).scalars["disable-agent"] == "true"


def test_a_missing_file_is_no_error_and_a_broken_one_is(tmp_path: Path) -> None:
    assert merged(tmp_path / "none.yaml").scalars == {}
    with pytest.raises(flags.FlagError, match="failed to read"):
        merged(write(tmp_path / "bad.yaml", "a: [\n"))


@pytest.mark.parametrize("text", ["true", "True", "1", "t"])
def test_the_level_flags_take_gos_booleans(text: str) -> None:
    values = flags.parse([f"--disable-apiserver={text}", "--disable-agent"])
    made = settings.from_values(values, {}, "host")
    assert not made.apiserver and not made.agent and made.scheduler


def test_a_bad_boolean_is_an_error() -> None:
    with pytest.raises(flags.FlagError, match="invalid boolean value"):
        flags.parse(["--disable-apiserver=yes"])


def test_node_args_hide_the_token() -> None:
    shown = settings.masked_args(["--token", "secret", "--node-name", "a", "--agent-token=secret"])
    assert shown == '["server","--token","********","--node-name","a","--agent-token","********"]'


def test_the_api_server_listens_one_above_the_public_port() -> None:
    made = settings.from_values(flags.parse(["--https-listen-port", "16443"]), {}, "host")
    assert (made.https_port, made.api_port, made.balancer_port) == (16443, 16444, 6444)


def test_the_launchers_own_switches_come_from_the_environment_and_are_checked() -> None:
    made = settings.from_values(flags.Values(), {"BED_API_TIMEOUT_SECONDS": "7"}, "host")
    assert made.api_timeout == 7
    assert settings.from_values(flags.Values(), {}, "host").api_timeout == 900
    with pytest.raises(flags.FlagError, match="BED_APISERVERS_ORDER"):
        settings.from_values(flags.Values(), {"BED_APISERVERS_ORDER": "mine"}, "host")

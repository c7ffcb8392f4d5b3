# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings: the table of the design, its bounds, and every relation refused with both values and why."""

from __future__ import annotations

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import pairs
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import SettingsWrong
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import (
    KEYS,
    Settings,
    check_memory,
    child_seconds,
    load,
    require_cluster,
)
from hypothesis import given
from hypothesis import strategies as st

GIB = 1 << 30


def made(**changes: str) -> Settings:
    return load("", {"NODE_NAME": "pi1", **changes})


def test_the_defaults_are_those_of_the_design_and_agree_with_each_other() -> None:
    s = made()
    assert (s.sample_seconds, s.pressure_window_seconds, s.pressure_threshold, s.pressure_ceiling) == (
        5,
        60,
        0.2,
        0.5,
    )
    assert s.memavailable_floor.of(100 * GIB) == 8 * GIB
    assert (s.sustain_down_seconds, s.sustain_up_seconds) == (60, 300)
    assert (s.cooldown_down_seconds, s.cooldown_up_seconds) == (120, 600)
    assert (s.lease_seconds, s.etcd_only_https_port, s.call_timeout_seconds) == (60, 16443, 5)
    assert (s.drain_timeout_seconds, s.restart_timeout_seconds, s.boot_timeout_seconds) == (120, 60, 180)
    assert (s.trap_wait_seconds, s.step_up, s.drain_remaining, s.drain_pods_without_owner) == (
        120,
        "manual",
        "end",
        "refuse",
    )
    assert s.headroom("etcd-only") is not None
    assert s.headroom("full") is None
    check_memory(s, 4 * GIB)


def test_the_node_name_must_be_set_and_the_error_says_where() -> None:
    with pytest.raises(SettingsWrong, match=r"NODE_NAME is not set; set it in /x/settings.env"):
        load("", {}, "/x/settings.env")


def test_peers_are_required_for_a_step_alone() -> None:
    with pytest.raises(SettingsWrong, match="KUBE_SERVER is not set"):
        require_cluster(made())
    s = made(KUBE_SERVER="https://10.0.0.2:6443, https://[fd00::3]:6443/")
    require_cluster(s)
    assert s.kube_server == ("https://10.0.0.2:6443", "https://[fd00::3]:6443")


def test_file_and_environment() -> None:
    text = "# ours\nNODE_NAME=pi1\n\nSAMPLE_SECONDS=3\nSTEP_UP='automatic'\n"
    s = load(text, {"SAMPLE_SECONDS": "4", "PATH": "/bin", "REGRADE_OTHER": "x"})
    assert (s.node_name, s.sample_seconds, s.step_up) == ("pi1", 4, "automatic")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("NODE_NAME", "line 1 is 'NODE_NAME', expected KEY=VALUE"),
        ("NODE_NAME=a\nNODE_NAME=b", "line 2 gives NODE_NAME a second time"),
        ("NODE_NAME=a\nSAMPLE_SECOND=4", "SAMPLE_SECOND, which is no setting"),
    ],
)
def test_a_file_with_mistakes_is_refused(text: str, told: str) -> None:
    with pytest.raises(SettingsWrong, match=told):
        load(text, {})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"SAMPLE_SECONDS": "0"}, "SAMPLE_SECONDS=0 .* from 1 to 30"),
        ({"SAMPLE_SECONDS": "nan"}, "SAMPLE_SECONDS=nan"),
        ({"SAMPLE_SECONDS": "31"}, "SAMPLE_SECONDS=31"),
        ({"PRESSURE_THRESHOLD": "20"}, "PRESSURE_THRESHOLD=20 .* from 1% to 100%"),
        ({"PRESSURE_THRESHOLD": "0%"}, "PRESSURE_THRESHOLD=0%"),
        ({"PRESSURE_CEILING": "101%"}, "PRESSURE_CEILING=101%"),
        ({"MEMAVAILABLE_FLOOR": "512"}, "MEMAVAILABLE_FLOOR=512 .* 512MiB or 8%"),
        ({"MEMAVAILABLE_FLOOR": "0MiB"}, "MEMAVAILABLE_FLOOR=0MiB"),
        ({"HEADROOM_ETCD_ONLY": "-1MiB"}, "HEADROOM_ETCD_ONLY=-1MiB"),
        ({"STEP_UP": "yes"}, "STEP_UP=yes is not one of manual, automatic"),
        ({"KUBE_SERVER": "http://a:6443"}, "KUBE_SERVER names 'http://a:6443'"),
        ({"KUBE_SERVER": "https://"}, "KUBE_SERVER names"),
        ({"ETCD_ONLY_HTTPS_PORT": "6443"}, "ETCD_ONLY_HTTPS_PORT=6443 is a port k3s uses"),
        ({"ETCD_ONLY_HTTPS_PORT": "80"}, "ETCD_ONLY_HTTPS_PORT=80 is not 0 or"),
        ({"ETCD_ONLY_HTTPS_PORT": "x"}, "ETCD_ONLY_HTTPS_PORT=x"),
        ({"RUNTIME": "podman"}, "RUNTIME=podman is not one of docker, .*command"),
        ({"ACTUATOR_COMMAND": "bin/levels"}, "ACTUATOR_COMMAND=bin/levels is not an absolute path"),
        # relations: both values and why
        ({"PRESSURE_WINDOW_SECONDS": "14"}, r"PRESSURE_WINDOW_SECONDS=14 .*3 x SAMPLE_SECONDS \(15\)"),
        ({"SUSTAIN_DOWN_SECONDS": "9"}, r"SUSTAIN_DOWN_SECONDS=9 .*2 x SAMPLE_SECONDS \(10\)"),
        ({"SUSTAIN_UP_SECONDS": "59"}, r"SUSTAIN_UP_SECONDS=59 .*SUSTAIN_DOWN_SECONDS \(60\)"),
        (
            {"COOLDOWN_DOWN_SECONDS": "60"},
            "COOLDOWN_DOWN_SECONDS=60 is not more than PRESSURE_WINDOW_SECONDS=60",
        ),
        ({"COOLDOWN_UP_SECONDS": "119"}, r"COOLDOWN_UP_SECONDS=119 .*COOLDOWN_DOWN_SECONDS \(120\)"),
        ({"LEASE_SECONDS": "44"}, r"LEASE_SECONDS=44 .*3 renewals of 15 s each \(45\)"),
        ({"MEMAVAILABLE_FLOOR": "50%"}, "MEMAVAILABLE_FLOOR=50% is not below PRESSURE_CEILING=50%"),
        ({"RUNTIME": "command"}, "RUNTIME=command, and ACTUATOR_COMMAND is not set"),
    ],
)
def test_what_is_out_of_bounds_or_contradicts_is_refused_in_one_line(
    changes: dict[str, str], told: str
) -> None:
    with pytest.raises(SettingsWrong, match=told) as caught:
        made(**changes)
    assert "\n" not in str(caught.value)


def test_port_0_leaves_k3s_own() -> None:
    assert made(ETCD_ONLY_HTTPS_PORT="0").etcd_only_https_port == 0


@pytest.mark.parametrize(
    ("changes", "total", "told"),
    [
        ({}, GIB // 2, "MEMAVAILABLE_FLOOR=8% is 40MiB on this host of 512MiB, not more than the 48MiB"),
        (
            {"MEMAVAILABLE_FLOOR": "600MiB"},
            GIB,
            "MEMAVAILABLE_FLOOR=600MiB .* not below PRESSURE_CEILING=50%",
        ),
        ({"HEADROOM_ETCD_ONLY": "600MiB"}, GIB, "MEMAVAILABLE_FLOOR=8% and HEADROOM_ETCD_ONLY=600MiB .* 60%"),
        ({"HEADROOM_CONTROL_PLANE": "60%"}, GIB, "MEMAVAILABLE_FLOOR=8% and HEADROOM_CONTROL_PLANE=60%"),
    ],
)
def test_relations_that_need_the_hosts_memory(changes: dict[str, str], total: int, told: str) -> None:
    with pytest.raises(SettingsWrong, match=told):
        check_memory(made(**changes), total)


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=30))
def test_no_text_of_a_setting_makes_anything_but_settings_or_one_line(key: str, value: str) -> None:
    try:
        made(**{key: value})
    except SettingsWrong as error:
        told = str(error)
    else:
        told = "settings"
    assert told


VALUES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")), max_size=20).filter(
    lambda text: not text or text[0] not in "'\""
)


@given(st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), VALUES, max_size=8))
def test_pairs_read_back_what_they_wrote(values: dict[str, str]) -> None:
    assert pairs.parse(pairs.dump(values)) == values


def test_pairs_never_write_a_second_line() -> None:
    assert pairs.dump({"message": "one\ntwo\r\nthree"}) == "message=one two three\n"


def test_how_long_a_child_may_take_follows_every_time_that_it_waits() -> None:
    usual = child_seconds(load("", {"NODE_NAME": "a"}))
    for key, longer in (
        ("DRAIN_TIMEOUT_SECONDS", "3600"),
        ("RESTART_TIMEOUT_SECONDS", "600"),
        ("BOOT_TIMEOUT_SECONDS", "3600"),
        ("TRAP_WAIT_SECONDS", "3600"),
        ("CALL_TIMEOUT_SECONDS", "20"),
    ):
        assert child_seconds(load("", {"NODE_NAME": "a", key: longer})) > usual + float(longer)
    assert 1800 < usual < 7200


def test_the_unit_of_systemd_is_named_with_or_without_its_ending() -> None:
    assert [made(UNIT=name).unit for name in ("k3s", "k3s.service", "k3s@a.service")] == [
        "k3s.service",
        "k3s.service",
        "k3s@a.service",
    ]
    for wrong in ("a b", "k3s;reboot", ".service", "k3s/x"):
        with pytest.raises(SettingsWrong, match=r"is not the name of a service unit, such as k3s"):
            made(UNIT=wrong)


def test_the_data_folder_is_an_absolute_path_or_left_to_k3ss_own_settings() -> None:
    assert (made().data_dir, made(DATA_DIR="/srv/k3s/").data_dir) == ("", "/srv/k3s")
    with pytest.raises(SettingsWrong, match=r"DATA_DIR=data is not an absolute path of k3s's data folder"):
        made(DATA_DIR="data")


def test_the_file_of_metrics_is_one_that_node_exporter_reads_in_a_folder_to_be_given_away() -> None:
    assert made().metrics_file == ""
    assert made(METRICS_FILE="/run/k3s-regrade/a.prom").metrics_file == "/run/k3s-regrade/a.prom"
    for wrong in ("run/a.prom", "/run/a.txt", "/run/", "/a.prom", "//a.prom"):
        with pytest.raises(SettingsWrong, match=f"METRICS_FILE={wrong} is not .* ends in .prom"):
            made(METRICS_FILE=wrong)

# SPDX-License-Identifier: GPL-3.0-or-later
"""The monitoring examples and their page against the metrics that are written. What rules do is promtool's to test."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, Set

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import cures, marks, metrics
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load
from ansible_collections.exadev.k3s_regrade.tests.unit.core.test_metrics import noted, parsed

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "monitoring"
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
RULES = [rule for group in yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
BOARD: Dict[str, Any] = json.loads((EXAMPLES / "dashboard.json").read_text())
LABEL = "label_github_runner_exadev_com_regrade_level"
# Of others, which the page and the rules say where to get.
OTHERS: Dict[str, Set[str]] = {"kube_node_labels": {LABEL, "node"}, "up": set()}
WORDS = {
    "and", "or", "unless", "on", "by", "without", "offset", "max", "time", "label_values",
    # labels of the target
    "job", "instance",
}  # fmt: skip


def written() -> Dict[str, Set[str]]:
    """Each metric, with all labels that it is ever written with."""
    found: Dict[str, Set[str]] = {}
    blocked = noted(blocked="x", blocked_reason="api", blocked_move="down")
    for notes in (noted(), blocked):
        facts = metrics.Facts(notes, {"level": "full"}, False, False, 1.0)
        for name, labels in parsed(metrics.text(facts, load("", {"NODE_NAME": "pi-a"}))):
            found.setdefault(metrics.PREFIX + name, {"server"}).update(key for key, _word in labels)
    return found


METRICS = written()
LABELS = set().union(*METRICS.values(), *OTHERS.values())


def queries() -> Iterator[str]:
    for rule in RULES:
        yield rule["expr"]
        yield from re.findall(r'printf "([^"]+)"', rule["annotations"].get("description", ""))
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["definition"] for one in BOARD["templating"]["list"] if one["type"] == "query")


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_names_only_metrics_that_are_written_with_labels_they_have(query: str) -> None:
    names = set()
    for name, selected in re.findall(r"([a-z]\w*)(?:\{([^}]*)\})", query):
        assert name in METRICS or name in OTHERS, name
        for label in re.findall(r"(\w+)\s*[!=]=?~?", re.sub(r'"[^"]*"|\'[^\']*\'', "", selected)):
            assert label in (METRICS.get(name) or OTHERS[name]), (name, label)
    bare = re.sub(r'"[^"]*"|\'[^\']*\'|\{[^}]*\}', "", query)
    for word in re.findall(r"(?<![\w$])[a-z_]\w*", bare):
        names.add(word)
    assert names & (set(METRICS) | set(OTHERS)), "it asks for something"
    assert names - set(METRICS) - set(OTHERS) - WORDS <= LABELS, names


def test_every_label_a_legend_or_an_annotation_shows_is_one_that_is_there() -> None:
    text = json.dumps(BOARD) + json.dumps(RULES)
    shown = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)) - {"end", "else"}
    assert shown and shown <= LABELS | {"value"}


def test_every_metric_is_shown_by_a_rule_or_the_dashboard() -> None:
    asked = " ".join(queries())
    assert {name for name in METRICS if not re.search(rf"\b{name}\b", asked)} == {
        "k3s_regrade_memory_total_bytes", "k3s_regrade_verdict",
    }  # fmt: skip


def test_the_reasons_left_out_of_an_alert_are_reasons() -> None:
    (left_out,) = re.findall(r'reason!~"([^"]+)"', " ".join(queries()))
    assert set(left_out.split("|")) <= set(cures.CURES)


def test_every_alert_is_told_of_and_tested_both_ways() -> None:
    names = [rule["alert"] for rule in RULES]
    assert re.findall(r"^\| `(K3sRegrade\w+)` \|", PAGE, re.M) == names
    tests = yaml.safe_load((EXAMPLES / "alerts_test.yml").read_text())
    cases = [case for test in tests["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(names)
    # The one without a delay has its other Node beside it.
    quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert quiet == {rule["alert"] for rule in RULES if "for" in rule}


def test_the_page_tells_every_metric_with_its_labels_and_help() -> None:
    rows = re.findall(r"^\| `(k3s_regrade_\w+)` \|([^|]*)\| (.+) \|$", PAGE, re.M)
    assert [(name, meaning) for name, _labels, meaning in rows] == [
        (metrics.PREFIX + name, words) for name, words in metrics.HELP.items()
    ]
    assert {name: {"server", *re.findall(r"`(\w+)`", labels)} for name, labels, _meaning in rows} == METRICS


def test_the_inhibition_is_of_nodes_with_our_label_and_told_to_nobody() -> None:
    config = yaml.safe_load((EXAMPLES / "alertmanager.yml").read_text())
    (rule,) = config["inhibit_rules"]
    assert set(rule) == {"source_matchers", "target_matchers", "equal"}
    (source,) = rule["source_matchers"]
    assert source == "alertname = K3sRegradeSteppedDown"
    (target,) = rule["target_matchers"]
    assert "KubeNodeNotReady" in target and "K3sRegrade" not in target
    assert rule["equal"] == ["node"]
    (stepped,) = (one for one in RULES if one["alert"] == "K3sRegradeSteppedDown")
    # as kube-state-metrics writes the name of a label
    assert re.sub(r"\W", "_", f"label_{marks.LEVEL}") == LABEL and LABEL in stepped["expr"]
    for text in (PAGE, (EXAMPLES / "alerts.yml").read_text()):
        assert f"--metric-labels-allowlist=nodes=[{marks.LEVEL}]" in text
    (route,) = config["route"]["routes"]
    silent = {one["name"] for one in config["receivers"] if set(one) == {"name"}}
    assert route["matchers"] == [source] and route["receiver"] in silent

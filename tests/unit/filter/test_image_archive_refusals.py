# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of archives that do not hold the image they are given for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.image_archive_refusals import (
    image_archive_refusals,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.test_placement_refusals import page


def archive(image: str, *names: str, **changes: str) -> dict[str, str]:
    manifest = json.dumps([{"Config": "x.json", "RepoTags": list(names) or None, "Layers": []}])
    return {"host": "a", "image": image, "file": "/r.tar", "manifest": manifest, "error": "", **changes}


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("fleet/regrade:1", "fleet/regrade:1"),
        ("docker.io/fleet/regrade:1", "fleet/regrade:1"),
        ("fleet/regrade:1", "docker.io/fleet/regrade:1"),
        ("docker.io/library/regrade:1", "regrade:1"),
        ("fleet/regrade", "fleet/regrade:latest"),
        ("registry.example:5000/regrade", "registry.example:5000/regrade:latest"),
        ("registry.example:5000/regrade:2", "registry.example:5000/regrade:2"),
    ],
)
def test_the_image_by_its_name_is_allowed(image: str, name: str) -> None:
    assert image_archive_refusals([archive(image, "other:1", name)]) == []


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (archive("fleet/x:2", "fleet/x:1"), "a: /r.tar holds fleet/x:1, and it has to hold fleet/x:2: "),
        (archive("x:1", "registry.example/x:1"), "holds registry.example/x:1, and it has to hold x:1"),
        (archive("x:1"), "holds an image without a name"),
        (archive("x:1", manifest="[]"), "holds an image without a name"),
        (archive("x:1", manifest="{}"), "is no archive of an image (its manifest.json: it is no list of images)"),
        (archive("x:1", manifest="x"), "is no archive of an image (its manifest.json: Expecting value"),
        (archive("x:1", error="tar: Cannot open:\nNo such file"), "cannot be read (tar: Cannot open: No such file)"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line_that_says_what_to_do(read: dict[str, str], told: str) -> None:
    (line,) = image_archive_refusals([read])
    assert told in line and "`docker save " in line and "\n" not in line


def test_a_relative_path_is_refused_whatever_was_found_there() -> None:
    for file in ("images/regrade.tar", "~/regrade.tar"):
        (line,) = image_archive_refusals([archive("x:1", "x:1", file=file)])
        assert repr(file) in line and "absolute path" in line


def test_a_manifest_that_ansible_has_read_already_counts_as_well() -> None:
    read: dict[str, Any] = {**archive("x:1"), "manifest": [{"RepoTags": ["x:1"]}]}
    assert image_archive_refusals([read]) == []
    assert image_archive_refusals([{**read, "manifest": {"RepoTags": ["x:1"]}}]) != []


def test_every_host_is_told_at_once() -> None:
    reads = [archive("x:1", "y:1", host="a"), archive("x:1", "x:1", host="b"), archive("x:2", "x:1", host="c")]
    assert [line.split(":")[0] for line in image_archive_refusals(reads)] == ["a", "c"]


# --- the page that tells them ---

GIVEN = {"host": "pi-a", "file": "/srv/images/regrade.tar.gz"}
TOLD = {
    "another image": archive("fleet/regrade:2", "fleet/regrade:1", **GIVEN),
    "an image without a name": archive("fleet/regrade:1", **GIVEN),
    "no archive of an image": archive("fleet/regrade:1", manifest="{}", **GIVEN),
    "no such file": archive(
        "fleet/regrade:1",
        error="tar: /srv/images/regrade.tar.gz: Cannot open: No such file or directory",
        **GIVEN,
    ),
    "a relative path": archive("fleet/regrade:1", "fleet/regrade:1", host="pi-a", file="images/regrade.tar.gz"),
}


@pytest.mark.parametrize("name", TOLD)
def test_the_page_tells_what_is_said(name: str) -> None:
    (line,) = image_archive_refusals([TOLD[name]])
    assert page("The archive of the image").get(name) == [line], f"| {name} | {line} |"


def test_the_page_tells_of_no_other_case() -> None:
    assert list(page("The archive of the image")) == list(TOLD)

"""The image's build: what makes a new key, and what the layers hold."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

import build
import podimage


def test_a_key_changes_with_every_input_and_its_place() -> None:
    keys = {build.key_of(parts) for parts in (["a", "b"], ["ab"], ["b", "a"], ["a", b"b", ""])}
    assert len(keys) == 4
    assert build.key_of(["a", b"b"]) == build.key_of(["a", "b"])
    assert all(len(key) == 12 for key in keys)


def test_compiled_python_does_not_change_a_key(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    before = build.key_of(build.tree_parts(tmp_path))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("y")
    assert build.key_of(build.tree_parts(tmp_path)) == before
    (tmp_path / "a.py").write_text("z")
    assert build.key_of(build.tree_parts(tmp_path)) != before


def test_the_image_knows_nothing_of_what_is_tested_on_it() -> None:
    for path in [*build.tree(build.HERE / "launcher"), *build.tree(build.HERE / "stack")]:
        text = path.read_text()
        assert "github" + "-runner" not in text and "re" + "grade" not in text, path


def test_the_pod_image_is_a_docker_archive_whose_layer_has_the_digest_its_config_names() -> None:
    with tarfile.open(fileobj=io.BytesIO(podimage.archive(b"busybox"))) as archive:

        def read(name: str) -> bytes:
            extracted = archive.extractfile(name)
            assert extracted is not None
            return extracted.read()

        (manifest,) = json.loads(read("manifest.json"))
        config = json.loads(read(manifest["Config"]))
        layer = read(manifest["Layers"][0])
    assert manifest["RepoTags"] == ["local/pause:1", "local/sleeper:1"]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + podimage.hashlib.sha256(layer).hexdigest()]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        assert files.getmember("bin/sh").linkname == "busybox"
        assert files.getmember("bin/busybox").mode == 0o755


def test_a_failed_command_is_one_line() -> None:
    with pytest.raises(build.BuildError, match="failed: no") as caught:
        build.run(["sh", "-c", "echo no >&2; exit 3"])
    assert "\n" not in str(caught.value)

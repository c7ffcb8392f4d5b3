"""The image's build: what makes a new key, and what the layers hold."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

import build
import podimage


def test_the_image_knows_nothing_of_what_is_tested_on_it() -> None:
    files = [path for path in build.HERE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = [path for path in files if {"launcher", "stack"} & set(path.parts)] + [build.RUNC_WRAPPER]
    assert len(files) > 20
    for path in files:
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

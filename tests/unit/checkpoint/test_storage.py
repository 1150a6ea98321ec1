"""An object store behaves as a folder does, as far as checkpoints need it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch
from lightning_fabric.utilities.cloud_io import _load

from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.checkpoint.start import prepare
from elastic_harness.errors import CheckpointError, ConfigError


@pytest.fixture(params=["memory", "file", "plain"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "plain":
            yield str(tmp_path / "checkpoints")
        case "file":
            yield f"file://{tmp_path}/checkpoints"
        case _:
            url = f"memory://{secrets.token_hex(4)}"
            yield url
            fsspec.filesystem("memory").rm(url, recursive=True)


def test_folder_when_it_is_anywhere_then_checkpoints_are_written_found_set_aside_and_pruned(location: str) -> None:
    folder = CheckpointFolder(location)
    assert folder.newest_valid() == (None, [])
    prepare(folder)
    for step in (1, 2, 3):
        folder.write({"step": torch.tensor(step)}, "step", Facts(step))
    found, damaged = CheckpointFolder(location).newest_valid()
    assert found is not None
    assert damaged == []
    assert _load(found.path.removeprefix("file://"), weights_only=True) == {"step": torch.tensor(3)}

    with folder.storage.stage("step_00000003.ckpt", lambda file: file.write(b"damaged")) as staged:
        staged.publish()
    found, (damage,) = folder.newest_valid()
    assert found is not None
    assert found.manifest.step == 2
    assert folder.storage.get(damage.moved_to.rpartition("/")[2]) == b"damaged"

    folder.prune("step", ["step_00000002.ckpt"])
    assert folder.names() == ["step_00000002.ckpt"]
    folder.set_aside()
    assert folder.newest_valid() == (None, [])
    assert CheckpointFolder(f"{location}/superseded_0").names() == ["step_00000002.ckpt"]


def test_store_when_its_client_raises_an_error_of_its_own_then_it_is_said_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = CheckpointFolder("memory://gone")

    class NoCredentialsError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(folder.storage._files, "put_file", fail)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"memory://gone/step_00000001.*Unable to locate credentials") as raised:
        folder.write({}, "step", Facts(1))
    assert not raised.value.permanent
    with pytest.raises(ConfigError, match="Unable to locate credentials"):
        prepare(folder)
    monkeypatch.setattr(folder.storage._files, "ls", fail)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"cannot be read \(NoCredentialsError: Unable to locate"):
        folder.newest_valid()

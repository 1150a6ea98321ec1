"""Checkpoint files: whole or not at all, and never trusted further than their manifests."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_harness.checkpoint import files
from elastic_harness.checkpoint.content import tensor_bytes
from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts
from elastic_harness.checkpoint.start import prepare
from elastic_harness.errors import ConfigError, FencedError
from tests.unit.checkpoint.written import STATE, entries, newest_step, write


def test_names_when_made_then_need_no_quoting_and_can_be_read_back_h01() -> None:
    name = files.name_of("step", 120)
    assert name == "step_00000120.ckpt"
    assert files.step_of(name) == files.step_of(f"s3://bucket/{name}") == 120
    assert not set("=, ()[]") & set(name)
    with pytest.raises(ValueError, match="not the name of a checkpoint"):
        files.step_of("epoch=3-step=40.ckpt")


def test_newest_when_there_are_several_then_goes_by_step_not_by_time_or_kind(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "new" / "folder")
    assert folder.newest_valid() == (None, [])
    assert folder.newest_manifest() is None
    write(folder, 200, 100)
    write(folder, 120, kind="best")
    assert newest_step(folder) == 200
    write(folder, 240, kind="best")
    assert folder.names()[-1] == "best_00000240.ckpt"
    write(folder, 100_000_000, 99_999_999)
    assert newest_step(folder) == 100_000_000
    manifest = folder.newest_manifest()
    assert manifest is not None
    assert manifest.step == 100_000_000


def test_write_when_done_then_the_manifest_says_what_the_file_is(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    facts = Facts(step=3, epoch=1, generation=7, fingerprint={"seed": 42})
    written = folder.write(STATE, "step", facts)
    content = Path(written.path).read_bytes()
    manifest = json.loads((tmp_path / "step_00000003.json").read_text())
    assert manifest == {
        **vars(facts),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert entries(tmp_path) == ["step_00000003.ckpt", "step_00000003.json"]
    assert torch.load(written.path, weights_only=True)["name"] == "a"
    assert folder.newest_valid() == (written, [])


def test_write_when_given_a_finished_file_then_it_is_copied(tmp_path: Path) -> None:
    finished = tmp_path / "copy"
    torch.save(STATE, finished)
    written = CheckpointFolder(tmp_path / "checkpoints").write(finished, "step", Facts(1))
    assert Path(written.path).read_bytes() == finished.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_newest_valid_when_a_byte_differs_or_the_end_is_missing_then_the_one_before_is_used_c04(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged")
    folder = CheckpointFolder(path)
    write(folder, 1, 2)
    newest = path / "step_00000002.ckpt"
    content = bytearray(newest.read_bytes())
    offset = int(where * len(content))
    if cut:
        del content[offset:]
    else:
        content[offset] ^= 1 << bit
    newest.write_bytes(content)
    found, (damaged,) = folder.newest_valid()
    assert found is not None
    assert found.manifest.step == 1
    assert damaged.path == str(newest)
    assert Path(damaged.moved_to).read_bytes() == content
    assert ("bytes" if cut else "sha256") in damaged.reason
    assert folder.newest_valid() == (found, [])


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "missing"), (b"{garb", "damaged"), (b"[]", "damaged"), (b"\xff", "damaged")]
)
def test_newest_valid_when_the_manifest_is_no_good_then_neither_is_the_checkpoint(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1, 2)
    manifest = tmp_path / "step_00000002.json"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    found, (damaged,) = folder.newest_valid()
    assert found is not None
    assert found.manifest.step == 1
    assert damaged.reason == f"its manifest is {reason}"


def test_newest_valid_when_none_is_whole_then_it_says_so_every_time_and_names_them_c04(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1, 2)
    for step in (1, 2):
        (tmp_path / files.name_of("step", step)).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"step_00000001\.ckpt\.damaged.*resume=never"):
            folder.newest_valid()
    folder.set_aside()
    assert folder.newest_valid() == (None, [])
    assert len(entries(tmp_path / "superseded_0")) == 4


def test_newest_valid_when_a_name_is_damaged_twice_then_both_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    for content in (b"first", b"second"):
        write(folder, 2)
        (tmp_path / "step_00000002.ckpt").write_bytes(content)
        assert newest_step(folder) == 1
    assert (tmp_path / "step_00000002.ckpt.damaged").read_bytes() == b"first"
    assert (tmp_path / "step_00000002.ckpt.damaged_1").read_bytes() == b"second"


def test_write_when_its_name_is_there_then_a_whole_one_stays_and_a_damaged_one_is_set_aside(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    before = (tmp_path / "step_00000001.ckpt").read_bytes()
    folder.write({"other": 1}, "step", Facts(1))
    assert (tmp_path / "step_00000001.ckpt").read_bytes() == before
    (tmp_path / "step_00000001.ckpt").write_bytes(b"damaged")
    folder.write({"other": 1}, "step", Facts(1))
    assert torch.load(tmp_path / "step_00000001.ckpt", weights_only=True) == {"other": 1}
    assert (tmp_path / "step_00000001.ckpt.damaged").read_bytes() == b"damaged"


def test_write_when_tensors_share_their_memory_then_it_is_counted_once() -> None:
    weight = torch.zeros(1000)
    assert tensor_bytes({"a": weight, "b": [weight, weight[:10]], "c": (torch.zeros(10), 3, "x")}) == 4040


def test_write_when_another_generation_has_taken_over_then_nothing_is_put_in_place(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    before = entries(tmp_path)
    asked: list[list[str]] = []

    def may_write() -> bool:
        asked.append(entries(tmp_path))
        return False

    with pytest.raises(FencedError, match="generation 3"):
        folder.write(STATE, "step", Facts(2, generation=3), may_write)
    assert entries(tmp_path) == before
    (at_that_moment,) = asked
    assert len(at_that_moment) == len(before) + 1  # all but the rename was done


WRITER = """
import sys
from pathlib import Path
from elastic_harness.checkpoint.files import CheckpointFolder
from elastic_harness.checkpoint.manifest import Facts
folder = CheckpointFolder(sys.argv[1])
step = int(sys.argv[3])
while True:
    step += 1
    folder.write(Path(sys.argv[2]), "step", Facts(step))
    folder.prune("step", folder.names("step")[-1:])
    print(step, flush=True)
"""


def test_write_when_killed_at_any_moment_then_a_whole_one_as_new_as_reported_is_there_c03(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "checkpoints"
    source.write_bytes(os.urandom(3_000_000))
    folder = CheckpointFolder(path)
    step, moments = 0, random.Random(3)
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, path, source, str(step)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        reported = int(writer.stdout.readline())
        for _ in range(moments.randrange(3000)):  # looking takes a few microseconds; a write some milliseconds
            entries(path)
        writer.send_signal(signal.SIGKILL)
        reported = max([reported, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        prepare(folder)
        found, damaged = folder.newest_valid()
        assert found is not None
        assert damaged == []
        step = found.manifest.step
        assert step in (reported, reported + 1)
        names = [entry for entry in entries(path) if not entry.startswith("step_")]
        assert names == []
        assert len(entries(path)) <= 4


def test_prune_when_called_then_removes_only_its_kind(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for kind in ("step", "best"):
        write(folder, 1, 2, 3, kind=kind)  # type: ignore[arg-type]
    folder.prune("step", ["step_00000003.ckpt"])
    assert folder.names("step") == ["step_00000003.ckpt"]
    assert len(folder.names("best")) == 3
    assert "step_00000001.json" not in entries(tmp_path)


def test_prune_when_what_is_kept_is_damaged_then_the_last_good_one_stays(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1, 2, 3)
    (tmp_path / "step_00000003.ckpt").write_bytes(b"")
    folder.prune("step", ["step_00000003.ckpt"])
    assert folder.names() == ["step_00000002.ckpt", "step_00000003.ckpt"]
    assert newest_step(folder) == 2

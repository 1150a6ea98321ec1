"""Real ``python train.py`` processes: help, config, and bad input, which never gets as far as a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def start(cwd: Path, *arguments: str, trace_imports: bool = False) -> subprocess.CompletedProcess[str]:
    flags = ["-X", "importtime"] if trace_imports else []
    command = [sys.executable, *flags, str(PROJECT / "train.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "experiment: char_gpt, cifar_resnet"),
        (["+experiment=digits_mlp", "--cfg", "job"], "recipes.digits_mlp.module.DigitsMLP"),
    ],
)
def test_train_when_asked_for_help_or_config_then_torch_is_not_imported(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = start(tmp_path, *arguments, trace_imports=True)
    assert done.returncode == 0
    assert words in done.stdout
    assert "| torch\n" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["+experiment=digits_mlp", "+elastic.typo=3"], "elastic.typo=3 is not a key"),
        (["+experiment=digits_mlp", "elastic.max_nodes=1:4"], "elastic.min_nodes=1 elastic.max_nodes=4"),
        (["+experiment=digits_mlp", "data.batch_size=???"], "data.batch_size=??? must be set"),
        (["+experiment=digits_mlp", "data.batch_size=${oc.env:NO_SUCH_VARIABLE}"], "NO_SUCH_VARIABLE"),
        (["+experiment=digits_mlp", "resume=epoch=3-step=40.ckpt"], "both quotes"),
        (["+experiment=digits_mlp", 'resume="epoch=3-step=40.ckpt"'], "there is no such file"),
    ],
)
def test_train_when_the_input_is_bad_then_it_ends_before_torch_is_imported_h01_h03_r10(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = start(tmp_path, *arguments, trace_imports=True)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "| torch\n" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_train_when_an_argument_of_the_model_is_misspelt_then_no_worker_is_started(tmp_path: Path) -> None:
    done = start(tmp_path, "+experiment=digits_mlp", "+model.hiden=3", "optimizer.lr=fast")
    assert done.returncode == 2
    assert "did you mean hidden?" in done.stderr
    assert "optimizer.lr=fast must be a number" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_train_when_the_run_folder_cannot_be_made_then_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    done = start(tmp_path, "+experiment=digits_mlp")
    assert done.returncode == 2
    assert "hydra.run.dir=" in done.stderr
    assert "Traceback" not in done.stderr

"""Each ``_target_`` is checked against the signature it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from elastic_harness.config import RunConfig
from elastic_harness.config.annotations import fits, spelt
from elastic_harness.config.targets import check_targets, locate, target_modules
from elastic_harness.errors import ConfigError

HERE = "tests.unit.config.test_targets"


class Model:
    """Stands for a user's module."""

    def __init__(
        self, width: int, optimizer: Callable[..., Any] | None = None, mode: Literal["a", "b"] = "a", inner: Any = None
    ) -> None: ...


class Plain:
    """A module without an optimizer argument."""


def data(root: str = "", sizes: Sequence[int] = (), share: float = 0.5, **rest: Any) -> None: ...


not_callable = 3


def run(**changes: Any) -> RunConfig:
    groups: dict[str, Any] = {
        "model": {"_target_": f"{HERE}.Model", "width": 3},
        "data": {"_target_": f"{HERE}.data"},
        "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1},
    }
    return RunConfig("a", "/runs/a", None, **{**groups, **changes})


def problems_of(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        check_targets(run(**changes))
    return raised.value.problems


def model(**arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.Model", "width": 3, **arguments}


def test_check_targets_when_all_fit_then_nothing_is_raised() -> None:
    check_targets(
        run(
            data={"_target_": f"{HERE}.data", "sizes": [1, 2], "share": 1, "anything": 3},
            trainer={"max_epochs": 1, "limit_val_batches": 2, "precision": "bf16-mixed", "max_time": "00:01:00:00"},
            logger={"_target_": "pytorch_lightning.loggers.TensorBoardLogger", "save_dir": "x", "version": ""},
            optimizer={"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1, "betas": [0.9, 0.99]},
        )
    )


def test_check_targets_when_an_argument_is_misspelt_then_the_right_one_is_named() -> None:
    (problem,) = problems_of(model=model(widht=4))
    assert problem == (
        f"model.widht=4 is not an argument of {HERE}.Model: did you mean width? Allowed: inner, mode, optimizer, width."
    )


def test_check_targets_when_an_argument_is_missing_then_it_is_named() -> None:
    (problem,) = problems_of(model={"_target_": f"{HERE}.Model"})
    assert problem.startswith("model.width must be set")


def test_check_targets_when_the_optimizer_is_not_partial_then_that_is_asked_for() -> None:
    (problem,) = problems_of(optimizer={"_target_": "torch.optim.SGD", "lr": 0.1})
    assert problem.startswith("optimizer.params must be set")
    assert "optimizer._partial_: true" in problem


def test_check_targets_when_the_model_takes_no_optimizer_then_it_says_so() -> None:
    (problem,) = problems_of(model={"_target_": f"{HERE}.Plain"})
    assert problem.startswith("optimizer=torch.optim.SGD is not used")
    assert "~optimizer" in problem


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (f"{HERE}.Modell", f"did you mean {HERE}.Model?"),
        ("torch.optim.SDG", "did you mean torch.optim.SGD?"),
        ("no_such_package.Model", "No module named 'no_such_package'"),
        ("Model", "not a dotted name"),
        (f"{HERE}.not_callable", "must be a class or a function, and is a int"),
    ],
)
def test_check_targets_when_a_target_is_not_there_then_key_and_reason_are_named(target: str, words: str) -> None:
    (problem,) = problems_of(data={"_target_": target})
    assert problem.startswith(f"data._target_={target}")
    assert words in problem


def test_check_targets_when_targets_are_nested_then_they_are_checked_too() -> None:
    inner = {"_target_": f"{HERE}.Model", "width": "wide"}
    assert problems_of(model=model(inner=[inner]))[0].startswith("model.inner[0].width=wide must be an integer")
    assert problems_of(callbacks={"a": inner})[0].startswith("callbacks.a.width=wide")


def test_check_targets_when_types_are_wrong_then_key_and_type_are_named() -> None:
    (problem,) = problems_of(model=model(mode="c"))
    assert "model.mode=c must be one of a, b" in problem
    (problem,) = problems_of(optimizer={"_target_": "torch.optim.SGD", "_partial_": True, "lr": "fast"})
    assert problem.startswith("optimizer.lr=fast must be a number")


def test_check_targets_when_the_trainer_is_given_unknown_arguments_then_they_are_named() -> None:
    found = problems_of(trainer={"max_epoch": 3, "max_steps": "x"})
    assert len(found) == 2
    assert "did you mean max_epochs?" in found[0]


def test_check_targets_when_several_are_wrong_then_all_are_listed() -> None:
    assert len(problems_of(model=model(a=1), data={"_target_": "x.y"}, trainer={"max_epoch": 3})) == 3


def test_target_modules_when_listed_then_each_module_is_named_once() -> None:
    found = target_modules(run(model=model(inner={"_target_": "a.b.C"}), callbacks={"x": {"_target_": "d.E"}}))
    assert found == [HERE, "a.b", "torch.optim", "d"]


def test_locate_when_an_import_inside_the_module_fails_then_that_one_is_named(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "outer_package").mkdir()
    (tmp_path / "outer_package" / "__init__.py").touch()
    (tmp_path / "outer_package" / "module.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="no_such_dependency"):
        locate("outer_package.module.Thing")


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, True),
        (True, int, False),
        (1.0, int, False),
        (None, int | None, True),
        ("a", list[str], False),
        (["a"], list[str], True),
        ([1], list[str], False),
        ([1, 2], tuple[int, int], True),
        ([1], tuple[int, int], False),
        ([1, 2, 3], tuple[int, ...], True),
        ({}, dict[str, int], True),
        ("x", "SomethingUnknown", True),
        ("x", complex, True),
        (1, Literal[True], False),
    ],
)
def test_fits_when_a_value_meets_an_annotation_then_yaml_types_are_told_apart(
    value: Any, annotation: Any, expected: bool
) -> None:
    assert fits(value, annotation) is expected


def test_spelt_when_annotations_are_joined_then_it_reads_as_words() -> None:
    assert spelt(int | None) == "an integer or null"
    assert spelt(Literal["a", 1] | None) == "one of a, 1 or null"
    assert spelt(list[float]) == "a list (a number)"

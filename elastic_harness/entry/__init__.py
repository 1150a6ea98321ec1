"""The wrapper around train.py: finds the config, runs Hydra, and turns every ending into an exit code.

    train.py -> hydra_entry -> hydra.main -> job (once, or once a point of a sweep) -> the user's train(cfg)

This is the one border where exceptions become messages. Hydra would print its own and exit with 1; it lets
them through when ``HYDRA_FULL_ERROR`` is set, so that is set while Hydra runs, and taken back for the job.
torch is not imported here.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from elastic_harness import recipes, stop_signals, zygote
from elastic_harness.config import RunConfig, parse, to_dict
from elastic_harness.config.base_60 import base_60_numbers
from elastic_harness.config.rules import unnamed_run
from elastic_harness.entry import hydra_messages, sweep
from elastic_harness.entry.new_folders import remove_new_empty_folders
from elastic_harness.entry.sweep import Job
from elastic_harness.errors import ConfigError, HarnessError, Stopped
from elastic_harness.run_folder import RunFolder, finished_text

_FULL_ERROR = "HYDRA_FULL_ERROR"
# torch prints hundreds of lines of C++ frames for a store that is gone, of which the harness says one.
_CPP_LOG_LEVEL = ("TORCH_CPP_LOG_LEVEL", "ERROR")
_SWEEP = ("-m", "--multirun")


class _JobFailed(Exception):  # noqa: N818  (an outcome that has been reported already)
    """Tells Hydra's sweeper that a job failed, after its message was shown."""


def hydra_entry(train: Callable[[DictConfig], float | None]) -> Callable[[], None]:
    """Turn ``train(cfg)`` into the program: config in ``conf`` beside its file, recipes, exit codes.

    The process ends with 0 (finished), 1 (failed), 2 (bad configuration or input), 129, 130, 143 (stopped) or
    144 (cluster trouble); see ``elastic_harness.errors``. In a sweep a failed job is reported with its
    overrides, the others run, and the exit code is that of the first one that failed.
    """

    @functools.wraps(train)
    def main() -> None:
        project = Path(inspect.getfile(train)).resolve().parent
        os.environ.setdefault(*_CPP_LOG_LEVEL)
        _open_missing_streams()
        sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in _SWEEP)  # argparse wants them first
        try:
            with stop_signals.raising():
                code = _run(train, project)
        except Stopped as stopped:
            code = stopped.exit_code
        except KeyboardInterrupt:
            code = Stopped(signal.SIGINT).exit_code
        finally:
            zygote.stop()
        sys.exit(code)

    return main


def parse_job(cfg: DictConfig) -> RunConfig:
    """``parse`` for a config that Hydra just composed: the run folder and the experiment come from Hydra.

    Raises:
        ConfigError: with every mistake that was found.
    """
    run_dir = HydraConfig.get().runtime.output_dir
    unwritable = f"hydra.run.dir={run_dir} must be writable: choose another with hydra.run.dir=PATH."
    return parse_composed(cfg, [] if os.access(run_dir, os.W_OK) else [unwritable])


def parse_composed(cfg: DictConfig, problems: Sequence[str] = ()) -> RunConfig:
    """``parse_job``, whatever the state of the run folder.

    Args:
        cfg: see there.
        problems: that are known already.

    Raises:
        ConfigError: with every mistake that was found.
    """
    hydra_cfg = HydraConfig.get()
    run_dir = hydra_cfg.runtime.output_dir
    problems = [*base_60_numbers(hydra_cfg), *_contradicting_direction(cfg, hydra_cfg), *problems]
    nodes, identity = OmegaConf.select(cfg, "elastic.max_nodes"), _identity(cfg)
    if isinstance(nodes, int) and nodes > 1 and not identity:
        problems.append(unnamed_run(nodes))
    try:
        run = parse(cfg, run_dir, hydra_cfg.runtime.choices.get("experiment"))
    except ConfigError as error:
        named = {problem.partition("=")[0] for problem in problems}
        others = [problem for problem in error.problems if problem.partition("=")[0] not in named]
        raise ConfigError([*problems, *others]) from None
    if problems:
        raise ConfigError(problems)
    if run.elastic.max_nodes > 1 and identity == "folder":
        run.run_id = run_dir.strip(os.sep).replace(os.sep, ".")
    return run


def _contradicting_direction(cfg: DictConfig, hydra_cfg: HydraConf) -> list[str]:
    """A sweeper that looks for the worst."""
    chosen = (hydra_cfg.sweeper or {}).get("direction")
    chosen = getattr(chosen, "name", chosen)  # it may be a member of an enumeration
    direction = OmegaConf.select(cfg, "objective.direction")
    right = {"max": "maximize", "min": "minimize"}.get(direction)
    if None in (chosen, right) or chosen == right:
        return []
    text = f"hydra.sweeper.direction={chosen} contradicts objective.direction={direction}"
    return [f"{text}: use hydra.sweeper.direction={right}."]


def _identity(cfg: DictConfig) -> str | None:
    """What tells this run from others on all nodes alike: ``run_id`` or the ``folder``; None if nothing does."""
    node = OmegaConf.to_container(cfg, resolve=False)
    if isinstance(node, dict) and node.get("run_id") != "${new_run_id:}":
        return "run_id"
    chosen = HydraConfig.get().overrides.hydra
    return "folder" if any(each.startswith(("hydra.run.dir=", "hydra.sweep.dir=")) for each in chosen) else None


@dataclass(frozen=True)
class EarlierResult:
    """A run that was there already, and finished.

    Args:
        objective: the number it is judged by, if it has one.
    """

    objective: float | None


def already_finished(run: RunConfig) -> EarlierResult | None:
    """Say so if the run folder holds a finished run, which is then left as it is.

    Raises:
        ConfigError: it is that of another experiment.
    """
    result = RunFolder(Path(run.run_dir)).finished(run.resume, to_dict(run))
    if result is None:
        return None
    print(finished_text(run.run_dir, result))  # noqa: T201
    return EarlierResult(result["metrics"].get(run.objective.metric))


def new_run_id() -> str:
    """A name no other run has: the time, and a few random letters for two starts in one second."""
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(3)}"


def register_resolvers() -> None:
    """The resolver behind ``run_id: ${new_run_id:}``; one config gets one id however often it is read."""
    OmegaConf.register_new_resolver("new_run_id", new_run_id, use_cache=True, replace=True)


def _run(train: Callable[[DictConfig], float | None], project: Path) -> int:
    failed: list[int] = []

    @functools.wraps(train)
    def job(cfg: DictConfig) -> float | None:
        with _environment(_FULL_ERROR, before.get(_FULL_ERROR)):
            return _job(train, cfg, failed)

    before = dict(os.environ)
    stop_signals.hold()  # until the job begins
    start = hydra.main(version_base="1.3", config_path=str(project / "conf"), config_name="config")(job)
    try:
        recipes.register(project)
        register_resolvers()
        with _environment(_FULL_ERROR, "1"):
            start()
    except _JobFailed:
        pass  # Reported when it happened.
    except HarnessError as error:
        return _report(error)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, OSError) as error:
        return _report(hydra_messages.explained(error, project, sys.argv[1:]))
    finally:
        stop_signals.release()
        table = sweep.conclude()
        if table:
            print(table)  # noqa: T201
    return failed[0] if failed else 0


def _job(train: Callable[[DictConfig], float | None], cfg: DictConfig, failed: list[int]) -> float | None:
    """One job. Its failure is shown here, once; only a sweeper hears of it, which may have a use for it."""
    hydra_cfg = HydraConfig.get()
    is_in_sweep = hydra_cfg.mode == RunMode.MULTIRUN
    if is_in_sweep:
        _say(f"Job {hydra_cfg.job.num}: {' '.join(hydra_cfg.overrides.task)}")
    environment = dict(os.environ)
    code, status, told, result = 0, "failed", "", None
    try:
        stop_signals.release()
        result = train(cfg)
        if is_in_sweep and result is not None and math.isnan(result):
            raise HarnessError(f"objective.metric={cfg.objective.metric} is nan at the end.")
        status = "finished"
    except Stopped as stopped:
        code, status = stopped.exit_code, "stopped"
        raise
    except HarnessError as error:
        code, told = _report(error), str(error)
    except SystemExit as error:
        # Hydra would end the whole sweep. Lightning's own end on SIGTERM is a SystemExit, too.
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        status = "failed" if code else "finished"
        if isinstance(error.code, str):
            told = error.code
            _say(told)
    except Exception:
        code, told = 1, traceback.format_exc()
        _say(told.rstrip())
    finally:
        stop_signals.hold()
        # Lightning leaves the seed and settings of CUDA there, which are not the next job's.
        os.environ.clear()
        os.environ.update(environment)
        refused = code == ConfigError.exit_code and Path(hydra_cfg.runtime.output_dir, "config.yaml").exists()
        if is_in_sweep and not refused:  # the folder is that of another run, and left as it is
            objective = OmegaConf.select(cfg, "objective")
            job = Job(
                *(hydra_cfg.job.num, status, code, objective.metric, objective.direction),
                *(result, list(hydra_cfg.overrides.task), told),
            )
            job.write(Path(hydra_cfg.runtime.output_dir))
        remove_new_empty_folders(Path(hydra_cfg.runtime.output_dir))
    if code:
        failed.append(code)
    if code and is_in_sweep:
        _say(f"Job {hydra_cfg.job.num} failed with exit code {code}.")
        raise _JobFailed(f"job {hydra_cfg.job.num} failed with exit code {code}")
    return result


def _open_missing_streams() -> None:
    """Give a program that was started with a standard stream closed an empty one in its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _report(error: HarnessError) -> int:
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        _say("\n".join(f"- {problem}" for problem in error.problems))
    else:
        _say(str(error))
    return error.exit_code


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """One environment variable set (or, with None, unset) for a while."""
    before = os.environ.get(name)
    _set(name, value)
    try:
        yield
    finally:
        _set(name, before)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value

"""``elastic-harness doctor``: is this node fit for a run? Looks without starting anything, and says what to do.

torch is imported here, by the checks that need it.
"""

from __future__ import annotations

import fcntl
import importlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from packaging.requirements import Requirement

from elastic_harness import recipes
from elastic_harness.config import RunConfig
from elastic_harness.entry import hydra_messages, parse_composed, register_resolvers
from elastic_harness.errors import ConfigError, HarnessError

_SHARED_MEMORY = Path("/dev/shm")
_SECONDS = 3.0


def doctor(project: Path, overrides: Sequence[str]) -> Iterator[str]:
    """A line for each check, as soon as it is made.

    Args:
        project: the folder with ``train.py``.
        overrides: as for ``train.py``.

    Raises:
        ConfigError: the configuration is wrong, or a check has failed.
    """
    run = composed(project, overrides)
    failed = 0
    for name, check in _CHECKS.items():
        try:
            yield f"ok     {name:15}{check(run)}"
        except HarnessError as error:
            failed += 1
            yield f"wrong  {name:15}{error}"
    if failed:
        raise ConfigError(
            f"{failed} of {len(_CHECKS)} checks failed: a run with this configuration would not work here."
        )


def composed(project: Path, overrides: Sequence[str]) -> RunConfig:
    """The run that ``python train.py`` with these overrides would start.

    Raises:
        ConfigError: with every mistake.
    """
    recipes.register(project)
    register_resolvers()
    try:
        with initialize_config_dir(str(project / "conf"), version_base="1.3"):
            cfg = compose("config", list(overrides), return_hydra_config=True)
        folder = str(Path(cfg.hydra.run.dir).absolute())
        with read_write(cfg.hydra.runtime), open_dict(cfg.hydra.runtime):
            cfg.hydra.runtime.output_dir = folder
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise hydra_messages.explained(error, project, list(overrides)) from error
    HydraConfig.instance().set_config(cfg)
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    return parse_composed(cfg)


def _packages(_: RunConfig) -> str:
    """All there in a version that is tested, and torchvision built for this torch."""
    found = {}
    for each in map(Requirement, requires("elastic-harness") or ()):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        try:
            found[each.name] = version(each.name)
        except PackageNotFoundError:
            raise ConfigError(f"{each.name} is not installed: pip install '{each}'.") from None
        if not each.specifier.contains(found[each.name], prereleases=True):
            raise ConfigError(
                f"{each.name} {found[each.name]} is installed, and {each} is needed: pip install '{each}'."
            )
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"torchvision {found['torchvision']} does not work with torch {found['torch']} ({error}): install the two "
            "that belong together, pip install --upgrade torch torchvision."
        ) from error
    return f"Python {platform.python_version()}, torch {found['torch']}, torchvision {found['torchvision']}"


def _targets(run: RunConfig) -> str:
    from elastic_harness.entry.build import model_and_data

    model_and_data(run)
    return f"{run.model['_target_']}, {run.data['_target_']}"


def _devices(run: RunConfig) -> str:
    import torch

    from elastic_harness.entry.build import worker_count

    workers, gpus = worker_count(run), torch.cuda.device_count()
    names = ", ".join(sorted({torch.cuda.get_device_name(number) for number in range(gpus)}))
    return f"{workers} worker{'s' * (workers > 1)}; {f'{gpus} GPUs ({names})' if gpus else 'no GPU'}"


def _rendezvous(run: RunConfig) -> str:
    from elastic_harness import rendezvous

    config = replace(run.rendezvous, join_timeout=_SECONDS)
    address = rendezvous.address_of_this_node(config)
    if config.endpoint is None:
        return f"{config.backend} on this node alone"
    backend = rendezvous.connect(config, "doctor", lambda: None)
    if getattr(backend, "hosts", False):
        place = f"nobody hosts the store at {rendezvous.spelt(config)} yet, this node would"
        return f"{config.backend}: {place}; the others reach it at {address}"
    return f"{config.backend} at {rendezvous.spelt(config)} answers; the others reach this node at {address}"


def _run_folder(run: RunConfig) -> str:
    folder = Path(run.run_dir)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            f"{there} cannot be written and locked ({error.strerror}): choose another place with hydra.run.dir=PATH."
        ) from error
    return f"{folder}, {_gib(shutil.disk_usage(there).free)} free"


def _checkpoints(run: RunConfig) -> str:
    from elastic_harness.checkpoint.files import CheckpointFolder
    from elastic_harness.run_folder import RunFolder

    folder: CheckpointFolder = RunFolder(Path(run.run_dir), run.checkpoint.dir).checkpoints
    names, free = folder.names(), folder.storage.free_bytes()
    return f"{folder.location}, {names[-1] if names else 'none yet'}{f', {_gib(free)} free' if free else ''}"


def _memory(_: RunConfig) -> str:
    if not _SHARED_MEMORY.is_dir():
        return "no /dev/shm: states of interrupted workers go to the run folder"
    return f"/dev/shm, {_gib(shutil.disk_usage(_SHARED_MEMORY).free)} free for states of interrupted workers"


_CHECKS: dict[str, Callable[[RunConfig], str]] = {
    "packages": _packages,
    "model and data": _targets,
    "devices": _devices,
    "rendezvous": _rendezvous,
    "run folder": _run_folder,
    "checkpoints": _checkpoints,
    "memory": _memory,
}


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"

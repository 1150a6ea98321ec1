"""The typed schema of every configuration group. Neither torch nor Lightning is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PERMANENT_ERRORS = (
    "ImportError",
    "NameError",
    "NotImplementedError",
    "SyntaxError",
    "lightning_fabric.utilities.exceptions.MisconfigurationException",
    "omegaconf.errors.OmegaConfBaseException",
)
"""Exceptions that say something of the code, whenever they come."""


@dataclass
class ElasticConfig:
    """How many nodes and workers take part.

    Args:
        min_nodes: smallest number of nodes to train with.
        max_nodes: largest number of nodes to train with; more than 1 needs ``run_id``.
        nproc_per_node: workers a node: a number, ``gpu`` (one a GPU), ``cpu`` (one a core), or ``auto``
            (one a GPU, or one worker where there is none).
        logical_world_size: data-parallel ranks that define the run, each with the loader's own batch size, hosted by
            however many workers there are. null is ``nproc_per_node`` times ``max_nodes`` at the run's first start;
            later starts take the recorded number.
        consistency: ``bitwise`` (the same weights, bit for bit, with any number of workers), ``batch`` (the same
            samples and batches, sums in the order of the workers) or ``none`` (plain DDP: a resize changes the batch).
        num_threads: CPU threads of one worker; null shares the node's cores evenly among the logical ranks at the
            first start, so that it does not depend on the number of workers.
        monitor_interval: seconds between two looks at the workers' progress. A worker's death is noticed
            at once, whatever this is.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: Any = "auto"
    logical_world_size: int | None = None
    consistency: str = "bitwise"
    num_threads: int | None = None
    monitor_interval: float = 0.1


@dataclass
class RendezvousConfig:
    """How the nodes of a run find each other. Times are in seconds.

    Args:
        backend: ``c10d``: a store that the node named by ``endpoint`` hosts, nothing to install; ``etcd``: etcd by its
            v3 API; ``etcd_v2``: etcd up to 3.5 by its v2 API; ``static``: as c10d, with nodes that never change.
        endpoint: ``HOST:PORT`` of the store, or of etcd (a list of them for a cluster; ``https://`` for TLS); null is
            enough for one node.
        join_timeout: how long a node waits for enough others.
        last_call_timeout: how long the first round of a start waits for more than ``elastic.min_nodes``. Later nodes
            join a running job at any time.
        read_timeout: how long an answer of the endpoint may take.
        keep_alive_interval: between two signs of life of a node; with ``elastic.max_nodes`` above 16 it grows in
            proportion.
        keep_alive_attempts: signs of life in a row that may be missed before a node is taken for dead.
        local_addr: address of this node as the workers of others reach it; null is the one that leads to the endpoint,
            so that the machine's own name is never looked up.
        cacert: file with the authority that signed etcd's certificate.
        cert: file with the certificate this node shows to etcd.
        key: file with the key of ``cert``.
        user: user of etcd.
        password: of the user; give it as ``${oc.env:NAME}``.
    """

    backend: str = "c10d"
    endpoint: str | list[str] | None = None
    join_timeout: float = 600.0
    last_call_timeout: float = 3.0
    read_timeout: float = 1.0
    keep_alive_interval: float = 0.5
    keep_alive_attempts: int = 4
    local_addr: str | None = None
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass
class BackoffConfig:
    """How long a restart waits. When the run is further than at the failure before, it does not.

    Args:
        initial_seconds: when it is not.
        factor: by which each further wait is longer, as long as the run gets no further.
        max_seconds: the longest wait.
        jitter: largest share by which a wait is longer or shorter, so that jobs that failed together part.
    """

    initial_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 60.0
    jitter: float = 0.1


@dataclass
class RestartConfig:
    """Which failures are retried, how often, how fast. Nodes that join or leave, and stops, are no failures.

    Args:
        policy: ``on_failure`` (any failure, within the budget), ``exit_code`` (deaths by signal, exit codes of 128 and
            above, and ``retryable_exit_codes``) or ``never``.
        max_restarts: failures that may be retried; 0 means none, -1 any number.
        window_seconds: how long a failure counts against ``max_restarts``; null is for the whole run.
        refund_after_steps: optimizer steps after which a failure does not count any more; 0 is never.
        backoff: how long a restart waits.
        retryable_exit_codes: further exit codes that ``exit_code`` retries; a Python exception has 1.
        permanent_errors: exceptions that are never retried, nor those that inherit from them: ``ImportError``, or
            ``my_module.MyError`` for what is not built in.
    """

    policy: str = "on_failure"
    max_restarts: int = 10
    window_seconds: float | None = None
    refund_after_steps: int = 1000
    backoff: BackoffConfig = field(default_factory=BackoffConfig)
    retryable_exit_codes: list[int] = field(default_factory=list)
    permanent_errors: list[str] = field(default_factory=lambda: list(PERMANENT_ERRORS))


@dataclass
class CheckpointConfig:
    """When checkpoints are written, where, and which are kept.

    Args:
        dir: a folder or any URL of fsspec's, such as ``s3://bucket/checkpoints``; the run has a folder of its own below
            it. null is ``checkpoints`` in the run folder.
        every_n_steps: optimizer steps between two checkpoints; 0 writes only the last one.
        every_seconds: seconds between two checkpoints, whatever their steps; null is never.
        keep_last: newest checkpoints to keep.
        keep_best: checkpoints with the best ``objective`` to keep.
        rescue: whether an interrupted worker hands over the state of its last finished step. It costs a small copy
            a step, and ``on_save_checkpoint`` is called at the end of every step.
    """

    dir: str | None = None
    every_n_steps: int = 50
    every_seconds: float | None = None
    keep_last: int = 2
    keep_best: int = 1
    rescue: bool = True


@dataclass
class PreemptionConfig:
    """How a node stops that will go away, and who tells, beside the stop signals.

    Args:
        grace_seconds: from the signal or the notice to the exit, whatever is under way. What of the checkpoint is not
            written by then stays in the node's memory.
        provider: ``aws`` (spot instances), ``gcp`` or ``slurm`` (the end of the job's time limit); null asks nobody.
        endpoint: URL of the cloud's metadata server; null is its own.
        file: path of a file whose presence is a notice; null is none.
        lead_seconds: how long before its end a Slurm job is stopped.
        poll_interval: seconds between two looks for a notice.
    """

    grace_seconds: float = 25.0
    provider: str | None = None
    endpoint: str | None = None
    file: str | None = None
    lead_seconds: float = 60.0
    poll_interval: float = 5.0


@dataclass
class WatchdogConfig:
    """When workers that stand still are taken for hung, and restarted as after any failure. Times are in seconds.

    Args:
        enabled: whether they are watched.
        hang_timeout: how long nothing may move: no batch, no validation, no hook, no saving. null is learned: 20 times
            the longest pause there was, and no less than 300.
        startup_timeout: the same in a start, up to the end of the first batch, and before the first of a validation.
        straggler_factor: a worker that takes so many times the median for its own part of a step is named, once.
        straggler_seconds: over which that is measured.
    """

    enabled: bool = True
    hang_timeout: float | None = None
    startup_timeout: float = 1800.0
    straggler_factor: float = 1.5
    straggler_seconds: float = 60.0


@dataclass
class ObjectiveConfig:
    """The one number the run is judged by.

    Args:
        metric: a name the module logs, for example ``val/top1``; null: there is none.
        direction: ``max`` or ``min``.
    """

    metric: str | None = None
    direction: str = "max"


@dataclass
class RunConfig:
    """A whole run, as ``parse`` returns it.

    ``model``, ``data``, ``optimizer``, ``scheduler``, ``logger`` and each of ``callbacks`` are plain
    dictionaries with a ``_target_``; ``trainer`` holds arguments of ``pytorch_lightning.Trainer``.
    """

    run_id: str
    run_dir: str
    experiment: str | None
    seed: int = 42
    resume: str = "auto"
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    rendezvous: RendezvousConfig = field(default_factory=RendezvousConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    preemption: PreemptionConfig = field(default_factory=PreemptionConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    logger: dict[str, Any] | None = None
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)


SCHEMAS: dict[str, type[Any]] = {
    "objective": ObjectiveConfig,
    "elastic": ElasticConfig,
    "rendezvous": RendezvousConfig,
    "restart": RestartConfig,
    "checkpoint": CheckpointConfig,
    "preemption": PreemptionConfig,
    "watchdog": WatchdogConfig,
}
"""The groups owned by the harness: no other key is accepted in them."""

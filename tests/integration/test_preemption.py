"""A notice from outside stops a run as SIGTERM does, and the same command goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.integration.conftest import Run, traced
from tests.metadata_server import ACTION, MetadataServer


def test_run_when_aws_gives_notice_then_stops_with_143_and_goes_on_with_no_step_lost(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with MetadataServer() as server:
        overrides = (
            "trainer.max_epochs=5",
            "checkpoint.every_n_steps=100",
            f"+callbacks.trace={{_target_: probes.StepTrace, path: {trace}}}",
            "preemption=aws",
            f"preemption.endpoint={server.endpoint}",
            "preemption.poll_interval=0.02",
        )
        run = start(*overrides)
        run.wait_until(lambda: trace.exists() and traced(trace) > 14)
        server.answers[ACTION] = (200, '{"action": "terminate", "time": "2026-05-04T08:22:00Z"}')
        run.finish(code=143, seconds=25)
        step, notice = traced(trace), "notice from AWS: terminate at 2026-05-04T08:22:00Z"
        assert f"stopped ({notice}): {step} steps" in run.stdout
        assert [event["notice"] for event in run.events("preemption_notice")] == [notice]
        (log,) = (run.folder / "logs").glob("agent_*.log")
        assert notice in log.read_text()
        assert run.events("worker_failed") == []
        assert run.events("checkpoint_saved")[-1]["step"] == step
        del server.answers[ACTION]
        again = start(*overrides)
        again.finish()
    (resumed,) = again.events("resumed")
    assert (resumed["step"], resumed["steps_lost"]) == (step, 0)
    assert again.result["step"] == 60
    assert again.result["restarts"] == 0

"""Plain torchrun meets in etcd v3 through the backend that this package registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.etcd import Etcd

SCRIPT = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_PORT"], flush=True)
"""


def test_torchrun_when_its_backend_is_etcd_v3_then_two_agents_meet(tmp_path: Path) -> None:
    server = Etcd(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=etcd-v3", f"--rdzv-endpoint={server.endpoint}", "--rdzv-id=job", "--local-addr=127.0.0.1"),
        str(script),
    ]
    try:
        server.wait()
        agents = [
            subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        said = [agent.communicate(timeout=120) for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], said
        first, second = sorted(line for out, _ in said for line in out.splitlines())
        assert first.startswith("rank 0 of 2 at ")
        assert second == first.replace("rank 0", "rank 1")
    finally:
        server.stop()

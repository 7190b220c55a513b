"""What ``deploy`` tells a job and its receivers, put together: with these variables, values arrive."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors import gateway
from deployed import DEPLOY, SECRET, Container, containers
from hubs import ask, command
from programs import environment, write
from servers import wait_until

PROGRAM = """
import tachograph
tachograph.put_metric("checkpoint.success", 3, "g")
"""
TACHOGRAPH = str(Path(sys.executable).parent / "tachograph")


def job(folder: Path, of: Container, port: int) -> subprocess.CompletedProcess[str]:
    """Run a program as a container would, which finds its receiver on another port of this machine."""
    told = {name: value for name, value in of.env.items() if name.startswith("OTEL_") and value}
    env = environment(folder, **{**told, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"})
    run = [TACHOGRAPH, "run", "--no-hub", "--", sys.executable, str(write(folder, PROGRAM))]
    return subprocess.run(run, env=env, capture_output=True, text=True, timeout=60, check=False)


def of_the_job(place: str) -> Container:
    """Return the container in which torchrun runs."""
    (found,) = (one for one in containers(place) if "torchrun" in one.command)
    return found


@pytest.mark.otelcol
@pytest.mark.usefixtures("untraced")
def test_a_job_of_compose_is_let_into_the_gateway(tmp_path: Path) -> None:
    """With the variables that Compose gives to ``train`` and ``collector``, what is recorded passes the gateway."""
    (receiver,) = (one for one in containers("compose") if one.is_collector)
    (tmp_path / "gateway").mkdir()
    with gateway(tmp_path / "gateway", GATEWAY_TOKEN=receiver.env["GATEWAY_TOKEN"]) as collector:
        done = job(tmp_path, of_the_job("compose"), collector.http)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: "checkpoint_success_total" in collector.values("program"), 10, collector.page)
        assert collector.values("program")["checkpoint_success_total"] == 3


@pytest.mark.usefixtures("untraced")
def test_a_job_of_a_pod_is_let_into_its_hub(tmp_path: Path) -> None:
    """With the variables of overlay ``podmonitor`` a job reports to its hub, whose page a scraper may read."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    with command(tmp_path, "--token-file", str(token)) as hub:
        done = job(tmp_path, of_the_job("podmonitor"), int(hub.url.rpartition(":")[2]))
        assert done.returncode == 0, done.stderr
        assert b"checkpoint_success_total{" in ask(hub.url, "/metrics").body


def test_a_node_of_slurm_passes_the_signal_on(tmp_path: Path) -> None:
    """SIGTERM at the script of a node reaches the job, which takes the time that it needs; its exit code is ours."""
    program = tmp_path / "tachograph"
    program.write_text(
        "#!/bin/bash\ntrap 'kill $!; sleep 0.3; exit 42' TERM\necho began\nsleep 30 >/dev/null & wait $!\n"
    )
    program.chmod(0o755)
    env = environment(tmp_path, SLURM_JOB_ID="1", SLURM_NNODES="1", HEAD_NODE="n", NODE_FOLDER=str(tmp_path))
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    run = [str(DEPLOY / "slurm" / "node.sh"), "train.py"]
    with subprocess.Popen(run, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "began\n"
        time.sleep(0.2)
        script.send_signal(signal.SIGTERM)
        assert script.wait(20) == 42

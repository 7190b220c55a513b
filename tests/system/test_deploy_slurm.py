"""``deploy/slurm``, run with stand-ins for Slurm's commands, the real collector and a real torchrun."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from collectors import TOKEN, Collector, Ports, gateway
from deployed import DEPLOY, ROOT, default
from programs import environment, write
from servers import find, free_port, wait_until

SLURM = DEPLOY / "slurm"
NODES = ("127.0.0.1", "localhost")
PROGRAM = """
import os
import tachograph

rank = int(os.environ["RANK"])
for step in range(10):
    tachograph.put_metric("step.count", step, "g")
    tachograph.put_metric("checkpoint.success", 1, "g")
print(f"rank {rank} of {os.environ['WORLD_SIZE']} is done", flush=True)
"""
# Stand-ins for Slurm's commands, which here run all nodes on this machine, each with ports of its own.
SCONTROL = """#!/usr/bin/env bash
[[ "$1 $2" == "show hostnames" ]] && tr , '\\n' <<<"$3"
"""
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
number=0 code=0
for name in ${SLURM_JOB_NODELIST//,/ }; do
  variables=NODE_$number
  env SLURMD_NODENAME="$name" SLURM_NODEID="$number" SLURM_PROCID="$number" SLURM_STEP_ID=0 ${!variables} "$@" &
  pids+=($!)
  number=$((number + 1))
done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "$code"
"""
# A stand-in for the job, for tests of what is said before it begins.
SAYS = """#!/usr/bin/env bash
echo "$(basename "$0") $*"
exit "${CODE:-0}"
"""


class Ready(BaseHTTPRequestHandler):
    """The health check of a collector."""

    def do_GET(self) -> None:
        """Respond that the collector is ready."""
        self.send_response(200)
        self.end_headers()


def programs(folder: Path, **scripts: str) -> str:
    """Write programs to a folder, and return a PATH that starts with it."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])


def slurm(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a batch script with two nodes."""
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_NNODES": str(len(NODES)),
        "SLURM_JOB_NODELIST": ",".join(NODES),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "NODE_FOLDER": str(folder / "node"),
        "OMP_NUM_THREADS": "1",
    }
    return environment(folder, **{**job, **more})


def node(folder: Path, *, job: str = SAYS, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script of one node with a stand-in for the job; an empty string unsets a variable."""
    path = programs(folder / "bin", tachograph=job, torchrun=SAYS)
    ports = Ports.free().environment()
    given = {"GATEWAY": f"http://127.0.0.1:{free_port()}", "GATEWAY_TOKEN": TOKEN, "OTELCOL": find("otelcol")}
    env = slurm(folder, PATH=path, HEAD_NODE="127.0.0.1", SLURMD_NODENAME="n1", **{**ports, **given, **more})
    return subprocess.run(
        [str(SLURM / "node.sh"), "train.py"],
        env={name: value for name, value in env.items() if value},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def shown(collector: Collector, name: str) -> dict[str, float]:
    """Return a metric of the job at the gateway, by rank."""
    return {labels["dl_rank"]: value for found, labels, value in collector.samples("program") if found == name}


@pytest.mark.parametrize("script", ["node.sh", "train.sbatch"])
def test_scripts_are_clean(script: str) -> None:
    """``bash -n`` and shellcheck find nothing, and the script can be executed."""
    path = SLURM / script
    assert os.access(path, os.X_OK)
    checker = str(Path(sys.executable).parent / "shellcheck")
    for command in (["bash", "-n", str(path)], [checker, str(path)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), command


def test_ports_are_those_of_the_agent() -> None:
    """The script and the collector's file have the same default ports."""
    text = (SLURM / "node.sh").read_text(encoding="utf-8")
    for variable in ("OTLP_HTTP", "OTLP_GRPC", "HEALTH", "OWN_METRICS_PORT"):
        assert f"{variable}=${{{variable}:-{default(variable, 'agent')}}}" in text


@pytest.mark.otelcol
@pytest.mark.torch
@pytest.mark.usefixtures("untraced")
def test_a_job_of_two_nodes_arrives_at_the_gateway(tmp_path: Path) -> None:
    """With one agent per node and one torchrun, each rank's totals reach the gateway, and no file remains."""
    program = write(tmp_path, PROGRAM)
    path = programs(tmp_path / "bin", scontrol=SCONTROL, srun=SRUN)
    nodes = {f"NODE_{number}": shlex.join(map("=".join, Ports.free().environment().items())) for number in range(2)}
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "gateway").mkdir()
    with gateway(tmp_path / "gateway") as collector:
        env = slurm(
            tmp_path,
            PATH=path,
            GATEWAY=f"http://127.0.0.1:{collector.http}",
            GATEWAY_TOKEN_FILE=str(tmp_path / "token"),
            OTELCOL=find("otelcol"),
            RDZV_PORT=str(free_port()),
            NPROC_PER_NODE="1",
            **nodes,
        )
        command = [str(SLURM / "train.sbatch"), str(program)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 is done", "rank 1 of 2 is done"]
        assert "no agent" not in done.stderr
        assert "the gateway has not received all telemetry" not in done.stderr
        wait_until(lambda: shown(collector, "checkpoint_success_total") == {"0": 10, "1": 10}, 10, collector.page)
        runs = {labels["dl_run_id"] for _, labels, _ in collector.samples("program") if "dl_rank" in labels}
        assert runs == {"4711"}
        hosts = {labels["host_name"] for name, labels, _ in collector.samples("program") if name == "target_info"}
        assert hosts == set(NODES)
    assert list((tmp_path / "node").iterdir()) == []


@pytest.mark.otelcol
def test_a_job_does_not_get_the_token(tmp_path: Path) -> None:
    """Only the agent gets the token from a file; ranks export every five seconds and observe the hardware."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    prints = "#!/usr/bin/env bash\nenv\n"
    done = node(tmp_path, job=prints, GATEWAY_TOKEN="", GATEWAY_TOKEN_FILE=str(tmp_path / "token"), DRAIN_SECONDS="1")
    assert "no agent" not in done.stderr
    assert TOKEN not in done.stdout
    assert "OTEL_METRIC_EXPORT_INTERVAL=5000" in done.stdout.splitlines()
    assert "TACHOGRAPH_SYSTEM_METRICS=false" in done.stdout.splitlines()  # the user's setting is not changed


@pytest.mark.otelcol
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"GATEWAY": ""}, "GATEWAY must be a URL"),
        ({"GATEWAY": "gateway:4318"}, "GATEWAY must be a URL such as http://gateway:4318, not 'gateway:4318'"),
        ({"GATEWAY_TOKEN": ""}, "GATEWAY_TOKEN is not set"),
        ({"GATEWAY_TOKEN": "", "GATEWAY_TOKEN_FILE": "/none"}, "cannot read GATEWAY_TOKEN_FILE=/none"),
        ({"OTELCOL": "no-such-collector"}, "no-such-collector not found on PATH"),
        ({"COLLECTOR_CONFIG": "/none"}, "cannot read /none/agent.yaml"),
        ({"NODE_FOLDER": "/proc/none"}, "cannot write to the queue folder /proc/none/4711-n1/queue"),
        ({"OTLP_HTTP": "198.51.100.1:4318"}, "the collector exited: "),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_and_the_job_runs(tmp_path: Path, given: dict[str, str], said: str) -> None:
    """A wrong or missing setting is reported; the job runs with its own hub, and its exit code is returned."""
    done = node(tmp_path, CODE="7", **given)
    assert said in done.stderr
    assert "no agent: " in done.stderr
    assert done.returncode == 7
    store = f"--store {given.get('NODE_FOLDER', tmp_path / 'node')}/4711-n1/store"
    assert done.stdout.startswith(f"tachograph run --run-id 4711 {store} -- torchrun --nnodes=2 --nproc-per-node=1 ")
    assert done.stdout.endswith(" train.py\n")


@pytest.mark.otelcol
def test_a_gateway_that_is_away_is_said_and_the_agent_begins(tmp_path: Path) -> None:
    """If the gateway is down, this is reported, and the job sends to the agent."""
    done = node(tmp_path, DRAIN_SECONDS="1")
    assert "does not respond; telemetry is queued in" in done.stderr
    assert "--endpoint http://127.0.0.1:" in done.stdout
    assert done.returncode == 0


def test_an_agent_that_the_node_has_is_used(tmp_path: Path) -> None:
    """If an agent already runs, none is started, and no setting is required."""
    with HTTPServer(("127.0.0.1", 0), Ready) as there:
        answering = Thread(target=there.handle_request)
        answering.start()
        done = node(
            tmp_path,
            HEALTH=f"127.0.0.1:{there.server_port}",
            GATEWAY="",
            OTELCOL="none",
            OTLP_HTTP="127.0.0.1:4318",
        )
        answering.join(10)
    assert "using the agent that already runs on this node" in done.stderr
    assert done.stdout.startswith("tachograph run --run-id 4711 --no-hub --endpoint http://127.0.0.1:4318 -- torchrun ")


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_NNODES", "HEAD_NODE"])
def test_outside_of_slurm_the_scripts_say_so(tmp_path: Path, missing: str) -> None:
    """Without Slurm's variables, nothing is started, and the missing variable is named."""
    path = programs(tmp_path / "bin", scontrol=SCONTROL)
    env = {**slurm(tmp_path, PATH=path, HEAD_NODE="127.0.0.1"), missing: ""}
    done = subprocess.run([str(SLURM / "node.sh")], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"{missing} is not set" in done.stderr
    env["SLURM_SUBMIT_DIR"] = str(tmp_path)
    command = [str(SLURM / "train.sbatch"), "train.py"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "submit from the checkout" in done.stderr

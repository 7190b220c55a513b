"""Who is speaking: names, ids and places, as the environment tells them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource

from tachograph.identity.process_group import Membership
from tachograph.identity.program import is_agent
from tachograph.identity.rank import awaits_rank, descends_from_rank, rank_attributes
from tachograph.identity.resource import is_helper, owner_mark, resource_attributes, series_labels, service_name, store

RANK_3 = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "4",
    "ROLE_NAME": "trainer",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job-7",
}
TASK_5 = {
    "SLURM_JOB_ID": "991",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NAME": "pretrain",
}
TORCHRUN = ["python", "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py", "--lr", "0.1"]


def test_the_users_service_name_wins() -> None:
    """OTEL_SERVICE_NAME comes before OTEL_RESOURCE_ATTRIBUTES, and an argument before both; empty means unset."""
    environ = {"OTEL_SERVICE_NAME": "one", "OTEL_RESOURCE_ATTRIBUTES": "service.name=two,service.namespace=lab"}
    assert service_name(environ, explicit="zero") == "zero"
    assert service_name(environ) == "one"
    assert service_name({**environ, "OTEL_SERVICE_NAME": " "}) == "two"
    found = resource_attributes(environ)
    assert (found["service.name"], found["service.namespace"]) == ("one", "lab")


def test_ranks_say_where_they_are() -> None:
    """Under torchrun, a rank's attributes are what the agent told it; its labels are rank, role and run."""
    found = resource_attributes(RANK_3, host="node-a", pid=17, orig_argv=["python", "train.py"])
    assert found == {
        "service.name": "train",
        "service.instance.id": found["service.instance.id"],
        "host.name": "node-a",
        "process.pid": 17,
        "dl.run.id": "job-7",
        "dl.rank": 3,
        "dl.local_rank": 1,
        "dl.node_rank": 1,
        "dl.world_size": 4,
        "dl.role": "trainer",
        "dl.restart_count": 2,
    }
    assert series_labels(found) == {"dl_rank": "3", "dl_role": "trainer", "dl_run_id": "job-7"}


def test_torchruns_own_process_is_the_agent() -> None:
    """The process of torchrun itself has the role agent and no rank, even where its container sets RANK."""
    found = resource_attributes({"RANK": "1", "PET_NODE_RANK": "1", **TASK_5}, orig_argv=TORCHRUN)
    assert (found["dl.role"], found["dl.node_rank"]) == ("agent", 1)
    assert "dl.rank" not in found
    assert series_labels(found) == {"dl_role": "agent", "dl_run_id": "991.0"}
    assert not is_agent(["python", "torchrun.py"])


@pytest.mark.parametrize(
    "command",
    [
        ["python", "/venv/bin/accelerate", "launch", "--multi_gpu", "train.py", "-m", "x.py"],
        ["python", "/venv/bin/accelerate-launch", "--mixed_precision", "no", "train.py"],
        ["python", "-m", "accelerate.commands.launch", "--num_processes", "2", "-m", "train"],
        ["python", "-m", "accelerate.commands.accelerate_cli", "launch", "jobs/train.py"],
    ],
)
def test_the_launcher_of_accelerate_is_the_agent(command: list[str]) -> None:
    """``accelerate launch`` is an agent as torchrun is, with the name of its program; another command of it is none."""
    found = resource_attributes({"RANK": "1"}, orig_argv=command)
    assert (found["dl.role"], found["service.name"], found.get("dl.rank")) == ("agent", "train", None)
    assert not is_agent(["python", "/venv/bin/accelerate", "config"])
    assert not is_agent(["python", "accelerate.py", "launch", "train.py"])


def test_slurm_tells_the_rank_where_no_torchrun_does() -> None:
    """A task of srun is a rank; under torchrun, Slurm's numbers are the agent's and do not count."""
    found = resource_attributes(TASK_5)
    places = [found[key] for key in ("dl.rank", "dl.local_rank", "dl.node_rank", "dl.world_size")]
    assert places == [5, 1, 2, 8]
    assert (found["slurm.job.id"], found["slurm.step.id"], found["slurm.job.name"]) == ("991", "0", "pretrain")
    found = resource_attributes({**TASK_5, "RANK": "0", "TORCHELASTIC_RUN_ID": "none"})
    assert found["dl.rank"] == 0
    assert "dl.local_rank" not in found
    found = resource_attributes({**TASK_5, "RANK": "5"})
    assert found["dl.local_rank"] == 1


PLACED = {"dl.rank": 5, "dl.local_rank": 1, "dl.world_size": 8}
MPI = {
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
    "MVAPICH2": {"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "8"},
    "Hydra": {"PMI_RANK": "5", "MPI_LOCALRANKID": "1", "PMI_SIZE": "8"},
    "Cray": {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1", "PMI_SIZE": "8"},
}


@pytest.mark.parametrize("library", MPI)
def test_mpi_tells_the_rank(library: str) -> None:
    """Of a process that mpirun has started; also in a batch script of Slurm, whose own task is another one."""
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    for environ in (MPI[library], {**script, **MPI[library]}):
        assert rank_attributes(environ, ["python", "train.py"]) == PLACED
        assert owner_mark(environ, 4711, ["python", "train.py"]) == "5:0:4711"
    by_torchrun = {**MPI[library], "TORCHELASTIC_RUN_ID": "x", "RANK": "40", "LOCAL_RANK": "0", "WORLD_SIZE": "64"}
    assert rank_attributes(by_torchrun, ["python"]) == {"dl.rank": 40, "dl.local_rank": 0, "dl.world_size": 64}


def test_pmix_tells_the_rank_alone() -> None:
    """It has no variable for the rest."""
    assert rank_attributes({"PMIX_RANK": "3"}, ["python"]) == {"dl.rank": 3}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, {"dl.rank": 2, "dl.world_size": 4}),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}, {"dl.rank": 2, "dl.local_rank": 0, "dl.world_size": 4}),
        # Lightning's launcher leaves the rank to torch, a Kubernetes operator's RANK is that of the pod
        (
            {"LOCAL_RANK": "0", "NODE_RANK": "1"},
            {"dl.rank": 2, "dl.local_rank": 0, "dl.node_rank": 1, "dl.world_size": 4},
        ),
        ({"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, {"dl.rank": 2, "dl.world_size": 4}),
        # a child of a rank of torchrun's, and such a rank itself, in a group of another kind
        (
            {"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x", "TACHOGRAPH__OWNER": "1:0:1"},
            {"dl.rank": 2, "dl.world_size": 4},
        ),
        ({"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, {"dl.rank": 1, "dl.local_rank": 1}),
    ],
)
def test_a_process_group_has_the_last_word(environ: dict[str, str], found: dict[str, int]) -> None:
    """Its rank is that of the process, and the place on the node is kept where it is of the same process."""
    assert rank_attributes(environ, ["python"], group=Membership(2, 4)) == found


def test_a_launcher_may_leave_the_rank_to_torch() -> None:
    """So does one that sets LOCAL_RANK alone; where the rank is known, nothing is awaited."""
    assert awaits_rank({"LOCAL_RANK": "1", "WORLD_SIZE": "4"})
    for environ in ({}, {"LOCAL_RANK": "1", "RANK": "1"}, {**MPI["Hydra"], "LOCAL_RANK": "1"}, {"LOCAL_RANK": "x"}):
        assert not awaits_rank(environ)


def test_kubernetes_attributes_have_the_conventions_names() -> None:
    """What a pod's specification hands on becomes k8s attributes; outside of a pod POD_NAME means nothing."""
    pod = {"POD_NAME": "train-0-abc", "K8S_NAMESPACE_NAME": "ml", "K8S_JOB_UID": "6d0f", "NODE_NAME": "gpu-7"}
    found = resource_attributes(pod)
    expected = {
        "k8s.pod.name": "train-0-abc",
        "k8s.namespace.name": "ml",
        "k8s.job.uid": "6d0f",
        "k8s.node.name": "gpu-7",
        "dl.run.id": "6d0f",
    }
    assert {key: found[key] for key in expected} == expected
    assert not [key for key in resource_attributes({"POD_NAME": "x"}) if key.startswith("k8s.")]


@pytest.mark.parametrize("wrong", ["three", "-1", "3.0", "٣", "9" * 30, str(2**63)])
def test_a_rank_that_is_no_number_is_left_out(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong RANK raises nothing and is said once; what else is known stays."""
    environ = {**RANK_3, "RANK": wrong}
    for _ in range(2):
        found = resource_attributes(environ)
        assert "dl.rank" not in found
        assert found["dl.world_size"] == 4
    assert len([record for record in caplog.records if wrong in record.getMessage()]) == 1
    assert owner_mark(environ, 1) is None


def test_the_users_attributes_win_over_detected_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Arguments win over OTEL_RESOURCE_ATTRIBUTES, which wins over what was found; values are percent-decoded."""
    environ = {
        **RANK_3,
        "OTEL_RESOURCE_ATTRIBUTES": "host.name=h%C3%B6st, team = a%2Cb%3Dc,dl.role=critic,broken,x=",
    }
    found = resource_attributes(environ, extra={"team": "z", "gpus": [0, 1]}, run_id="r")
    assert found["host.name"] == "höst"
    assert found["team"] == "z"
    assert found["gpus"] == (0, 1)
    assert found["dl.role"] == "critic"
    assert found["dl.run.id"] == "r"
    assert found["x"] == ""
    assert resource_attributes(environ)["team"] == "a,b=c"
    assert [record.name for record in caplog.records] == ["tachograph"]
    assert resource_attributes(environ, run_id="r", extra={"dl.run.id": "s"})["dl.run.id"] == "r"
    with pytest.raises(TypeError, match="'bad'"):
        resource_attributes({}, extra={"bad": object()})  # type: ignore[dict-item]


def test_a_restart_keeps_the_instance() -> None:
    """The instance id depends on run, role and rank alone, and is the documented UUID."""
    first = resource_attributes(RANK_3, host="a", pid=1)
    again = resource_attributes({**RANK_3, "TORCHELASTIC_RESTART_COUNT": "3"}, host="b", pid=2)
    other = resource_attributes({**RANK_3, "RANK": "2"}, host="a", pid=1)
    assert first["service.instance.id"] == again["service.instance.id"]
    assert first["service.instance.id"] != other["service.instance.id"]
    namespace = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
    assert first["service.instance.id"] == str(uuid.uuid5(namespace, "run=job-7/role=trainer/rank=3"))
    alone = resource_attributes({"TACHOGRAPH_RUN": "a/b"}, host="h", pid=1)
    assert alone["service.instance.id"] == str(uuid.uuid5(namespace, "run=a%2Fb/role=/host=h/node_rank="))
    given = resource_attributes({"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=mine"})
    assert given["service.instance.id"] == "mine"


def test_helpers_are_told_from_ranks() -> None:
    """Who finds a rank's mark with another pid is a helper, records only if asked, and then as itself."""
    mark = owner_mark(RANK_3, 100)
    assert mark == "3:2:100"
    marked = {**RANK_3, "TACHOGRAPH__OWNER": mark}
    assert not is_helper(RANK_3, 100)
    assert not is_helper(marked, 100)
    assert owner_mark(marked, 100) == mark
    assert is_helper(marked, 101)
    assert owner_mark(marked, 101) is None
    asked = {**marked, "TACHOGRAPH_HELPERS": "true"}
    assert not is_helper(asked, 101)
    assert not is_helper({**marked, "TACHOGRAPH_HELPERS": "1"}, 101)
    assert is_helper({**marked, "TACHOGRAPH_HELPERS": "false"}, 101)
    owner, helper = (resource_attributes(asked, pid=pid)["service.instance.id"] for pid in (100, 101))
    assert owner != helper
    assert owner == resource_attributes(RANK_3)["service.instance.id"]


def test_only_ranks_leave_a_mark() -> None:
    """A plain program, torchrun itself and a batch script of Slurm leave no mark; a task of srun does."""
    assert owner_mark({}, 1) is None
    assert owner_mark({"RANK": "0"}, 1, TORCHRUN) is None
    assert owner_mark({**TASK_5, "SLURM_STEP_ID": ""}, 1) is None
    assert owner_mark(TASK_5, 1) == "5:0:1"
    assert owner_mark({"RANK": "0", "WORLD_SIZE": "1"}, 7) == "0:0:7"


@pytest.mark.parametrize("mark", ["", "x", "1:2", "a:b:c", "1:2:", "1:2:3:4", ":"])
def test_what_is_no_mark_makes_no_helper(mark: str) -> None:
    """A mark that somebody else wrote never silences a process."""
    assert not descends_from_rank({**RANK_3, "TACHOGRAPH__OWNER": mark}, 9)


def test_labels_can_be_chosen() -> None:
    """The keys given become labels, as far as they are there; two of one name share the label."""
    attributes = {"a.b": "x", "a_b": "y", "n": 1, "on": True, "list": ("p", "q")}
    assert series_labels(attributes, ("a.b", "a_b", "n", "on", "list", "missing")) == {
        "a_b": "x;y",
        "n": "1",
        "on": "true",
        "list": '["p", "q"]',
    }


def test_the_store_is_where_the_user_or_xdg_says() -> None:
    """TACHOGRAPH_STORE, else XDG_STATE_HOME if absolute, else ~/.local/state."""
    home = {"HOME": "/home/u"}
    assert store({**home, "TACHOGRAPH_STORE": "/data/t", "XDG_STATE_HOME": "/s"}) == Path("/data/t")
    assert store({**home, "TACHOGRAPH_STORE": "~/t"}) == Path("/home/u/t")
    assert store({**home, "XDG_STATE_HOME": "/s"}) == Path("/s/tachograph")
    assert store({**home, "XDG_STATE_HOME": "s"}) == Path("/home/u/.local/state/tachograph")


@given(st.dictionaries(st.sampled_from([*RANK_3, *TASK_5, "OTEL_RESOURCE_ATTRIBUTES", "HOSTNAME"]), st.text()))
def test_no_environment_breaks_the_resource(environ: dict[str, str]) -> None:
    """Whatever the environment holds, the attributes are there and every text of them can be sent."""
    found = resource_attributes(environ, host="h\udc80")
    assert found["service.name"]
    assert found["host.name"] == "h\ufffd"
    assert all(key.encode() for key in found)
    assert all(isinstance(value, int | str) for value in found.values())
    assert all(value.encode() is not None for value in found.values() if isinstance(value, str))


@pytest.mark.parametrize(
    ("name", "environ", "expected"),
    [
        ("tachograph_torchrun", RANK_3, {"dl.rank": 3, "dl.role": "trainer", "dl.run.id": "job-7"}),
        ("tachograph_torchrun", {}, {}),
        ("tachograph_slurm", TASK_5, {"dl.rank": 5, "slurm.job.id": "991", "dl.run.id": "991.0"}),
        ("tachograph_slurm", {**TASK_5, "RANK": "0"}, {"slurm.job.id": "991"}),
        ("tachograph_slurm", {"SLURM_PROCID": "1"}, {}),
        ("tachograph_kubernetes", {"K8S_POD_NAME": "p"}, {"k8s.pod.name": "p"}),
        ("tachograph_kubernetes", {"POD_NAME": "p"}, {}),
    ],
)
def test_detectors_give_their_part(
    name: str, environ: dict[str, str], expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each detector is found by its entry point and says what its launcher told, and nothing elsewhere."""
    for key in [key for key in os.environ if key.startswith(("SLURM", "K8S", "KUBERNETES", "RANK", "TORCHELASTIC"))]:
        monkeypatch.delenv(key)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    (entry,) = entry_points(group="opentelemetry_resource_detector", name=name)
    found = dict(entry.load()().detect().attributes)
    assert {key: found.get(key) for key in expected} == expected
    assert bool(found) == bool(expected)
    if "dl.rank" in expected:
        assert found["service.instance.id"] == resource_attributes(environ)["service.instance.id"]


def test_detectors_work_in_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named in OTEL_EXPERIMENTAL_RESOURCE_DETECTORS, they give the SDK's resource a lasting instance id.

    Behind ``service_instance``: older SDKs put that one, whose ids are random, last where it is not named.
    """
    for key, value in RANK_3.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "service_instance,tachograph_torchrun,tachograph_slurm")
    found = Resource.create().attributes
    assert found["dl.rank"] == 3
    assert found["service.instance.id"] == resource_attributes(RANK_3)["service.instance.id"]


@pytest.mark.process
def test_the_resource_needs_no_sdk() -> None:
    """Telling who is speaking loads neither OpenTelemetry nor NumPy nor torch."""
    program = (
        "import json, sys; from tachograph.identity.resource import resource_attributes; resource_attributes();"
        "print(json.dumps([m for m in ('opentelemetry', 'numpy', 'torch') if m in sys.modules]))"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(said.stdout) == []

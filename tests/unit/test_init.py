"""``tachograph init``: every kind of files is written whole or not at all, and overwrites nothing by itself."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest
import yaml

from places import ROOT
from tachograph.cli import main
from tachograph.cli.init import KINDS
from tachograph.exporters.prometheus.target_file import target_files
from tachograph.identity.resource import store


def tree(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by their place."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "grafana"])
def test_a_kind_is_written_as_it_lies_in_the_repository(kind: str, tmp_path: Path) -> None:
    """Each file is the repository's, byte for byte but for the place of the store, and a script can be executed."""
    assert main(["init", kind, "--output", str(tmp_path / "new")]) == 0
    folders = KINDS[kind].folders
    for name, content in tree(tmp_path / "new").items():
        source = ROOT / folders[0] / name if len(folders) == 1 else ROOT / name
        expected = source.read_text()
        if kind == "prometheus":
            expected = expected.replace('"targets/*.json"', json.dumps(target_files(store(os.environ))))
        assert expected.encode() == content, name
        assert os.access(tmp_path / "new" / name, os.X_OK) == os.access(source, os.X_OK), name
    assert {path.name for path in tmp_path.iterdir()} == {"new"}  # nothing is left beside it


def test_links_between_the_files_lead_somewhere(tmp_path: Path) -> None:
    """The kinds of several folders keep the paths by which their files name each other."""
    for kind in ("compose", "kubernetes", "slurm", "systemd"):
        assert main(["init", kind, "--output", str(tmp_path / kind)]) == 0
        assert (tmp_path / kind / "deploy" / kind / "README.md").is_file()
        assert (tmp_path / kind / "collector-config" / "agent.yaml").is_file()


def test_nothing_is_overwritten_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file that is there already stops all of it, with 2 and a line that names it; ``--force`` writes them anew."""
    (tmp_path / "hub.yml").write_text("mine")
    assert main(["init", "prometheus", "--output", str(tmp_path)]) == 2
    assert "already has hub.yml; use --force" in capsys.readouterr().err
    assert tree(tmp_path) == {"hub.yml": b"mine"}
    assert main(["init", "prometheus", "--output", str(tmp_path), "--force"]) == 0
    assert tree(tmp_path)["hub.yml"] != b"mine"


def test_prometheus_reads_the_store_of_this_user_and_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files name the store by its absolute path, whatever is in it, and the targets of this host alone."""
    monkeypatch.setenv("TACHOGRAPH_STORE", "here 'and' \"there\"")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "prometheus", "--output", "new"]) == 0
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    for name in ("hub.yml", "prometheus.yml"):
        config = yaml.safe_load((tmp_path / "new" / name).read_text())
        (found,) = config["scrape_configs"][0]["file_sd_configs"][0]["files"]
        assert found == f"{tmp_path}/here 'and' \"there\"/targets/{host}-*.json"


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/tachograph"])
def test_a_place_that_cannot_be_written_to_gets_nothing(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in place of the folder, or a folder that refuses: 2, one line, and nothing half-written."""
    (tmp_path / "file").write_text("mine")
    assert main(["init", "grafana", "--output", str(tmp_path / out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert tree(tmp_path) == {"file": b"mine"}


def test_a_folder_where_a_file_belongs_leaves_nothing_behind(tmp_path: Path) -> None:
    """What was written already when it fails is taken back, with its folders."""
    (tmp_path / "rules" / "torchrun.yml").mkdir(parents=True)
    assert main(["init", "prometheus", "--output", str(tmp_path), "--force"]) == 2
    assert tree(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["rules"]


@pytest.mark.parametrize(
    ("given", "near"),
    [
        (["init", "grafana", "--ouput", "x"], "--output"),
        (["run", "--prt=1", "--", "true"], "--port"),
        (["runs", "list", "--filtr", "x"], "--filter"),
        (["top", "--onse"], "--once"),
        (["studio", "--wriet"], "--write"),
    ],
)
def test_a_wrong_option_names_the_nearest(given: list[str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command ends with 2 at an option that it has not, and names the nearest that it has."""
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert f"did you mean {near}?" in capsys.readouterr().err

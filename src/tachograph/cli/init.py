"""``tachograph init``: files for the programs around Tachograph, which come with the package.

Their source is ``collector-config`` and ``deploy`` of the repository: the build takes them into the wheel, beside this
file. In a checkout they are read where they are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tachograph.cli._command_line import WRONG_USAGE, fail, parser, reason
from tachograph.exporters.prometheus.target_file import target_files
from tachograph.identity.resource import store

_TARGETS = json.dumps("targets/*.json")  # in Prometheus's configurations: relative to the file
_HERE = Path(__file__).resolve().parent
_IN_THE_WHEEL = _HERE / "files"
_FEW = 3  # files that are named


class Kind(NamedTuple):
    """One kind of files.

    Attributes:
        about: their line in the help.
        folders: of the repository. A single one is written without its name; of several, each keeps its place, as their
            files name each other by relative paths.
        left_out: folders that are of use to the repository alone.
        hint: the next step, printed at the end.
    """

    about: str
    folders: tuple[str, ...]
    hint: str
    left_out: tuple[str, ...] = ()


_SCRAPE = "prometheus --config.file={out}/hub.yml, beside tachograph run or tachograph hub"
KINDS: Mapping[str, Kind] = {
    "collector": Kind(
        "configurations of the OpenTelemetry Collector: one machine, an agent on each node, a gateway and its layers",
        ("collector-config",),
        "otelcol-contrib --config={out}/local.yaml",
    ),
    "prometheus": Kind(
        "configurations of Prometheus, with recording rules and alerts", ("deploy/prometheus",), _SCRAPE, ("tests",)
    ),
    "grafana": Kind(
        "dashboards, and how Grafana finds them",
        ("deploy/grafana",),
        "copy {out}/provisioning to Grafana's, and set its path; tachograph dashboards --out DIR does both",
    ),
    "compose": Kind(
        "one machine with Docker Compose: a job, collector, Prometheus, InfluxDB, Grafana, hub",
        ("deploy/compose", "collector-config", "deploy/prometheus", "deploy/grafana"),
        "{out}/deploy/compose/README.md. The image is built in a checkout: docker build there, or name one of yours",
    ),
    "kubernetes": Kind(
        "bases and overlays for kustomize: daemonset, sidecar, PyTorchJob, PodMonitor",
        ("deploy/kubernetes", "collector-config"),
        "kubectl apply -k {out}/deploy/kubernetes/overlays/daemonset; {out}/deploy/kubernetes/README.md",
    ),
    "slurm": Kind(
        "a batch script, and its part on each node",
        ("deploy/slurm", "collector-config"),
        "sbatch {out}/deploy/slurm/train.sbatch train.py; {out}/deploy/slurm/README.md",
    ),
    "systemd": Kind(
        "units for an agent on each node, and for a hub",
        ("deploy/systemd", "collector-config"),
        "{out}/deploy/systemd/README.md",
    ),
}


def command(arguments: Sequence[str]) -> int:
    """Write the files of a kind, and return the exit code: 2 where they cannot be written, and none is then."""
    options = _parser().parse_args(arguments)
    kind: Kind = KINDS[options.kind]
    out: Path = options.out or Path(f"tachograph-{options.kind}")
    files = dict(_files(kind))
    try:
        _check(out, files, force=options.force)
        _write(out, files, target_files(store(os.environ)) if options.kind == "prometheus" else None)
    except (OSError, ValueError) as error:
        return fail("init", reason(error), WRONG_USAGE)
    print(f"{len(files)} files written to {out}\nnext: {kind.hint.format(out=out)}")  # noqa: T201 - its answer
    return 0


def _files(kind: Kind) -> Iterator[tuple[str, Path]]:
    """Yield the files of a kind, each by its place below the folder that they are written to."""
    source = _IN_THE_WHEEL if _IN_THE_WHEEL.is_dir() else _HERE.parents[2]
    for folder in kind.folders:
        top = source / folder
        for path in sorted(top.rglob("*")):
            within = path.relative_to(top)
            if path.is_file() and within.parts[0] not in kind.left_out:
                yield (within if len(kind.folders) == 1 else folder / within).as_posix(), path


def _check(out: Path, files: Mapping[str, Path], *, force: bool) -> None:
    """Check that each file has its place.

    Raises:
        ValueError: some are there already, or a file is where a folder has to be.
    """
    for parent in {place for name in files for place in (out / name).parents}:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{parent} is a file; --out names a folder")
    there = [name for name in files if (out / name).exists()]
    if there and not force:
        more = f" and {len(there) - _FEW} more" if len(there) > _FEW else ""
        raise ValueError(f"{out} has {', '.join(there[:_FEW])}{more} already; --force writes them anew")


def _write(out: Path, files: Mapping[str, Path], targets: str | None) -> None:
    """Write all files, or none: they are written beside their place, and moved there once all of them are.

    Args:
        out: the folder.
        files: their sources, by their place in it.
        targets: the pattern of this host's target files, which Prometheus's configurations name; None to leave the
            files as they are.
    """
    existing = next(parent for parent in (out, *out.absolute().parents) if parent.is_dir())
    placed: list[Path] = []
    made: list[Path] = []
    with tempfile.TemporaryDirectory(prefix=".tachograph-init-", dir=existing) as scratch:
        for name, source in files.items():
            fresh = Path(scratch, name)
            fresh.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, fresh)  # with its mode: a script stays one
            if targets is not None and source.suffix == ".yml":
                fresh.write_text(source.read_text("utf-8").replace(_TARGETS, json.dumps(targets)), "utf-8")
        try:
            for name in files:
                target = out / name
                made += _folders(target.parent)
                if not target.exists():
                    placed.append(target)
                os.replace(Path(scratch, name), target)  # noqa: PTH105 - as the rest of the tree writes it
        except OSError:
            _take_back(placed, made)
            raise


def _folders(folder: Path) -> list[Path]:
    """Make a folder and those above it, and return the new ones."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _take_back(placed: Sequence[Path], made: Sequence[Path]) -> None:
    for path in placed:
        with suppress(OSError):
            path.unlink()
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def _parser() -> argparse.ArgumentParser:
    kinds = "\n".join(f"  {name:11} {kind.about}" for name, kind in KINDS.items())
    made = parser("init", "Write files for the programs around Tachograph: configurations, rules, dashboards, units.")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.epilog = f"kinds:\n{kinds}"
    add = made.add_argument
    add("kind", choices=tuple(KINDS), help="the kind of files")
    add("--out", type=Path, metavar="DIR", help="the folder to write to (default: tachograph-KIND, here)")
    add("--force", action="store_true", help="write files anew that are there already")
    return made

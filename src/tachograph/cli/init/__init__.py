"""``tachograph init KIND``: write configuration files that come with the package.

Their source is ``collector-config`` and ``deploy`` of the repository; the build copies them into the wheel. A checkout
reads them from there.
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

from tachograph.cli.command_line import (
    FAILED,
    WRONG_USAGE,
    Command,
    Parser,
    add_store,
    dispatch,
    fail,
    group_parser,
    parser,
    reason,
)
from tachograph.cli.init import grafana
from tachograph.exporters.prometheus.target_file import target_files
from tachograph.identity.environment import store

_CLI = Path(__file__).resolve().parents[1]
_IN_THE_WHEEL = _CLI / "files"
_FEW = 3  # files that a message names
_TARGETS = json.dumps("targets/*.json")  # in Prometheus configurations: relative to the file


class Kind(NamedTuple):
    """One kind of files.

    Attributes:
        summary: its line in the help, in the imperative.
        folders: of the repository. A single one is written without its name; of several, each keeps its place, because
            their files name each other by relative paths.
        hint: the next step, printed at the end.
        left_out: folders that only the repository needs.
    """

    summary: str
    folders: tuple[str, ...]
    hint: str
    left_out: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "prometheus": Kind(
        "Write Prometheus configurations with recording rules and alerts",
        ("deploy/prometheus",),
        "run 'prometheus --config.file={out}/hub.yml'; it finds the jobs that 'tachograph run' starts on this machine",
        ("tests",),
    ),
    "grafana": Kind(
        "Write Grafana dashboards and the provisioning files that load them",
        (),
        "copy {out}/provisioning to Grafana's configuration folder, for example /etc/grafana",
    ),
    "collector": Kind(
        "Write OpenTelemetry Collector configurations: one machine, an agent per node, a gateway",
        ("collector-config",),
        "otelcol-contrib --config={out}/local.yaml",
    ),
    "compose": Kind(
        "Write a Docker Compose project: job, collector, Prometheus, InfluxDB, Grafana, hub",
        ("deploy/compose", "collector-config", "deploy/prometheus", "deploy/grafana"),
        "read {out}/deploy/compose/README.md (build the image in a checkout, or name your own)",
    ),
    "kubernetes": Kind(
        "Write Kustomize bases and overlays: DaemonSet, sidecar, PyTorchJob, PodMonitor",
        ("deploy/kubernetes", "collector-config"),
        "kubectl apply -k {out}/deploy/kubernetes/overlays/daemonset (see {out}/deploy/kubernetes/README.md)",
    ),
    "slurm": Kind(
        "Write a batch script and the script that runs on each node",
        ("deploy/slurm", "collector-config"),
        "sbatch {out}/deploy/slurm/train.sbatch train.py (see {out}/deploy/slurm/README.md)",
    ),
    "systemd": Kind(
        "Write systemd units for an agent on each node and for a hub",
        ("deploy/systemd", "collector-config"),
        "read {out}/deploy/systemd/README.md",
    ),
}
_COMMANDS = {name: Command(__name__, kind.summary) for name, kind in KINDS.items()}


def command(arguments: Sequence[str]) -> int:
    """Write the files of a kind, and return the exit code: 2 if they cannot be written, and then none is."""
    if not arguments or arguments[0] not in KINDS:
        return dispatch("tachograph init", _COMMANDS, arguments, build_parser())
    name = arguments[0]
    options = build_kind_parser(name).parse_args(arguments[1:])
    out: Path = options.output or Path(f"tachograph-{name}")
    try:
        contents, problems = _contents(name, options, out)
        _check(out, contents, force=options.force)
        _write(out, contents)
    except (LookupError, OSError, ValueError) as error:
        return fail(f"init {name}", reason(error), WRONG_USAGE)
    print(f"wrote {len(contents)} files to {out}\nnext: {KINDS[name].hint.format(out=out)}")  # noqa: T201 - its answer
    for problem in problems:
        fail(f"init {name}", problem, FAILED)
    return FAILED if problems else 0


def _contents(name: str, options: argparse.Namespace, out: Path) -> tuple[dict[str, Path | str], list[str]]:
    """Return each file by its path below the output folder, to copy or as text, and in words what they lack."""
    if name == "grafana":
        return grafana.contents(options, out)
    files: dict[str, Path | str] = dict(_files(KINDS[name]))
    if name == "prometheus":
        targets = json.dumps(target_files(options.store or store(os.environ)))
        for place, path in _files(KINDS[name]):
            if path.suffix == ".yml" and _TARGETS in (text := path.read_text(encoding="utf-8")):
                files[place] = text.replace(_TARGETS, targets)
    return files, []


def _files(kind: Kind) -> Iterator[tuple[str, Path]]:
    """Yield the files of a kind, each by its place below the folder that they are written to."""
    source = _IN_THE_WHEEL if _IN_THE_WHEEL.is_dir() else _CLI.parents[2]
    for folder in kind.folders:
        top = source / folder
        for path in sorted(top.rglob("*")):
            within = path.relative_to(top)
            if path.is_file() and within.parts[0] not in kind.left_out:
                yield (within if len(kind.folders) == 1 else folder / within).as_posix(), path


def _check(out: Path, files: Mapping[str, Path | str], *, force: bool) -> None:
    """Check that each file has its place.

    Raises:
        ValueError: some are there already, or a file is where a folder has to be.
    """
    for parent in {place for name in files for place in (out / name).parents}:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{parent} is a file; --output must name a folder")
    there = [name for name in files if (out / name).exists()]
    if there and not force:
        more = f" and {len(there) - _FEW} more" if len(there) > _FEW else ""
        raise ValueError(f"{out} already has {', '.join(there[:_FEW])}{more}; use --force to replace them")


def _write(out: Path, files: Mapping[str, Path | str]) -> None:
    """Write all files, or none: they are written beside their place, and moved there once all of them are."""
    existing = next(parent for parent in (out, *out.absolute().parents) if parent.is_dir())
    placed: list[Path] = []
    made: list[Path] = []
    with tempfile.TemporaryDirectory(prefix=".tachograph-init-", dir=existing) as scratch:
        for name, source in files.items():
            fresh = Path(scratch, name)
            fresh.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, str):
                fresh.write_text(source, encoding="utf-8")
            else:
                shutil.copy(source, fresh)  # with its mode, so that a script stays executable
        try:
            for name in files:
                target = out / name
                made += _folders(target.parent)
                if not target.exists():
                    placed.append(target)
                os.replace(Path(scratch, name), target)  # noqa: PTH105 - as the rest of the tree writes it
        except OSError:
            _undo(placed, made)
            raise


def _folders(folder: Path) -> list[Path]:
    """Make a folder and those above it, and return the new ones."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _undo(placed: Sequence[Path], made: Sequence[Path]) -> None:
    for path in placed:
        with suppress(OSError):
            path.unlink()
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser whose help lists the kinds."""
    return group_parser("tachograph init", _COMMANDS, "Write configuration files for the programs around Tachograph.")


def build_kind_parser(name: str) -> Parser:
    """Return the parser of one kind."""
    built = parser(f"init {name}", f"{KINDS[name].summary}.")
    add = built.add_argument
    add("-o", "--output", type=Path, metavar="DIR", help=f"The folder to write to (default: tachograph-{name})")
    add("--force", action="store_true", help="Replace files that exist")
    if name == "grafana":
        grafana.add_options(built)
    if name == "prometheus":
        add_store(built, "The store whose runs Prometheus scrapes")
    return built


def subcommand_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each kind by its name."""
    return {name: build_kind_parser(name) for name in KINDS}

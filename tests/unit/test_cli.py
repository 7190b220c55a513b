"""``tachograph``: finds its commands, and says what there is where it was asked for something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tachograph
from programs import environment
from tachograph.cli import main


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("hubb", "did you mean 'hub'?"),
        ("RUN", "did you mean 'run'?"),
        ("show", "did you mean 'runs show'?"),
        ("list", "did you mean 'runs list'?"),
        ("xyz", "the commands are run, studio, "),
        ("", "the commands are"),
    ],
)
def test_an_unknown_command_is_said(given: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that there is not ends with 2 and one line that names the nearest one."""
    assert main([given, "--port", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert repr(given) in said.err
    assert hint in said.err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it ends with 2 and shows, on stderr, which commands there are."""
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "\n  run   " in said.err
    assert "\n  hub   " in said.err


@pytest.mark.parametrize(
    ("argument", "expected"), [("--version", f"tachograph {tachograph.__version__}\n"), ("--help", "run")]
)
def test_help_and_version(argument: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help and --version answer on stdout, and end with 0."""
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out


def test_an_unknown_option_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that belongs to no command ends with 2."""
    with pytest.raises(SystemExit) as ended:
        main(["--port", "1"])
    assert ended.value.code == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["hub", "run", "studio", "runs"])
def test_every_command_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command explains itself with --help."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"tachograph {name}" in capsys.readouterr().out


@pytest.mark.process
def test_it_is_a_module_and_a_program(tmp_path: Path) -> None:
    """``python -m tachograph`` and the installed ``tachograph`` are the same."""
    program = Path(sys.executable).with_name("tachograph")
    lines = [[sys.executable, "-m", "tachograph", "--version"], [str(program), "--version"]]
    for line in lines[: 1 + program.exists()]:
        done = subprocess.run(line, env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == f"tachograph {tachograph.__version__}\n"


@pytest.mark.process
def test_asking_for_help_loads_neither_servers_nor_the_sdk(tmp_path: Path) -> None:
    """The command line itself is light: what a command needs is loaded by that command."""
    program = (
        "import sys, contextlib\nfrom tachograph.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['hub', '--help'])\n"
        "heavy = {'uvicorn', 'starlette', 'torch', 'numpy', 'opentelemetry.sdk'} & set(sys.modules)\n"
        "print('loaded', sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == "loaded []\n"


@pytest.mark.process
def test_a_hub_that_forwards_nothing_loads_nothing_that_sends(tmp_path: Path) -> None:
    """A hub starts with neither ``requests`` nor the SDK, ``tachograph run`` with no instrumentor."""
    program = (
        "import sys\nimport tachograph.cli.run, tachograph.hub.lifetime, tachograph.hub.server\n"
        "heavy = {'requests', 'urllib3', 'grpc', 'numpy', 'opentelemetry.sdk', 'opentelemetry.instrumentation'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"

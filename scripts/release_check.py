"""Everything that a release must pass, before its tag: ``make release-check``.

Two builds of sdist and wheel are the same, bit for bit; ``twine check`` and ``check-wheel-contents`` are content; each
installs into a fresh environment of every CPython that this machine has, records and hands out its files there; the
sdist tests itself; every dependency has a licence that is allowed. A table is printed at the end.
"""
# ruff: noqa: INP001, S603 - a script, which runs programs

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
_EXTRAS = "tachograph[all]"
# Of the words of a licence's name; the weak copyleft of MPL-2.0 is on the files of its package alone.
_ALLOWED = ("apache", "bsd", "mit", "psf", "python", "mpl", "mozilla", "isc", "unlicense", "zlib", "0bsd", "nvidia")
_RECORDS = """
import json, sys, tachograph
tachograph.put_metric("loss", 0.5, "training")
with tachograph.testing.capture() as captured:
    tachograph.put_metric("loss", 0.25, "training")
assert captured.value("loss", "training") == 0.25
with tachograph.start(prometheus_port=0) as pipeline:
    assert pipeline.metrics_url
"""
_LICENCES = """
import json
from importlib.metadata import distributions
found = {}
for each in distributions():
    about = each.metadata
    lines = [line for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    classified = [line.rpartition(":: ")[2] for line in lines]
    text = about.get("License-Expression") or " / ".join(classified) or (about.get("License") or "").strip()
    found[about["Name"]] = text.splitlines()[0][:80] if text else ""
print(json.dumps(found))
"""


class _Failed(Exception):  # noqa: N818 - an outcome
    pass


def _run(*command: str | Path, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output; a failure is one, with its last lines."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise _Failed(f"{' '.join(str(word) for word in command)[:200]}\n{last}")
    return done.stdout


def _interpreter(version: str) -> Path | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python")) or [shutil.which(f"python{version}")]
    return Path(found[-1]) if found[-1] else None


def _build(into: Path) -> list[Path]:
    """Build sdist and wheel, as a bare machine would, and return both."""
    seconds = _run("git", "log", "-1", "--format=%ct").strip() if (ROOT / ".git").exists() else "1735689600"
    _run(sys.executable, "-m", "build", "--outdir", into, ROOT, environ={"SOURCE_DATE_EPOCH": seconds})
    return sorted(into.iterdir())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Check:
    """The parts of the check, on builds in a scratch folder.

    Args:
        scratch: an empty folder.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.rows: list[tuple[str, str]] = []
        self.failed = False
        self._built: list[Path] = []

    def part(self, name: str, checked: Callable[[], str]) -> None:
        """Run a part, and keep its outcome."""
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        try:
            outcome = checked()
        except _Failed as failure:
            sys.stdout.write(f"{failure}\n")
            self.failed, outcome = True, "FAILED"
        self.rows.append((name, outcome))

    def builds(self) -> str:
        """Build twice; the second has to be the first, bit for bit."""
        self._built, again = _build(self._scratch / "one"), _build(self._scratch / "two")
        different = [a.name for a, b in zip(self._built, again, strict=True) if _digest(a) != _digest(b)]
        if different:
            raise _Failed(f"differ from build to build: {different}")
        return ", ".join(f"{path.name} {_digest(path)[:16]} ({path.stat().st_size // 1024:,} KiB)" for path in again)

    def metadata(self) -> str:
        """Have twine look at both."""
        _run(sys.executable, "-m", "twine", "check", "--strict", *self._built)
        return "passed"

    def contents(self) -> str:
        """Have check-wheel-contents look at the wheel."""
        # W002: files of `tachograph init` may be alike; W009 and W101 are of packages that are laid out differently.
        _run(Path(sys.executable).with_name("check-wheel-contents"), "--ignore", "W002", self._of(".whl"))
        return "passed"

    def installs(self, version: str, ending: str) -> str:
        """Install into a fresh environment, record there, and hand out the files."""
        interpreter = _interpreter(version)
        if interpreter is None:
            return "NOT TESTED: not on this machine"
        where = self._scratch / f"{version}{ending}"
        python = self._environment(where, interpreter, str(self._of(ending)))
        _run(python, "-W", "error", "-c", _RECORDS, cwd=self._scratch)
        _run(where / "bin" / "tachograph", "init", "compose", "--output", where / "files", cwd=self._scratch)
        if not (where / "files" / "collector-config" / "gateway.yaml").is_file():
            raise _Failed("tachograph init wrote no gateway.yaml")
        return _run(python, "--version").strip() + ": installed, records, hands out its files"

    def sdist_tests_itself(self) -> str:
        """Unpack the sdist, and run tests of it there, on its own sources."""
        with tarfile.open(self._of(".tar.gz")) as packed:
            packed.extractall(self._scratch / "sdist", filter="data")
        (unpacked,) = (self._scratch / "sdist").iterdir()
        tests = [f"tests/unit/test_{name}.py" for name in ("cli", "init", "floors", "metric_names", "registry")]
        said = _run(
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests),
            cwd=unpacked,
            environ={"PYTHONPATH": str(unpacked / "src")},
        )
        return next(line.strip("= ") for line in reversed(said.splitlines()) if " passed" in line)

    def licences(self) -> str:
        """Look at the licence of every package that an installation with all extras brings."""
        python = self._environment(self._scratch / "all", Path(sys.executable), f"{self._of('.whl')}[all]")
        found: dict[str, str] = json.loads(_run(python, "-c", _LICENCES))
        width = max(map(len, found))
        for name, licence in sorted(found.items(), key=lambda item: item[0].lower()):
            sys.stdout.write(f"   {name:{width}} {licence}\n")
        odd = [name for name, licence in found.items() if not any(word in licence.lower() for word in _ALLOWED)]
        if odd:
            raise _Failed(f"no licence that is allowed: {', '.join(odd)}")
        return f"{len(found)} packages, all allowed"

    def _of(self, ending: str) -> Path:
        return next(path for path in self._built if path.name.endswith(ending))

    @staticmethod
    def _environment(where: Path, interpreter: Path, package: str) -> Path:
        uv = (sys.executable, "-m", "uv")
        _run(*uv, "venv", "--quiet", "--python", interpreter, where)
        _run(*uv, "pip", "install", "--quiet", "--python", where / "bin" / "python", package)
        return where / "bin" / "python"


def main() -> int:
    """Run all parts, print the table, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="tachograph-release-") as folder:
        check = Check(Path(folder))
        check.part("two builds, one hash", check.builds)
        if not check.failed:
            check.part("twine check", check.metadata)
            check.part("check-wheel-contents", check.contents)
            check.part("the sdist tests itself", check.sdist_tests_itself)
            for ending in (".whl", ".tar.gz"):
                for version in VERSIONS:
                    check.part(f"{version} from {ending}", lambda v=version, e=ending: check.installs(v, e))  # type: ignore[misc]
            check.part("licences", check.licences)
    width = max(len(name) for name, _ in check.rows)
    sys.stdout.write("\n" + "".join(f"{name:{width}}  {outcome}\n" for name, outcome in check.rows))
    return int(check.failed)


if __name__ == "__main__":
    sys.exit(main())

"""The launch of a run: its command line, folder, host, versions and git commit, and its tags and notes.

``tachograph run`` notes it and hands it to the hub that it starts, which completes it and keeps it in the run's file:
it goes nowhere else, and no rank spends time on it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from tachograph.identity.environment import Setting, clean
from tachograph.identity.masking import masked_arguments
from tachograph.recording.points import AttributeValue

HANDED = "TACHOGRAPH__LAUNCH"  # in the environment of the hub; a variable of 128 KiB is the kernel's bound
RECORD_PROGRAM = "TACHOGRAPH_RECORD_PROGRAM"
MOST_TAGS = 64
MOST_NOTES = 10_000  # characters
GIT_TIMEOUT = 2.0  # seconds for all questions to git together
_TAG = 64  # characters
_ARGV = 8192  # characters of all arguments together
_FOLDER = 1024
_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([\w.]+)['\"]", re.MULTILINE)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
# Neither locks, nor prompts, nor downloads of a partial clone: git(1), "Environment Variables".
_QUIETLY = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


class Launch(NamedTuple):
    """One start of a run.

    Attributes:
        time_unix_nano: the time of it.
        host: the name of the machine.
        program: facts by name, masked: ``argv``, ``cwd``, ``host``, ``python``, ``torch``, ``cuda``, ``git.commit``,
            ``git.dirty``; those that are not known are left out. Empty where none is to be kept.
        tags: of the run.
        notes: of the run; empty for none.
    """

    time_unix_nano: int
    host: str
    program: Mapping[str, AttributeValue]
    tags: tuple[str, ...]
    notes: str

    def handed(self) -> dict[str, str]:
        """Return the environment variable that hands it to the hub, in letters of any locale."""
        said = json.dumps(self, ensure_ascii=False).encode()
        return {HANDED: base64.b64encode(zlib.compress(said, 1)).decode()}

    def completed(self, environ: Mapping[str, str]) -> Launch:
        """Return it with versions and git's commit, unless no fact is to be kept; it may take :data:`GIT_TIMEOUT`.

        Args:
            environ: of the job: its PATH, and the variables of git.
        """
        if not self.program:
            return self
        argv, folder = self.program.get("argv"), self.program.get("cwd")
        more: dict[str, AttributeValue] = {}
        if isinstance(argv, Sequence) and argv and _runs_our_python(str(argv[0]), environ):
            more |= versions()
        if isinstance(folder, str):
            more |= git_state(Path(folder), environ)
        return self._replace(program={**self.program, **more})


def launch_of(command: Sequence[str], *, records_program: bool, tags: tuple[str, ...], notes: str) -> Launch:
    """Return the launch of a job, now, in the working directory.

    Args:
        command: of the job.
        records_program: keep facts about its program.
        tags: of the run.
        notes: of the run.
    """
    host = clean(socket.gethostname())
    program: dict[str, AttributeValue] = {}
    if records_program:
        program = {"argv": _bounded(masked_arguments(map(clean, command))), "host": host}
        with contextlib.suppress(OSError):  # the folder was deleted
            program["cwd"] = clean(str(Path.cwd()))[:_FOLDER]
    return Launch(time.time_ns(), host, program, tags, notes)


def handed_launch(environ: Mapping[str, str]) -> Launch | None:
    """Return the launch that ``tachograph run`` has handed over; None where there is none.

    Raises:
        ValueError: it is not legible.
    """
    given = environ.get(HANDED)
    if not given:
        return None
    try:
        moment, host, program, tags, notes = json.loads(zlib.decompress(base64.b64decode(given)))
        return Launch(int(moment), str(host), dict(program), tuple(map(str, tags)), str(notes))
    except (ValueError, TypeError, RecursionError, zlib.error):
        raise Setting(HANDED, given).wrong("it is set by `tachograph run` and must not be set by hand") from None


def tags_of(given: Setting) -> tuple[str, ...]:
    """Return the tags of a run, each once.

    Raises:
        TypeError: it is no collection of strings.
        ValueError: there are more than 64, or one is empty, longer than 64 characters, or has control characters.
    """
    if isinstance(given.value, str | bytes | Mapping) or not isinstance(given.value, Collection):
        raise given.wrong_type("a list of tags")
    tags = []
    for each in given.value:
        one = Setting(given.source, each)
        tag = one.string()
        if len(tag) > _TAG:
            raise one.wrong(f"a tag has at most {_TAG} characters")
        if not tag.isprintable():
            raise one.wrong("a tag can contain only printable characters")
        tags.append(tag)
    found = tuple(dict.fromkeys(tags))
    if len(found) > MOST_TAGS:
        raise ValueError(f"{given.source} has {len(found)} tags: a run has at most {MOST_TAGS}")
    return found


def notes_of(given: Setting) -> str:
    """Return the notes of a run, control characters replaced.

    Raises:
        TypeError: it is no string.
        ValueError: it is longer than 10,000 characters.
    """
    if not isinstance(given.value, str):
        raise given.wrong_type("a string")
    if len(given.value) > MOST_NOTES:
        raise ValueError(f"{given.source} has {len(given.value)} characters: notes have at most {MOST_NOTES:,}")
    text = clean(given.value).replace("\r\n", "\n").strip()
    return "".join(
        each if each in "\n\t" or each.isprintable() else " " if each.isspace() else "\ufffd" for each in text
    )


def versions() -> dict[str, str]:
    """Return the versions of Python, and of torch and its CUDA where they are installed; nothing is imported for it."""
    from importlib.metadata import PackageNotFoundError, distribution

    found = {"python": sys.version.partition(" ")[0]}
    try:
        torch = distribution("torch")
        found["torch"] = str(torch.version)
        said = Path(str(torch.locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except (PackageNotFoundError, OSError, ValueError):
        return found
    cuda = _CUDA.search(said)
    return {**found, "cuda": cuda[1]} if cuda else found


def git_state(folder: Path, environ: Mapping[str, str], *, timeout: float = GIT_TIMEOUT) -> dict[str, AttributeValue]:
    """Return the commit of a working tree, and whether tracked files differ from it, as far as git tells.

    Files that git does not track make no tree dirty, as for ``git describe --dirty``: to look for them takes long where
    data lies in the tree.

    Args:
        folder: in the tree.
        environ: of git.
        timeout: seconds for all questions together.
    """
    deadline = time.monotonic() + timeout
    commit = (_git(("rev-parse", "--verify", "HEAD"), folder, environ, deadline) or "").strip()
    if not _COMMIT.fullmatch(commit):
        return {}
    # A monitor of the file system would be a process that stays.
    status = ("-c", "core.fsmonitor=false", "status", "--porcelain", "--untracked-files=no")
    changes = _git(status, folder, environ, deadline)
    return {"git.commit": commit} if changes is None else {"git.commit": commit, "git.dirty": bool(changes.strip())}


def _git(arguments: Sequence[str], folder: Path, environ: Mapping[str, str], deadline: float) -> str | None:
    """Return the output of git; None where there is no git, where it fails, and where it is not ready in time."""
    import subprocess

    if time.monotonic() >= deadline:
        return None
    try:
        process = subprocess.Popen(  # noqa: S603 - arguments of ours
            ["git", *arguments],  # noqa: S607 - the user's own git
            cwd=folder,
            env={**environ, **_QUIETLY},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its children end with it
        )
    except (OSError, ValueError):
        return None
    with process:
        try:
            said, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            return None
    return said.decode("utf-8", "replace") if process.returncode == 0 else None


def _runs_our_python(program: str, environ: Mapping[str, str]) -> bool:
    """Tell whether a program is not another Python than this one, whose packages are not known here."""
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None or not PurePath(path).name.lower().startswith(("python", "pypy")):
        return True
    # Not the interpreters themselves: that of a virtual environment is a link to another one.
    return bool(sys.executable) and Path(path).parent.resolve() == Path(sys.executable).parent.resolve()


def _bounded(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, cut where they are too long together."""
    found: list[str] = []
    left = _ARGV
    for place, argument in enumerate(arguments):
        if len(argument) >= left:
            more = len(arguments) - place - 1
            return [*found, f"{argument[:left]}…", *([f"… and {more} more"] if more else [])]
        found.append(argument)
        left -= len(argument) + 1
    return found


def described(attributes: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the tags and the notes in an event ``tachograph.run``; of either none where it cannot be a run's."""
    tags: tuple[str, ...] = ()
    notes = ""
    with contextlib.suppress(TypeError, ValueError):
        tags = tags_of(Setting("tags=", attributes.get("tags", ())))
    with contextlib.suppress(TypeError, ValueError):
        notes = notes_of(Setting("notes=", attributes.get("notes", "")))
    return tags, notes

"""Classes of ``tachograph.integrations`` without their library, and the handler that needs none."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tachograph.testing
from tachograph.instrumentation.bridges.trainers import note
from tachograph.integrations.torchtitan import register_tachograph_handler
from tachograph.recording.summary import ValueSummary


@pytest.mark.parametrize(
    ("module", "root", "install"),
    [
        ("transformers", "transformers", "'transformers'"),
        ("lightning", "lightning", "'lightning'"),
        ("accelerate", "accelerate", "'accelerate'"),
        ("ray", "ray", r"'ray\[train\]'"),
    ],
)
def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, module: str, root: str, install: str) -> None:
    """A library that is not installed is an ImportError with the command that installs it."""
    monkeypatch.delitem(sys.modules, f"tachograph.integrations.{module}", raising=False)
    for loaded in [name for name in sys.modules if name.partition(".")[0] in (root, "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, loaded)
    for missing in (root, "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, missing, None)  # as importlib sees a module that is not there
    with pytest.raises(ImportError, match=f"requires {root}, which is not installed: pip install {install}"):
        import_module(f"tachograph.integrations.{module}")


def test_an_error_within_a_library_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library that is installed and lacks another one is not told to be missing itself."""
    monkeypatch.delitem(sys.modules, "tachograph.integrations.ray", raising=False)
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, loaded)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("import a_library_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'a_library_that_is_not_there'"):
        import_module("tachograph.integrations.ray")


def test_torchtitans_records() -> None:
    """Scalars and the ends of spans are recorded; other records, and values that are none, disturb nothing.

    The fields are those of torchtitan's ``event_extra``; test_integrations.py has torchtitan itself.
    """
    logger = logging.Logger("structured", logging.INFO)  # noqa: LOG001 - known to nobody else
    register_tachograph_handler(structured_logger=logger, rank=0, source="titan", output_dir="")
    with tachograph.testing.capture() as captured:
        for step, value in ((1, 2.5), (2, 1.5)):
            logger.info("", extra={"log_type_name": "metric_value", "event_name": "loss", "step": step, "value": value})
        logger.info("", extra={"log_type_name": "optim_start", "step": 1, "value": None})
        logger.info("", extra={"log_type_name": "optim_end", "step": 1, "value": 12.0})
        logger.info("", extra={"log_type_name": "optim_end", "step": 1, "value": "no number"})
        logger.info("plain text")
        assert captured.value("loss", "titan") == 1.5
        duration = captured.value("optim.duration", "titan")
        assert isinstance(duration, ValueSummary)
        assert (duration.count, duration.total.value()) == (1, 12.0)
        assert captured.names("titan") == ["loss", "optim.duration"]


def test_an_error_of_a_note_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A call that cannot be noted is counted and said once; the library that made it never notices."""
    with tachograph.testing.capture() as captured:
        for _ in range(2):
            note("a trainer", "config", 7)
        assert captured.value("tachograph.errors", "tachograph", where="bridge a trainer") == 2
    assert len([line for line in caplog.messages if line.startswith("a trainer: could not record a call")]) == 1

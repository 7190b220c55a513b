"""Post-import hooks: modules are told of after their import, and Python's imports stay what they are."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from front_door import errors
from programs import environment, run, write
from tachograph.identity.import_hooks import ImportHook, ImportWatch


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a package ``hooked`` with the modules ``a`` and ``b``, importable in this test."""
    folder = tmp_path / "hooked"
    folder.mkdir()
    for name in ("__init__", "a", "b"):
        write(folder, "from json import dumps\nvalue = 1\n", f"{name}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield folder
    assert sys.meta_path == before
    for name in [name for name in sys.modules if name.partition(".")[0] == "hooked"]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_watch_tells_of_each_module_that_is_asked_for() -> None:
    """Modules imported before, later and again are told of, complete and with their own loader; others are not."""
    told: list[tuple[str, str]] = []
    importlib.import_module("hooked.a")

    def callback(module: ModuleType) -> None:
        told.append((module.__name__, type(module.__loader__).__name__))
        assert module.value == 1

    watch = ImportWatch(lambda name: name.startswith("hooked."), callback)
    module = importlib.import_module("hooked.b")
    importlib.import_module("hooked.b")
    importlib.reload(module)
    assert told == [(name, "SourceFileLoader") for name in ("hooked.a", "hooked.b", "hooked.b")]
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    watch.close()
    importlib.reload(module)
    assert len(told) == 3
    watch.close()


@pytest.mark.usefixtures("package")
def test_any_number_of_hooks_on_one_module() -> None:
    """Several hooks and watches on the same module are all told, in the order in which they would load it."""
    told: list[str] = []
    hooks = [ImportHook("hooked.a", lambda _, name=name: told.append(name)) for name in ("first", "second")]
    watches = [ImportWatch(lambda _: True, lambda m: told.append(m.__name__)) for _ in range(2)]
    told.clear()
    importlib.import_module("hooked.a")
    assert sorted(told) == ["first", "hooked", "hooked", "hooked.a", "hooked.a", "second"]
    for watch in watches:
        watch.close()
    for hook in hooks:
        hook.cancel()


@pytest.mark.usefixtures("package")
def test_what_a_callback_raises_breaks_no_import(caplog: pytest.LogCaptureFixture) -> None:
    """The import succeeds; the error is counted and logged."""
    before = errors("instrumentation")

    def fails(_module: ModuleType) -> None:
        raise RuntimeError("no")

    watch = ImportWatch("hooked.a".__eq__, fails)
    assert importlib.import_module("hooked.a").value == 1
    watch.close()
    assert errors("instrumentation") == before + 1
    assert "could not instrument hooked.a" in caplog.text


@pytest.mark.usefixtures("package")
def test_looking_is_no_import() -> None:
    """Who only looks for a module finds its source, and nothing is told."""
    told: list[ModuleType] = []
    watch = ImportWatch("hooked.a".__eq__, told.append)
    spec = importlib.util.find_spec("hooked.a")
    assert spec is not None
    assert "value = 1" in spec.loader.get_source("hooked.a")  # type: ignore[union-attr]
    assert importlib.util.find_spec("hooked.none") is None
    assert told == []
    module = importlib.import_module("hooked.a")
    assert told == [module]
    assert "value = 1" in inspect.getsource(module)
    watch.close()


def test_a_module_that_fails_is_not_told(package: Path) -> None:
    """An import that raises does so as before; the next, which succeeds, is told."""
    (package / "a.py").write_text("raise ValueError('broken')")
    told: list[ModuleType] = []
    watch = ImportWatch("hooked.a".__eq__, told.append)
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("hooked.a")
    assert told == []
    (package / "a.py").write_text("value = 22")
    importlib.invalidate_caches()
    assert told == [importlib.import_module("hooked.a")]
    watch.close()


@pytest.mark.usefixtures("package")
def test_modules_of_c_are_told_too() -> None:
    """Built-in and extension modules load as ever."""
    told: list[str] = []
    some = "_testbuffer", "_ctypes_test", "xxlimited", "_xxsubinterpreters", "_interpreters"
    names = [name for name in some if name not in sys.modules]
    watch = ImportWatch(lambda name: name in names, lambda module: told.append(module.__name__))
    loaded = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        loaded.append(name)
    watch.close()
    assert told == loaded


@pytest.mark.usefixtures("package")
def test_two_threads_import_it_once() -> None:
    """A module that many threads import at the same time is told once, complete."""
    told: list[int] = []
    watch = ImportWatch("hooked.a".__eq__, lambda module: told.append(module.value))
    threads = [threading.Thread(target=importlib.import_module, args=("hooked.a",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.close()
    assert told == [1]


@pytest.mark.process
def test_python_m_and_pickles_work(tmp_path: Path) -> None:
    """A hooked module runs under ``python -m``, and what it defines can be pickled."""
    program = """
    import pickle
    from json import JSONDecoder
    class K: pass
    assert type(pickle.loads(pickle.dumps(K()))) is K
    print(__name__, __spec__.name, type(__loader__).__name__)
    """
    bootstrap = """
    from tachograph.identity.import_hooks import ImportWatch
    ImportWatch(lambda name: name.startswith("pro"), print)
    """
    write(tmp_path, bootstrap, "sitecustomize.py")
    write(tmp_path, program)
    done = subprocess.run(
        [sys.executable, "-m", "program"],
        cwd=tmp_path,
        env=environment(tmp_path, PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["__main__", "program", "_TellingLoader"]


@pytest.mark.process
def test_own_imports_no_torch(tmp_path: Path) -> None:
    """All our instrumentation waits for torch, without importing it, and never raises."""
    program = """
    import sys
    from tachograph.instrumentation._zero_code import instrument
    instrument(["wrong", "a:b"], {"TACHOGRAPH_WAIT_COUNTERS": "maybe", "RANK": "1", "LOCAL_RANK": "1"})
    assert not {"torch", "numpy", "opentelemetry.sdk"} & set(sys.modules)
    """
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, lines
    assert "TACHOGRAPH_WAIT_COUNTERS" in lines[0]
    assert "--prof is 'wrong'" in lines[1]

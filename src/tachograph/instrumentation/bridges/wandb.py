"""The bridge from Weights & Biases: online, offline and disabled."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from functools import partial
from time import time_ns
from typing import Any
from weakref import WeakSet

from tachograph.instrumentation.bridges._instrumentor import BridgeInstrumentor
from tachograph.instrumentation.bridges._nesting import calls, under_way
from tachograph.instrumentation.bridges._patches import Bridged, Failed
from tachograph.instrumentation.bridges._values import MOST_HELD, BridgedValues, ByObject, Origin
from tachograph.recording.interrupts import pass_on
from tachograph.recording.wrapping import wraps

_OWN = "_"  # wandb's own keys begin with it
_DEPTH = 32  # of nested dictionaries: one that holds itself has no end
_LIBRARY = "wandb"


class _Turn:
    """A call of a disabled run, whose step is counted once all calls before it were: they may be held.

    Attributes:
        step: of the call.
    """

    __slots__ = ("step",)
    step: Any


class _Run:
    """A run, as its calls tell it.

    Attributes:
        origin: of its values.
        disabled: nothing of it leaves by wandb.
        axes: the step metric of each name, or of each beginning before an asterisk, that ``define_metric`` was given.
        last: the last value of each step metric.
        step: of the next call of a disabled run, which has none of its own.
        known: the last value of each key, of a disabled run; its summary has these, too.
    """

    def __init__(self, origin: Origin, *, disabled: bool) -> None:
        self.origin, self.disabled = origin, disabled
        self.axes: dict[str, str] = {}
        self.last: dict[str, object] = {}
        self.step = 0
        self.known: dict[str, object] = {}

    def count(self, turn: _Turn, step: Any, commit: bool | None) -> None:
        """Count a call of a disabled run."""
        turn.step = self.own_step(step, commit)

    def own_step(self, step: Any, commit: bool | None) -> Any:
        """Return the step of a call of a disabled run, which counts nothing, by the rule of ``Run._log``."""
        if step is not None:
            self.step = max(step, self.step)
        now = self.step if step is None else step
        self.step += step is None if commit is None else commit
        return now

    def axis(self, key: str) -> str | None:
        """Return the step metric of a key: its own name counts before the longest beginning."""
        if key in self.axes:
            return self.axes[key]
        fits = [name for name in self.axes if name.endswith("*") and key.startswith(name[:-1])]
        return self.axes[max(fits, key=len)] if fits else None


class RunNotes:
    """The notes of wandb's ``Run`` and ``NoopRun``: each method has the arguments of the run's own.

    Args:
        values: where they go.
    """

    def __init__(self, values: BridgedValues) -> None:
        self._values, self._held = values, values.held
        self._runs: ByObject[_Run] = ByObject()
        self._disabled: WeakSet[Any] = WeakSet()
        atexit.register(self.close)

    def close(self) -> None:
        """Take the results of the disabled runs that have not finished."""
        atexit.unregister(self.close)
        for run in list(self._disabled):
            self.finish_disabled(run)

    def _run(self, run: Any) -> _Run:
        found = self._runs.get(id(run))
        if found is None:
            settings = run.settings
            key = settings.run_id or f"disabled {len(self._disabled)}"
            label = settings.run_name or settings.run_id or "disabled"
            origin = self._values.origin(_LIBRARY, key, label)
            found = self._runs.keep(run, _Run(origin, disabled=run.disabled))
        return found

    def begin(self, run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Take the configuration that ``wandb.init`` was given, of which its callback hears nothing."""
        config = getattr(run, "_config", None)
        if config is None:  # a disabled run, whose configuration comes a moment later
            return
        self._values.config(self._run(run).origin, dict(config.items()))
        if run.disabled:
            self._disabled.add(run)

    def config(self, run: Any, key: Any = None, val: Any = None, data: Mapping[str, Any] | None = None) -> None:
        """Take a change of the configuration."""
        changed = data if data is not None else {".".join(key) if isinstance(key, tuple | list) else key: val}
        own = {key: value for key, value in changed.items() if not str(key).startswith(_OWN)}
        if own:
            self._values.config(self._run(run).origin, own)

    def summary(self, run: Any, summary_record: Any) -> None:
        """Take results that the program sets: ``run.summary["best"] = 1``."""
        told = {".".join(item.key): item.value for item in summary_record.update}
        if told:
            self._values.summary(self._run(run).origin, told)

    def define_metric(self, run: Any, name: str, step_metric: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Take the axis of a metric, or of all that begin alike."""
        if step_metric is not None:
            self._values.settle()  # calls before it
            self._run(run).axes[name] = getattr(step_metric, "name", step_metric)

    def log(
        self,
        run: Any,
        data: Mapping[str, Any],
        step: Any = None,
        commit: bool | None = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Leave the values of one call to the next collection."""
        known = self._runs.get(id(run)) or self._run(run)
        x = step
        if known.disabled:
            x = _Turn()
            self._held.append((_LIBRARY, known.count, x, step, commit))
        elif step is None:  # the run's property `step` asks the service, where it may wait
            x = run._local_step - (commit is None or commit)  # noqa: SLF001
        numbers, plain = dict(data), calls.outermost is None
        for value in numbers.values():
            if value.__class__ is not float and value.__class__ is not int:
                plain = False
        if not plain:
            if known.disabled:
                known.known.update(numbers)
            numbers = self._numbers(known, numbers, x, counted=step is None)
        self._held.append((_LIBRARY, self._take, known, numbers, x, step is None, time_ns()))
        if len(self._held) > MOST_HELD:
            self._values.bound_held()

    def disabled_log(self, original: Any, bridge: Bridged, failed: Failed) -> Any:
        """Return the patch of ``NoopRun.log``, whose microsecond the frames of a note would double.

        Args:
            original: the function.
            bridge: whether it is on.
            failed: called with an exception of ours.
        """
        held, hold, take = self._held, self._held.append, self._take_disabled

        @wraps(original)
        def log(run: Any, data: Any, step: Any = None, commit: Any = None, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                result = original(run, data, step, commit, *args, **kwargs)
            else:
                result = original(run, data, step, commit)
            if not bridge.on:
                return result
            try:
                values = {**data}
                for value in values.values():
                    if value.__class__ is float or value.__class__ is int:
                        continue
                    self.log(run, data, step, commit)  # what may change is read now
                    return result
                if under_way:
                    self.log(run, data, step, commit)
                    return result
                hold((_LIBRARY, take, run, values, step, commit, time_ns()))
                if len(held) > MOST_HELD:
                    self._values.bound_held()
            except Exception as error:  # noqa: BLE001 - the border to the objects of the program
                pass_on(error)
                failed(error)
            return result

        return log

    def _take_disabled(self, run: Any, data: dict[str, Any], step: Any, commit: Any, at: int) -> None:
        known = self._run(run)
        self._take(known, data, known.own_step(step, commit), step is None, at)

    def _hold(self, known: _Run, numbers: dict[str, Any], x: Any, counted: bool) -> None:
        self._held.append((_LIBRARY, self._take, known, numbers, x, counted, time_ns()))

    def _numbers(self, known: _Run, data: Mapping[str, Any], x: Any, *, counted: bool) -> dict[str, Any]:
        """Return the numbers among values of any type, as they are now: an image, a table, a text is counted.

        Inside of the call of another bridge, those that it records itself are left to it.
        """
        found: dict[str, Any] = {}
        for key, name, value in _flat(data):
            one = value[0] if isinstance(value, list | tuple) and value else value
            if one is not value or one is None or isinstance(one, str) or type(one).__module__.startswith("wandb."):
                self._values.not_taken(_LIBRARY, type(one).__name__)
                continue
            plain = value.__class__ is float or value.__class__ is int
            number = value if plain else self._values.number(_LIBRARY, key, value)
            if number is None:
                continue
            later = partial(self._hold, known, {key: number}, x, counted)
            if calls.outermost is None or not self._values.passed_over(_LIBRARY, name, value, later):
                found[key] = number
        return found

    def _take(self, known: _Run, data: dict[str, Any], x: Any, counted: bool, at: int) -> None:
        """Take the values of one call, at its turn; x is the step metric that was defined for a key, or the step."""
        if known.disabled:
            known.known.update(data)
        if x.__class__ is _Turn:
            x = x.step
        take, origin = self._values.take_scalar, known.origin
        known.last.update({key: data[key] for key in set(known.axes.values()) if key in data})
        for key, value in data.items():
            if key[:1] == _OWN:
                continue
            axis = known.axis(key) if known.axes else None
            if axis is not None and axis != key and axis in known.last:
                take(origin, key, value, known.last[axis], counted=False, time_unix_nano=at)
            else:
                take(origin, key, value, x, counted=counted, time_unix_nano=at)

    def log_artifact(self, _run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count an artifact."""
        self._values.not_taken(_LIBRARY, "artifact")

    def alert(self, _run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count an alert."""
        self._values.not_taken(_LIBRARY, "alert")

    def finish_disabled(self, run: Any, *_args: Any, **_kwargs: Any) -> None:
        """Take the configuration and the results of a disabled run, which has no callbacks, at its end."""
        self._disabled.discard(run)
        known = self._run(run)
        self._values.settle()
        self._values.config(known.origin, dict(run.config.items()))
        told = {
            key: value for key, value in run.summary.items() if key not in known.known or known.known[key] is not value
        }
        if told:
            self._values.summary(known.origin, told)


def _flat(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str, Any]]:
    """Yield keys, the last parts of their names, and values; nested ones with a dot between, as wandb names them."""
    for key, value in data.items():
        if str(key).startswith(_OWN) and not prefix:
            continue
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", key, value


class WandbInstrumentor(BridgeInstrumentor):
    """Record the values of ``wandb.log`` in the modes online, offline and disabled.

    x is the step, or the metric that ``define_metric`` names. ``wandb.config`` becomes the configuration of the run,
    and values set in ``wandb.summary`` become its results. A second run in the process becomes a group.
    """

    library = _LIBRARY

    def notes(self, values: BridgedValues) -> RunNotes:  # noqa: D102 - as the base class says
        return RunNotes(values)

"""Random small programs: every door, threads, forks, spawned processes, DataLoaders, asyncio, and every kind of end.

A program is made of its seed and number alone. Beside its source stands the expected outcome: the processes whose
values arrive, and the end of each process.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from endings import FROM_OUTSIDE, OF_CHILDREN, OF_PROGRAMS, End, Ending, Outside

_DOORS = ("put", "gauge", "wait", "bound", "prof", "stat", "event", "point", "curve", "throttled")
_HEAD = """
import asyncio, atexit, ctypes, gc, multiprocessing, os, signal, subprocess, sys, threading, time
import tachograph
from ledger import Finalized, Recorder, await_child, begun, ended, ending, hoard, swallowed
"""


class Expected(NamedTuple):
    """The expected outcome of a process.

    ``delivers`` is False where the documentation says that it records nothing: then nothing of it may arrive.
    """

    delivers: bool
    ending: Ending = "orderly"
    status: int | None = 0


@dataclass
class Program:
    """A program, and its expected outcome.

    Attributes:
        ends: the end of its main process, in words.
        mode: the way in which Tachograph is started.
        processes: the expected outcome of each, by name.
        interval: seconds between two exports of metrics.
        refusals: requests that its receiver answers with 503 at first.
    """

    number: int
    title: str = ""
    mode: str = "start"
    ends: str = ""
    source: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    processes: dict[str, Expected] = field(default_factory=dict)
    outside: Outside | None = None
    interval: float = 1.0
    refusals: int = 0

    @property
    def zero_code(self) -> bool:
        """Tell whether it is run by ``tachograph run``."""
        return "run" in self.mode


class _Writer:
    """Writes one program.

    Args:
        seed: of the whole attack.
        number: of the program.
    """

    def __init__(self, seed: int, number: int) -> None:
        self.chance = random.Random(f"{seed}:{number}")
        self.made = Program(number)
        self.functions: list[str] = []
        self.body: list[str] = []
        self.done: list[str] = []

    def write(self) -> Program:
        """Return the program."""
        made, chance = self.made, self.chance
        made.mode = chance.choices(["start", "with", "run", "run and start"], [5, 3, 4, 2])[0]
        made.ends = self._chosen_end()
        end = OF_PROGRAMS[made.ends][1]
        made.interval = chance.choice([0.3, 1.0] if end.ending == "cut" else [0.3, 1.0, 60.0])
        made.refusals = chance.choice([0, 0, 0, 0, 0, 0, 1, 3])
        self._surround()
        self._add(self._work, *chance.choices(self._actions(), k=chance.randint(1, 3)))
        if made.ends in FROM_OUTSIDE:
            made.outside = FROM_OUTSIDE[made.ends]._replace(after=chance.uniform(0.2, 4.5))
            self.body.append(f"main.work(60, {chance.randint(1, 40)}, 0.01)" if chance.random() < 0.7 else "")
        elif end.ending == "cut":
            self.body.append(f"main.work({chance.uniform(1, 3):.2f}, {chance.randint(1, 40)}, 0.01)")
        made.processes["main"] = Expected(
            True, end.ending, 128 - end.status if made.zero_code and end.status < 0 else end.status
        )
        made.title = f"{made.mode}; {', '.join(self.done)}; ends by {made.ends}"
        made.source = self._source(end.lines)
        return made

    def _chosen_end(self) -> str:
        # Left by then: later values stay in memory, for a later start().
        late = {"values in exit handlers", "busy threads"} if self.made.mode == "with" else set()
        wanted = [name for name in OF_PROGRAMS if name not in late]
        return self.chance.choices(wanted, [OF_PROGRAMS[name][0] for name in wanted])[0]

    def _surround(self) -> None:
        made, chance = self.made, self.chance
        environment = made.environment
        environment["OTEL_METRIC_EXPORT_INTERVAL"] = f"{made.interval * 1000:g}"
        environment["TACHOGRAPH_HELPERS"] = chance.choice(["", "", "true"])
        if chance.random() < 0.2:
            environment.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        if chance.random() < 0.2:
            environment["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"] = chance.choice(["delta", "lowmemory"])
        if chance.random() < 0.2:
            environment["OTEL_EXPORTER_OTLP_COMPRESSION"] = "gzip"
        if chance.random() < 0.5:
            environment["OTEL_METRICS_EXPORTER"] = "otlp"

    def _actions(self) -> list[Callable[[], None]]:
        common = [
            *(self._work, self._threads, self._fork, self._fork, self._multiprocessing, self._multiprocessing),
            *(self._asyncio, self._alarms, self._timeouts, self._finalizers, self._recursion, self._child_program),
            *(self._burst, self._raising_thread),
        ]
        if self.chance.random() < 0.15:
            common += [self._loader] * 6
        if self.made.mode == "start":
            common += [self._restart]
        return [*common, self._nested, self._flush]

    def _add(self, *actions: Callable[[], None]) -> None:
        for action in actions:
            action()

    def _source(self, end: str) -> str:
        start = {
            "start": "pipeline = tachograph.start()",
            "with": "with tachograph.start() as pipeline:",
            "run": "",
            "run and start": "pipeline = tachograph.start()",
        }[self.made.mode]
        late = "gauge" if "batch" in end else "put"
        doors = [door for door in (*_DOORS[:5], *_DOORS[6:]) if door != late]
        name = "main.daemons" if "daemon=True" in end else "main.late"
        inner = "\n".join([*self.body, "ending('main')", end])
        main = "\n".join(
            [
                "begun('main')",
                start,
                textwrap.indent(
                    f"main = Recorder('main', {list(_DOORS)})\nlate = Recorder({name!r}, {doors})\n{inner}",
                    "    " * (self.made.mode == "with"),
                ),
            ]
        )
        parts = [
            f'"""{self.made.title}."""',
            _HEAD.strip(),
            *self.functions,
            "def main():\n" + textwrap.indent(main, "    "),
            "if __name__ == '__main__':\n    globals()[(sys.argv[1:] or ['main'])[0]]()\n",
        ]
        return "\n\n".join(parts)

    def _recorder(self, who: str) -> str:
        doors = self.chance.sample(_DOORS, self.chance.randint(2, len(_DOORS)))
        return f"Recorder({who!r}, {doors})"

    def _pace(self, longest: float = 1.0) -> str:
        size = self.chance.choice([1, 5, 20, 100])
        fastest = 500 if OF_PROGRAMS[self.made.ends][1].ending == "cut" else 2000  # numbers a second
        pause = self.chance.choice([0.0, 0.01, 0.05]) + size / fastest
        return f"{self.chance.uniform(0.0, longest):.2f}, {size}, {pause:.3f}"

    def _name(self, what: str) -> str:
        self.done.append(what)
        return f"{what}{len(self.done)}"

    def _work(self) -> None:
        self._name("work")
        self.body.append(f"main.work({self._pace(1.5)})")

    def _threads(self) -> None:
        name = self._name("threads")
        count, daemon = self.chance.randint(1, 4), self.chance.random() < 0.5
        who = f"main.daemons{name}" if daemon else f"main.{name}"
        for number in range(count):
            self.body.append(
                f"{name}_{number} = threading.Thread(target={self._recorder(f'{who}.{number}')}.work, "
                f"args=({self._pace()}), daemon={daemon})\n{name}_{number}.start()"
            )
        if self.made.mode == "with" or self.chance.random() < 0.5:
            self.body += [f"{name}_{number}.join()" for number in range(count)]

    def _raising_thread(self) -> None:
        name = self._name("raising")
        self.functions.append(f"def {name}(recorder):\n    recorder.batch(5)\n    raise ValueError('planned')")
        self.body.append(
            f"{name}_thread = threading.Thread(target={name}, args=({self._recorder(f'main.{name}')},))\n"
            f"{name}_thread.start()\n{name}_thread.join()"
        )

    def _child(self, kind: str, name: str) -> End:
        """Write the function of a child, and return its end."""
        chance, made = self.chance, self.made
        end = OF_CHILDREN[chance.choice(list(OF_CHILDREN))]
        starts = chance.random() < 0.5 or (kind == "program" and not made.zero_code)
        lines = [
            f"begun({name!r})",
            "tachograph.start()" if starts else "",
            f"own = {self._recorder(name)}",
            f"own.work({self._pace(2.5 if end.ending == 'cut' else 1.0)})",
            f"ending({name!r})",
            end.lines,
        ]
        self.functions.append(f"def {name}():\n" + textwrap.indent("\n".join(lines), "    "))
        made.processes[name] = Expected(self._delivers(kind, starts=starts), end.ending, end.status)
        return end

    def _delivers(self, kind: str, *, starts: bool) -> bool:
        """Tell whether a child's values arrive.

        Source: README, "What is never lost", and which processes of a job report; a child of a rank is a helper.
        """
        asked = self.made.environment["TACHOGRAPH_HELPERS"] == "true"
        if "RANK" in self.made.environment and not asked:
            return False  # a helper of the rank
        if kind == "program":
            return True
        if kind == "spawn":  # a new interpreter: under zero code it waits for a rank, unless it is asked to record
            return starts or (asked and self.made.zero_code)
        if kind == "forkserver":  # a child of ``python -c``, which is a process of the job where it has a rank
            return starts or (asked and self.made.zero_code and "RANK" in self.made.environment)
        return starts or asked

    def _fork(self) -> None:
        name = self._name("fork")
        self._child("fork", name)
        self.body.append(
            f"{name}_pid = os.fork()\nif not {name}_pid:\n    {name}()\n    sys.exit(0)\n"
            f"await_child({name!r}, {name}_pid)"
        )

    def _multiprocessing(self) -> None:
        method = self.chance.choice(["fork", "spawn", "spawn", "forkserver"])
        name = self._name(method)
        self._child(method, name)
        self.body.append(
            f"{name}_process = multiprocessing.get_context({method!r}).Process(target={name})\n"
            f"{name}_process.start()\n{name}_process.join(30)\nended({name!r}, {name}_process.exitcode)"
        )

    def _child_program(self) -> None:
        name = self._name("program")
        self._child("program", name)
        self.body.append(
            f"{name}_done = subprocess.run([sys.executable, __file__, {name!r}], timeout=30)\n"
            f"ended({name!r}, {name}_done.returncode)"
        )

    def _loader(self) -> None:
        name = self._name("loader")
        method, workers = self.chance.choice(["fork", "spawn"]), self.chance.randint(1, 2)
        self.functions.append(
            f"class {name}:\n"
            "    own = None\n"
            "    def __len__(self):\n        return 64\n"
            "    def __getitem__(self, index):\n"
            "        from torch.utils.data import get_worker_info\n"
            "        if self.own is None:\n"
            f"            self.own = Recorder(f'{name}.{{get_worker_info().id}}', ['put', 'wait', 'event'])\n"
            "        self.own.batch(2)\n"
            "        return index"
        )
        self.body.append(
            "from torch.utils.data import DataLoader\n"
            f"{name}_loader = DataLoader({name}(), 4, num_workers={workers}, multiprocessing_context={method!r})\n"
            f"assert len(list({name}_loader)) == 16"
        )
        delivers = self._delivers(method, starts=False)
        for worker in range(workers):
            self.made.processes[f"{name}.{worker}"] = Expected(delivers, "orderly", None)

    def _asyncio(self) -> None:
        name = self._name("asyncio")
        coroutines = ",\n        ".join(
            f"{self._recorder(f'main.{name}.{number}')}.work_in_turns({self._pace()})"
            for number in range(self.chance.randint(1, 5))
        )
        self.functions.append(f"async def {name}():\n    await asyncio.gather(\n        {coroutines}\n    )")
        self.body.append(f"asyncio.run({name}())")

    def _alarms(self) -> None:
        """Values in a signal handler, in the middle of values.

        A signal that finds the handler running records nothing: a machine on which it takes longer than the time
        between two signals would never return to the program.
        """
        name = self._name("alarms")
        doors = [door for door in _DOORS if door != "gauge"]
        self.body.append(
            f"{name}, {name}_turn = Recorder('main.{name}', {doors}), threading.Lock()\n"
            f"signal.signal(signal.SIGALRM, lambda *_: {name}_turn.acquire(False) and "
            f"({name}.batch(3), {name}_turn.release()))\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)\n"
            f"main.work({self._pace()})\nsignal.setitimer(signal.ITIMER_REAL, 0)"
        )

    def _timeouts(self) -> None:
        """A signal handler that raises in the middle of values."""
        name = self._name("timeouts")
        # No TimeoutError: that is an OSError, which imports swallow.
        # And no spans: the SDK takes an exception in its detach() for a wrong token.
        self.made.environment["OTEL_TRACES_EXPORTER"] = "none"
        self.functions.append(f"class Expired(Exception):\n    pass\n\ndef {name}(*_):\n    raise Expired('planned')")
        self.body.append(
            f"signal.signal(signal.SIGALRM, {name})\nfor _ in range(30):\n    try:\n"
            "        signal.setitimer(signal.ITIMER_REAL, 0.004)\n        main.work(0.5, 50, 0)\n"
            f"        swallowed('main')\n    except Expired:\n        pass\nsignal.setitimer(signal.ITIMER_REAL, 0)"
        )

    def _finalizers(self) -> None:
        name = self._name("finalizers")
        doors = [door for door in _DOORS if door != "gauge"]
        self.body.append(
            f"{name} = Recorder('main.{name}', {doors})\nfor _ in range(50):\n    Finalized({name})\n"
            "    main.batch(5)\ngc.collect()"
        )

    def _recursion(self) -> None:
        name = self._name("recursion")
        self.functions.append(
            f"def {name}(recorder, depth):\n    if depth:\n        return {name}(recorder, depth - 1)\n"
            "    recorder.down(1)"
        )
        self.body.append(
            f"{name}_own = {self._recorder(f'main.{name}')}\nfor depth in range(4):\n"
            f"    try:\n        {name}({name}_own, depth)\n    except RecursionError:\n        pass"
        )

    def _burst(self) -> None:
        """More events at once than the journal holds: the oldest go, and are counted."""
        if self.chance.random() < 0.7 or OF_PROGRAMS[self.made.ends][1].ending == "cut":
            return self._work()
        name = self._name("burst")
        self.body.append(f"Recorder('main.{name}', ['event']).batch(75_000)")
        return None

    def _nested(self) -> None:
        self._name("nested")
        self.body.append(f"with tachograph.start():\n    main.work({self._pace()})")

    def _flush(self) -> None:
        self._name("flush")
        self.body.append(
            "with tachograph.start() as inner:\n    main.batch(10)\n"
            f"    inner.flush({self.chance.choice([0.0, 0.1, 5.0])})"
        )

    def _restart(self) -> None:
        self._name("restart")
        self.body.append(f"tachograph.shutdown()\nmain.batch(10)\ntachograph.start()\nmain.work({self._pace()})")


def write(seed: int, number: int) -> Program:
    """Return the program of a number."""
    return _Writer(seed, number).write()

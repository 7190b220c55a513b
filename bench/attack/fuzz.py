"""Bad input of every kind, against a real hub and the library: no error of ours, no loss for an honest program.

Run: ``python bench/attack/fuzz.py --seconds 60`` (or ``--inputs 1000000``; ``--only metrics``; ``--seed 7``). Each
input follows from the seed, its kind and its number alone, but for times, which are around now: ``--only KIND --first
NUMBER --inputs 1`` makes it again. Failing inputs are kept in the folder that is printed. SIGTERM
ends it early, with its results.

While it runs, an honest program records through the same hub, Prometheus 2 and 3 scrape it, and its pages are parsed
every so many inputs: a series stays on them for five minutes after its last point. At the end the honest program's
totals are exact, on the page, in the store, and on the page of the hub that comes next on the same store.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # real servers are started as tests start them

from attacked_hub import MEMORY, PATIENCE, AttackedHub
from command_lines import COMMAND_KINDS
from health import Sample, outcome
from hub_inputs import HUB_KINDS, HubKind, judge
from in_process import ProcessKind, described, judged
from page_judge import promtools
from recorded_inputs import RECORDED_KINDS
from results import Results, arguments
from settings_inputs import SETTINGS_KINDS
from wire import Answer, Wire

PROCESS_KINDS: dict[str, ProcessKind] = {**SETTINGS_KINDS, **RECORDED_KINDS, **COMMAND_KINDS}
KINDS: dict[str, HubKind | ProcessKind] = {**HUB_KINDS, **PROCESS_KINDS}
HUB, HEALTH, PAGE = "the hub meanwhile", "/healthz meanwhile", "its pages meanwhile"
_IN_FLIGHT = 16  # requests that a connection waits for
_AT_ONCE = 200  # inputs that a worker gets together
_MOST_KEPT = 10  # failures of one kind that are printed
_NO_ANSWER = 0.3  # seconds: for input that is no HTTP there may be none
_ENOUGH = 1000  # samples of which the 99.9th percentile says something


@dataclass
class Part:
    """The outcome of some inputs of a kind.

    Attributes:
        failures: number, complaint and input.
    """

    kind: str
    first: int
    tried: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    failures: list[tuple[int, str, bytes]] = field(default_factory=list)


def attack(kind: str, seed: int, first: int, count: int, address: tuple[str, int] | None) -> Part:
    """Send or pass inputs, in a process of its own, and judge the answers."""
    part = Part(kind, first)
    if kind in HUB_KINDS:
        if address is not None:
            _send(part, HUB_KINDS[kind], seed, range(first, first + count), address)
        return part
    of = PROCESS_KINDS[kind]
    for start in range(first, first + count, of.together):
        some = range(start, min(start + of.together, first + count))
        part.tried += len(some)
        if not judged(of, [of.make(_random(seed, kind, number)) for number in some]):
            continue
        alone = len(part.failures)
        for number in some:
            given = of.make(_random(seed, kind, number))
            why = judged(of, [given])
            if why:
                part.failures.append((number, why, described(given).encode("utf-8", "replace")))
        if len(part.failures) == alone:
            together = [of.make(_random(seed, kind, number)) for number in some]
            why = f"{len(some)} together: {judged(of, together)}"
            part.failures.append((some[0], why, described(together).encode("utf-8", "replace")))
    return part


def _random(seed: int, kind: str, number: int) -> Random:
    return Random(f"{seed}:{kind}:{number}")


_wires: dict[tuple[str, int], Wire] = {}


def _send(part: Part, kind: HubKind, seed: int, numbers: Sequence[int], address: tuple[str, int]) -> None:
    """Send requests, several at once where they are HTTP; the next are made while the hub has those."""
    wire = _wires.setdefault(address, Wire(address, PATIENCE))
    made = ((number, kind.make(_random(seed, part.kind, number))) for number in numbers)
    waiting: list[tuple[int, bytes]] = []
    asked: list[tuple[int, bytes]] = []
    while True:
        waiting += islice(made, (_IN_FLIGHT if kind.whole else 1) - len(waiting))
        _judge_answers(part, kind, wire, asked)
        if not waiting:
            return
        many = wire.send([sent for _, sent in waiting]) if kind.whole else 1
        asked, waiting = waiting[:many], waiting[many:]


def _judge_answers(part: Part, kind: HubKind, wire: Wire, asked: Sequence[tuple[int, bytes]]) -> None:
    """Judge the answers to requests; those that have none, as the connection ended, are asked again, each alone."""
    answers = wire.answers(len(asked)) if kind.whole else iter(())
    for number, sent in asked:
        try:
            answer = next(answers, None) or wire.ask(sent, None if kind.whole else _NO_ANSWER)
            why = judge(kind, answer)
        except TimeoutError as error:
            answer, why = Answer(0, "", b""), str(error) if kind.whole else ""
        except (OSError, ValueError) as error:
            answer, why = Answer(0, "", b""), f"{type(error).__name__}: {error}"
            wire.close()
        if not kind.whole:
            wire.close()  # bytes that are left there belong to no later question
        part.tried += 1
        part.answers[answer.status] += 1
        if why:
            part.failures.append((number, why, sent))


class Fuzz:
    """One run of the attack.

    Args:
        options: of the command line.
        results: takes the outcome.
    """

    def __init__(self, options: argparse.Namespace, results: Results) -> None:
        self.options = options
        self.results = results
        self.kinds = {options.only: KINDS[options.only]} if options.only else KINDS
        self.next = dict.fromkeys(self.kinds, options.first)
        self.left = options.inputs if options.seconds is None else sys.maxsize
        self.began = time.monotonic()
        self.answers: dict[str, Counter[int]] = {}
        self.health: list[Sample] = []
        self.memory = self.largest = self.pages = self.hubs = 0
        self.kept = Path(tempfile.mkdtemp(prefix="tachograph-fuzz-"))
        os.environ["TMPDIR"] = str(self.kept)  # for the leftovers of the attack's processes

    def run(self) -> None:
        """Attack until the inputs or the seconds are used up; each hub takes some of them, then a new one starts."""
        context = multiprocessing.get_context("spawn")
        workers = self.options.workers
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            while self.goes_on():
                self.hubs += 1
                folder = self.kept / f"hub {self.hubs}"
                folder.mkdir()
                whole = not self.options.url and bool(HUB_KINDS.keys() & self.kinds)
                with AttackedHub(folder, self.options.url or (None if whole else "http://127.0.0.1:0")) as hub:
                    failed = self._attack(hub, pool)
                    self.health += hub.health
                    self.memory, self.largest = max(self.memory, hub.memory), max(self.largest, hub.largest)
                if not failed:
                    shutil.rmtree(folder)
        self._outcomes()

    def stop(self, *_: object) -> None:
        """Begin no more."""
        self.left = 0

    def goes_on(self) -> bool:
        """Tell whether inputs or seconds are left."""
        seconds = self.options.seconds
        return self.left > 0 and (seconds is None or time.monotonic() - self.began < seconds)

    def _parts(self, address: tuple[str, int], most: int) -> Iterator[tuple[str, int, int, int, tuple[str, int]]]:
        """Yield the work of the workers, kinds mixed by their shares, until this hub has its number of inputs."""
        while most > 0 and self.goes_on():
            kind = min(self.kinds, key=lambda name: (self.next[name] - self.options.first) / self.kinds[name].share)
            count = min(_AT_ONCE, max(10, 2 * KINDS[kind].share), self.left, most)
            yield kind, self.results.seed, self.next[kind], count, address
            self.next[kind] += count
            self.left -= count
            most -= count

    def _attack(self, hub: AttackedHub, pool: ProcessPoolExecutor) -> bool:
        """Attack one hub; return whether anything failed."""
        before = sum(row.failed for row in self.results.rows)
        first = dict(self.next)
        parts = self._parts(hub.address, self.options.each)
        running: set[Future[Part]] = set()
        tried, looked = 0, 0
        looking: Future[list[str]] | None = None
        pages = bool(HUB_KINDS.keys() & self.kinds)
        with ThreadPoolExecutor(1) as aside:
            while True:
                while len(running) < self.options.workers + 1 and (part := next(parts, None)):
                    running.add(pool.submit(attack, *part))
                if not running:
                    break
                done, running = wait(running, PATIENCE * 4, return_when=FIRST_COMPLETED)
                if not done:
                    raise SystemExit("FAILED: no worker has got on for minutes")
                tried += sum(self._note(future.result()) for future in done)
                if looking is not None and looking.done():
                    self._judge(looking.result(), first)
                    looking = None
                if pages and tried - looked >= self.options.every and looking is None:
                    looked, looking = tried, aside.submit(hub.judged, parsed=self.pages)
        if looking is not None:
            self._judge(looking.result(), first)
        if pages:
            self._judge(hub.judged(), first)
            self._judge(hub.end(), first)
        return sum(row.failed for row in self.results.rows) > before

    def _note(self, part: Part) -> int:
        attacked = self.kinds[part.kind].attack
        row = self.results.row(attacked)
        row.tried += part.tried
        self.answers.setdefault(part.kind, Counter()).update(part.answers)
        for number, why, content in part.failures:
            if row.failed >= _MOST_KEPT:
                row.failed += 1
                continue
            file = self.kept / f"{part.kind}-{number}"
            file.write_bytes(content)
            self.results.failure(attacked, f"{why}\n  the input: {file}", self._again(part.kind, number, 1))
        return part.tried

    def _again(self, kind: str, first: int, count: int) -> str:
        return f"{self._command()} --only {kind} --first {first} --inputs {count}"

    def _command(self) -> str:
        url = f" --url {self.options.url}" if self.options.url else ""
        return f"python bench/attack/fuzz.py --seed {self.results.seed}{url}"

    def _judge(self, wrong: list[str], first: dict[str, int]) -> None:
        """Note the broken invariants of the hub after the inputs from ``first`` on."""
        tried = sum(row.tried for row in self.results.rows if row.attack != HUB)
        print(f"{tried:,} inputs so far, in {time.monotonic() - self.began:.0f} s, to {self.hubs} hubs", flush=True)
        self.pages += 1
        self.results.row(HUB).tried += 1
        for why in wrong:
            kinds = [(kind, start, self.next[kind] - start) for kind, start in first.items() if kind in HUB_KINDS]
            again = "\n    ".join(self._again(*each) for each in kinds if each[2])
            self.results.failure(HUB, why, again or self._command())

    def _outcomes(self) -> None:
        for kind, answers in self.answers.items():
            row = self.results.row(self.kinds[kind].attack)
            row.sums = {f"{status or 'closed'}: {{:,}}": count for status, count in sorted(answers.items())}
        tried = sum(row.tried for row in self.results.rows if row.attack != HUB)
        seconds = time.monotonic() - self.began
        row = self.results.row(HUB)
        row.outcome = " and ".join(["both parsers", *(f"promtool {major}" for major in promtools())])
        row.sums = {"{:,} inputs in all": tried, "{:,} hubs": self.hubs}
        row.most = {"at most {:,.0f} inputs a second": tried / seconds}
        row.most["pages of {:.1f} MiB at most"] = self.largest / 2**20
        if self.memory:
            row.most[f"{{:,}} MiB at most (allowed: {MEMORY >> 20})"] = self.memory >> 20
        if self.health:
            self._health()

    def _health(self) -> None:
        """Compare the 99.9th percentile with the limit, without the machine's own delays."""
        row, allowed = self.results.row(HEALTH), self.options.healthz
        row.tried = len(self.health)
        row.most, own, late = outcome(self.health)
        if len(self.health) >= _ENOUGH and own > allowed + late:
            self.results.failure(HEALTH, f"{row.told()}; allowed are {allowed * 1e3:.0f}", self._command())


def main() -> int:
    """Run it; 1 where an invariant broke."""
    parser = arguments("fuzz")
    add = parser.add_argument
    add("--seconds", type=float, help="how long")
    add("--inputs", type=int, default=10_000, help="how many, where no seconds are given (default %(default)s)")
    add("--only", choices=sorted(KINDS), help="inputs of this kind only")
    add("--first", type=int, default=0, help="number of the first input of each kind (default %(default)s)")
    add("--url", help="attack a hub that runs already; there is no honest program then")
    add("--workers", type=int, default=(os.cpu_count() or 1) + 1, help="processes that attack (default %(default)s)")
    add("--every", type=int, default=5000, help="inputs between two looks at the pages (default %(default)s)")
    add("--each", type=int, default=50_000, help="inputs for one hub (default %(default)s)")
    add("--healthz", type=float, default=0.1, help="seconds that /healthz may take (default %(default)s)")
    options = parser.parse_args()
    results = Results("fuzz", options.seed)
    fuzz = Fuzz(options, results)
    print(f"seed {options.seed}; what fails is kept in {fuzz.kept}", flush=True)
    signal.signal(signal.SIGTERM, fuzz.stop)
    fuzz.run()
    if not any(row.failed for row in results.rows):
        shutil.rmtree(fuzz.kept, ignore_errors=True)
    return results.end(options.out)


if __name__ == "__main__":
    sys.exit(main())

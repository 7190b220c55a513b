"""The hub while its disk fails: its duties, and the checks afterwards."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from disk_faults import Fault, Place, failing, tmpfs
from hub_process import Health, HubProcess, Sender
from kept_runs import kept

NOTICED = 2.5  # seconds: the hub looks each second whether its files are still there
_HEALTHY = 2.0  # seconds for an answer of /healthz, on a machine that does much else
_BACK = 20.0  # seconds from the end of a fault until all is taken again
_TICKED = 1.2  # seconds after which the hub has saved what it has in memory
_CANNOT_START = 2
_ALLOWED = {200, 503}


def struck(fault: Fault, seed: int, seen: Counter[str], *, quick: bool) -> Iterator[str]:
    """Strike a hub that two runs send to, one of them new, and yield the invariants that broke.

    Args:
        fault: strikes it.
        seed: of random choices.
        seen: counts the hub's answers.
        quick: take no longer than it must.

    Raises:
        Unavailable: the fault cannot be made here.
    """
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="tachograph-disks-") as name, contextlib.ExitStack() as stack:
        base = Path(name)
        store = base / "store"
        if fault.on_tmpfs:
            stack.enter_context(tmpfs(store))
        calls = stack.enter_context(failing(store, base)) if fault.by_calls else None
        hub = HubProcess(base / "hub.log", store, calls.environment if calls else None)
        place = Place(store, chance, lambda: sorted((store / "runs").glob("job.db*")), calls, hub.pid)
        senders = [Sender(hub.address, run, patience=fault.patience) for run in ("job", "late")]
        health = Health(hub.address)
        senders[0].run_for(chance.uniform(0.3, 1.5))
        began = time.monotonic()
        with fault.strike(place):
            until = began + (fault.at_least if quick else fault.seconds)
            while time.monotonic() < until and hub.is_running():
                for sender in senders:
                    sender.step()
                time.sleep(0.02)
        for _ in range(2 if fault.destroys else 1):
            for sender in senders:
                if hub.is_running() and not sender.goes_on(_BACK):
                    yield f"{sender.run}: nothing is taken {_BACK:g} s after the end of the fault: {hub.log[-500:]}"
            time.sleep(NOTICED if fault.destroys else 0)
        health.end()
        if health.failed or health.longest > _HEALTHY:
            yield f"/healthz: {health.failed} of {health.asked} failed, the longest took {health.longest:.1f} s"
        for sender in senders:
            sender.close()
            seen.update({"kept": sender.statuses.get(200, 0), "refused": sender.statuses.get(503, 0)})
        seen["health_ms"] = max(seen["health_ms"], round(health.longest * 1000))
        hub.end()
        refused = {0} if fault.refuses else set[int]()
        yield from judged(hub, senders, since=began + NOTICED if fault.destroys else 0.0, allowed=_ALLOWED | refused)
        yield from said(hub, senders)
        yield from _again(base, store)


def nth_call(base: Path, n: int, *, torn: bool, quick: bool) -> tuple[int, list[str]]:
    """Let the n-th call of a hub fail once, or be done by half and the next one fail.

    Returns:
        How many calls failed, none where there were fewer than n; and the invariants that broke.
    """
    store = base / f"store-{n}-{torn:d}"
    with failing(store, base) as calls:
        calls.fail((errno.ENOSPC, errno.EIO)[n % 2], first=n, most=2 if torn else 1, torn=torn)
        hub = HubProcess(base / f"hub-{n}-{torn:d}.log", store, calls.environment)
        sender = Sender(hub.address) if hub.serves else None
        broke = []
        if sender is not None:
            for seconds in (0.0, 0.0, 0.0 if quick else _TICKED):
                broke += [] if sender.goes_on(_BACK) else [f"nothing is taken after call {n} failed: {hub.log[-500:]}"]
                time.sleep(seconds)
            sender.close()
        hub.end()
        if sender is not None:
            broke += judged(hub, [sender])
        elif hub.status != _CANNOT_START or "Traceback" in hub.log or hub.log.count("\n") != 1:
            broke.append(f"the hub did not start, and ended with {hub.status}: {hub.log[-800:]}")
        return calls.hits, broke


def judged(
    hub: HubProcess, senders: Iterable[Sender], *, since: float = 0.0, allowed: Collection[int] = _ALLOWED
) -> Iterator[str]:
    """Yield the invariants that a hub which has ended broke.

    Args:
        hub: it.
        senders: of its requests.
        allowed: statuses that it may answer.
        since: items that were acknowledged earlier are not looked for: seconds, monotonic.
    """
    if hub.status:
        yield f"the hub ended with {hub.status}: {hub.log[-800:]}"
    if "Traceback" in hub.log:
        yield f"a traceback: {hub.log[-2000:]}"
    for sender in senders:
        if sender.statuses.keys() - set(allowed) or sender.without_time:
            yield f"{sender.run}: answers {sender.statuses}, {sender.without_time} 503 without Retry-After"
        found = kept(hub.store, sender.run)
        wanted = {number for number, moment in sender.kept.items() if moment > since}
        if missing := wanted - found.numbers:
            yield f"{sender.run}: {len(missing)} of {len(wanted)} were acknowledged and are not there: {_few(missing)}"
        if found.twice:
            yield f"{sender.run}: {len(found.twice)} are there twice: {_few(found.twice)}"
        if found.damage:
            yield f"{sender.run}: its file is damaged: {found.damage:.300}"
        if sender.kept and found.total != sender.total and "cannot write to its store" not in hub.log:
            yield f"{sender.run}: the counter is {found.total} in the file, {sender.total} were acknowledged"


def said(hub: HubProcess, senders: Iterable[Sender]) -> Iterator[str]:
    """Yield complaints about a hub's log, which must name the reason of refusals."""
    if any(sender.statuses.get(503) for sender in senders) and "cannot store a request" not in hub.log:
        yield f"503 was answered, and the log does not say why: {hub.log[-500:]}"


def _again(base: Path, store: Path) -> Iterator[str]:
    """Yield the invariants that break where the next hub begins on the same store."""
    hub = HubProcess(base / "next.log", store)
    if not hub.serves:
        hub.end()
        yield f"the next hub did not start: {hub.log[-500:]}"
        return
    sender = Sender(hub.address, "next")
    if not sender.goes_on(_BACK):
        yield "the next hub takes nothing"
    sender.close()
    hub.end()
    yield from judged(hub, [sender])


def _few(numbers: Iterable[int]) -> str:
    listed = sorted(numbers)
    return ", ".join(map(str, listed[:8])) + (", …" if len(listed) > 8 else "")

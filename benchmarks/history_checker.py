"""`python -m benchmarks.history_checker [transactions ...]`: time and memory of judging a history, each size anew.

The history is a correct one: nine in ten are committed, some calls are unknown, some transactions were checked.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator

from tests.support.history.events import Call, Event
from tests.support.history.verdict import judge
from tests.support.history_model import Ask, Fate, ModelBridge

SIZES = (25_000, 50_000, 100_000)


def make_history(transactions: int) -> ModelBridge:
    """Deterministic; every 10th is of its own kind."""
    bridge = ModelBridge()
    for number in range(transactions):
        name = f"{number:028d}"
        kind = number % 10
        key = name if kind in {1, 2} else None
        ask = Ask(count=2 if kind == 3 else 1, message_key=f"customer {number % 997}", idempotency_key=key)
        bridge.prepare(name, ask, Fate.KILLED if kind in {2, 4} else Fate.HEARD, is_published=kind == 5)
        if kind in {4, 6}:
            bridge.tick(6_000)
            bridge.check(name, "COMMIT")
        elif kind != 5:
            call = Call.ROLLBACK if kind == 7 else Call.COMMIT
            bridge.resolve(name, call, Fate.LOST if kind == 8 else Fate.HEARD)
    return bridge


def measure(transactions: int) -> None:
    """One line; memory is what judging added to what the history itself takes."""
    bridge = make_history(transactions)
    evidence = bridge.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    verdict = judge(_anew(bridge), evidence)
    seconds = time.process_time() - started
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert verdict.is_good, verdict.violations[:3]
    print(
        f"{transactions:>9,} transactions, {verdict.counts['calls']:>9,} calls: {seconds:6.1f} s CPU, "
        f"{seconds / transactions * 1e6:5.1f} us and {added * 1024 // transactions:>5,} bytes each; "
        f"history and evidence {before // 1024:,} MiB"
    )


def _anew(bridge: ModelBridge) -> Iterator[Event]:
    yield from bridge.events


def main() -> None:
    for size in [int(text) for text in sys.argv[1:]] or SIZES:
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(size,))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(1)


if __name__ == "__main__":
    main()

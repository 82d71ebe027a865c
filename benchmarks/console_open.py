"""`python -m benchmarks.console_open`: what open pages with live charts cost the traffic, by turns with none open."""

import argparse
import statistics
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.load import load_batches, percentile
from benchmarks.outcome import tell
from benchmarks.paced import load_paced
from benchmarks.rounds import settle, warm_up
from benchmarks.stage import TOPIC, Shape, Stage, running_stage

_CONNECTIONS = 32
_CLIENTS, _COMMITS_PER_S = 64, 400


@contextmanager
def open_pages(port: int, count: int) -> Iterator[list[int]]:
    """So many browsers with the first page of the console open; how many bytes each has read in the end."""
    ending, read = threading.Event(), [0] * count

    def follow(number: int) -> None:
        while not ending.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/console/live", timeout=10) as events:
                while not ending.is_set() and (line := events.readline()):
                    read[number] += len(line)

    browsers = [threading.Thread(target=follow, args=(number,)) for number in range(count)]
    for browser in browsers:
        browser.start()
    try:
        yield read
    finally:
        ending.set()
        for browser in browsers:
            browser.join()


def measure(stage: Stage, seconds: float) -> tuple[float, float]:
    """Batches settled a second, and p99 of commits at a given pace, in milliseconds."""
    batches = settle(stage, lambda ports: load_batches(ports, TOPIC, _CONNECTIONS, seconds))
    stage.await_projection()
    commits = settle(stage, lambda ports: load_paced(ports, TOPIC, _CLIENTS, _COMMITS_PER_S, seconds))
    stage.await_projection()
    return batches.per_second, percentile(commits.commit_latencies, 0.99) * 1000


def main() -> int:
    """Prints a line for each number of pages. Exit code 1: something was lost, or a page showed nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console_open", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="by turns (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=45, help="seconds of load before (default %(default)s)")
    options = parser.parse_args()
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with ExitStack() as stack:
        stage = stack.enter_context(running_stage(Shape(1, 1, 1), (TOPIC,)))
        warm_up(stage, options.warm_up)
        for number in range(options.rounds):
            tell(f"round {number + 1} of {options.rounds}")
            for pages in (0, 1, 3) if number % 2 else (3, 1, 0):
                with open_pages(stage.ports[0], pages) as read:
                    found[pages].append(measure(stage, options.seconds))
                if not all(read):
                    tell("a page showed nothing")
                    return 1
        mistakes = stage.find_mistakes()
    for pages, values in sorted(found.items()):
        rates, p99s = zip(*values, strict=True)
        print(f"{pages} pages: {_show(rates)} batches/s, commits' p99 {_show(p99s)} ms")
    return 1 if mistakes else 0


def _show(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}..{max(values):,.0f})"


if __name__ == "__main__":
    raise SystemExit(main())

"""The tables of docs/performance.md."""

from typing import Any

from benchmarks.report import NOTHING_YET, PRODUCERS, make_table

RUN: dict[str, Any] = {
    "commit": "abc",
    "when": "2026-01-02T03:04:05Z",
    "shape": {"queues": 1, "apis": 1, "settlers": 1},
    "python": "3.11.7, optimised by profile",
}
DOCUMENT: dict[str, Any] = {
    "machine": {"cpus": 2, "memory_gib": 4},
    "versions": {"kafka": "4.3.1"},
    "figures": {"raw_tps": 100.0, "relay_vs_faststream": 2.5},
    "ranges": {"raw_tps": [90.0, 110.0], "relay_vs_faststream": [2.0, 3.0]},
    "runs": {
        "main": {**RUN, "figures": ["raw_tps"]},
        PRODUCERS: {**RUN, "figures": ["relay_vs_faststream"], "remarks": {"priority": "idle"}},
    },
}


def test_producers_figures_are_in_a_table_of_their_own() -> None:
    """With what was measured how; a figure below what is asked for is called missed."""
    bridge, producers = make_table(DOCUMENT), make_table(DOCUMENT, PRODUCERS)
    assert "`raw_tps`" in bridge[-1]
    assert not any("relay_vs_faststream" in line for line in bridge)
    assert "| `relay_vs_faststream` | 2.50 x | 2.00..3.00 | 3, **missed** |" in producers[-1]
    assert any(line.startswith("Run `producers`") and line.endswith("Priority: idle.") for line in producers)


def test_page_says_so_while_nothing_is_measured() -> None:
    """No empty table."""
    document = {**DOCUMENT, "runs": {"main": DOCUMENT["runs"]["main"]}}
    assert make_table(document, PRODUCERS) == [NOTHING_YET]

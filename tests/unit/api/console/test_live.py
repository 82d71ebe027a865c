"""The first page as a stream of events."""

from pathlib import Path

import httpx2

from tests.support.socket_bridge import socket_bridge


def test_events_say_what_the_first_page_shows(tmp_path: Path) -> None:
    """At once and again; a bridge that ends does not wait for its readers."""
    with socket_bridge(tmp_path, {"orders": 1}) as bridge:
        stream = httpx2.stream("GET", f"{bridge.url}/console/live", timeout=20)
        with stream as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            names = []
            for line in answer.iter_lines():
                names += [line.removeprefix("event: ")] if line.startswith("event: ") else []
                if len(names) == 4:
                    break
            assert names == ["totals", "page", "totals", "page"]
            bridge.stop()

"""A pytest plugin that ends the run of a mutant in which a test goes on for ever.

CPU time is what counts: on a busy machine good tests take long too. A test that waits for ever without using any is
left to pytest-timeout.
"""

import os
import signal
from collections.abc import Generator
from time import process_time

import pytest

HUNG = 36  # mutmut's number for it
_TIMES = 5
_GRACE_S = 3.0
_usual_s: dict[str, float] = {}  # by test; mutmut runs all on the right code and forks a process for each mutant


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures each test, and lets it take as much again several times."""
    began_s = process_time()
    if item.nodeid in _usual_s:
        signal.signal(signal.SIGPROF, lambda *_: os._exit(HUNG))
        signal.setitimer(signal.ITIMER_PROF, _usual_s[item.nodeid] * _TIMES + _GRACE_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        took_s = process_time() - began_s
        _usual_s[item.nodeid] = min(_usual_s.get(item.nodeid, took_s), took_s)

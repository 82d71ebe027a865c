"""What every test may ask for. Unit tests ask for none of it, so no broker starts for them."""

import gc
import inspect
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.broker import BrokerFactory, BrokerForAll, ask_for_broker, broker_maker, running_broker

pytest_plugins = ["tests.support.postgres", "tests.support.user_databases"]

# how long an example took says how busy the machine is
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# for tests.mutation: the same few examples for every mutant, and none made smaller
settings.register_profile(
    "mutation", derandomize=True, database=None, deadline=None, max_examples=20, phases=(Phase.explicit, Phase.generate)
)


_FOR_ALL = pytest.StashKey[BrokerForAll]()
_ADDRESS = "broker_for_all"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells each process to which tests are handed out where it can ask for the broker of all."""
    stash = node.config.stash
    if _FOR_ALL not in stash:
        stash[_FOR_ALL] = BrokerForAll()
        node.config.add_cleanup(stash[_FOR_ALL].close)
    node.workerinput[_ADDRESS] = stash[_FOR_ALL].address


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """`bootstrap.servers` of a real broker shared by the whole run, and by all its processes at once: make topics,
    groups and ids with names of your own, and take `broker_factory` for what acts on the broker."""
    address = getattr(request.config, "workerinput", {}).get(_ADDRESS)
    if address is not None:
        yield ask_for_broker(address)
        return
    with running_broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def broker_factory() -> Iterator[BrokerFactory]:
    """Call it for a started broker of this test's own, to kill and pause."""
    with broker_maker() as make:
        yield make


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What thousands of tests are made of stays to the end: nobody looks through it for garbage again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails says what is promised: its docstring."""
    report = yield
    promise = inspect.getdoc(getattr(item, "function", None))
    if report.failed and promise:
        report.sections.append(("What must hold", promise))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With NO_SKIPS=1 a skipped test fails the run: the gate has every service."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("NO_SKIPS") == "1" and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("\nskipped tests are failures here (NO_SKIPS=1)", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

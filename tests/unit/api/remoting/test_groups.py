"""Groups of connections: as long as a group has one, somebody claims its checks."""

import asyncio
from typing import Any

import pytest

from api.remoting.frame import HeaderType
from api.remoting.groups import ConnectedGroups
from bridge.core.check_rules import CheckCalls, CheckMode, GroupSettings
from bridge.directory import ProducerGroup
from bridge.service.claims import ClaimCall
from tests.unit.api.remoting.test_gatherer import until


class Claims:
    """Nothing is due; a claim waits until something happens to its group."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[list[Any]]] = []
        self.counted = 0

    async def claim(self, call: ClaimCall) -> list[Any]:
        self.counted += call.is_counted
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]


PULLING = GroupSettings(calls=CheckCalls(mode=CheckMode.PULL))


class Directory:
    """Of one group. `settings`: None, if nobody has made it."""

    settings: GroupSettings | None = PULLING

    def get(self, name: str) -> ProducerGroup | None:
        return None if self.settings is None else ProducerGroup(name, self.settings, ())

    def settings_of(self, _: str) -> GroupSettings:
        return self.settings or GroupSettings()


class Clock:
    pauses = 0

    async def sleep_ms(self, _: int) -> None:
        self.pauses += 1
        await asyncio.sleep(0)


class Member:
    header_type = HeaderType.JSON
    is_ready = True

    def send(self, frame: bytes) -> None:
        """Nothing is due."""


class Nonces:
    def begin(self) -> None:
        """No check is made."""


@pytest.mark.parametrize("turns", range(6))
async def test_member_that_comes_as_the_last_one_s_claim_ends_is_asked(turns: int) -> None:
    """It joins once: where the group's loop was just ending then, nobody claimed its checks any more."""
    claims = Claims()
    groups = ConnectedGroups(
        claims, Directory(), Nonces, Clock(), "127.0.0.1:9876"  # type: ignore[arg-type]
    )  # fmt: skip
    old, new = Member(), Member()
    groups.join("shop", old)
    await until(lambda: len(claims.waiting) == 1)
    groups.leave(old, ["shop"])
    claims.waiting[0].set_result([])
    for _ in range(turns):
        await asyncio.sleep(0)
    groups.join("shop", new)
    await until(lambda: len(claims.waiting) == 2)
    await groups.close()


async def test_group_that_fetches_no_checks_costs_no_look_at_the_database() -> None:
    """Each claim of such a one looks whether it exists by now: a client may invent a hundred on each connection."""
    claims, directory, turns = Claims(), Directory(), Clock()
    groups = ConnectedGroups(claims, directory, Nonces, turns, "127.0.0.1:9876")  # type: ignore[arg-type]
    for settings in (None, GroupSettings()):
        directory.settings = settings
        groups.join("shop", Member())
        paused = turns.pauses
        await until(lambda: turns.pauses > paused + 3)  # noqa: B023
        assert claims.waiting == []
    directory.settings = PULLING
    await until(lambda: len(claims.waiting) == 1)
    await groups.close()


async def test_claims_for_groups_take_no_place_of_those_who_fetch_checks() -> None:
    """One waits for each group as long as that has a connection."""
    claims = Claims()
    groups = ConnectedGroups(claims, Directory(), Nonces, Clock(), "127.0.0.1:9876")  # type: ignore[arg-type]
    for number in range(3):
        groups.join(f"shop-{number}", Member())
    await until(lambda: len(claims.waiting) == 3)
    assert claims.counted == 0
    await groups.close()


async def test_invented_groups_of_all_connections_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a loop of its own, and is only bounded for each connection otherwise. Who may invent names, as with
    `check:orders.*`, keeps out nobody of a group that there is."""
    monkeypatch.setattr("api.remoting.groups._MOST_GROUPS", 3)
    directory = Directory()
    directory.settings = None
    groups = ConnectedGroups(Claims(), directory, Nonces, Clock(), "127.0.0.1:9876")  # type: ignore[arg-type]
    members = [Member() for _ in range(5)]
    assert [groups.join(f"shop-{number}", member) for number, member in enumerate(members)] == [True] * 3 + [False] * 2
    assert groups.join("shop-0", members[4])
    assert len(groups.names) == 3
    groups.leave(members[1], ["shop-1"])
    assert groups.join("shop-3", members[3])
    directory.settings = PULLING
    assert groups.join("made", members[4])
    await groups.close()

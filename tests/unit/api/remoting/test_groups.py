"""Groups of connections: as long as a group has one, somebody claims its checks."""

import asyncio
from typing import Any

import pytest

from api.remoting.frame import HeaderType
from api.remoting.groups import ConnectedGroups
from bridge.core.check_rules import GroupSettings
from bridge.service.claims import ClaimCall
from tests.unit.api.remoting.test_gatherer import until


class Claims:
    """Nothing is due; a claim waits until something happens to its group."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[list[Any]]] = []

    async def claim(self, _: ClaimCall) -> list[Any]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]


class Directory:
    def settings_of(self, _: str) -> GroupSettings:
        return GroupSettings()


class Clock:
    async def sleep_ms(self, _: int) -> None:
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

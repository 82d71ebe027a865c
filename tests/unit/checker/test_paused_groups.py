"""A group whose checks an operator has paused: nobody is asked, nothing is used up, nothing is parked."""

import pytest

from bridge.core.check_rules import CheckCalls, CheckMode, CheckTimes
from bridge.core.transaction import MAX_LIFE
from tests.unit.checker.world import FIRST_MS, World, hanging, saying, sending

A, B = "https://a.example/", "https://b.example/"
SHORT = CheckTimes(max_lifetime_ms=60_000)
HOUR = 3_600_000


@pytest.mark.parametrize("mode", list(CheckMode))
async def test_nobody_is_asked_until_it_goes_on(world: World, mode: CheckMode) -> None:
    """However old it becomes; other groups are asked as ever."""
    world.add_group("shop", A, times=SHORT, calls=CheckCalls(mode=mode))
    world.add_group("orders", B)
    world.pause("shop")
    waiting = world.prepare("shop")
    world.prepare("orders")
    await world.pass_ms(HOUR)
    assert {seen.url for seen in world.calls} == {B}
    assert (world.owners[0].parked, world.failures(), world.board.lying) == ({}, [], {})
    world.pause("shop", is_paused=False)
    await world.pass_ms(1_000)
    if mode is CheckMode.PUSH:
        assert world.calls[-1].checks[0]["transaction_id"] == waiting.transaction_id
        assert world.calls[-1].checks[0]["check_number"] == 1
    else:
        assert list(world.board.lying) == [waiting.transaction_id]


async def test_round_that_had_begun_asks_no_other_endpoint(world: World) -> None:
    """The call that had begun ends; nothing is used up, and afterwards the round is as if it had never been."""
    world.add_group("shop", A, B, times=SHORT)
    for url in (A, B):
        world.serve(url, hanging)
    waiting = world.prepare("shop")
    await world.pass_ms(FIRST_MS + 100)
    assert len(world.calls) == 1
    world.pause("shop")
    await world.pass_ms(HOUR)
    assert (len(world.calls), world.owners[0].parked, world.failures()) == (1, {}, [])
    for url in (A, B):
        world.serve(url, saying("COMMIT"))
    world.pause("shop", is_paused=False)
    await world.pass_ms(1_000)
    assert [end.transaction_id for end in world.ends()] == [waiting.transaction_id]


async def test_what_came_of_age_meanwhile_is_asked_about_before_it_is_parked(world: World) -> None:
    """Also where it was asked about before: its producer may know it by now."""
    world.add_group("shop", A, times=SHORT)
    world.serve(A, sending(503))
    old = world.prepare("shop")
    await world.pass_ms(FIRST_MS + 1_000)
    assert len(world.calls) == 1
    world.pause("shop")
    await world.pass_ms(HOUR)
    assert (len(world.calls), world.owners[0].parked) == (1, {})
    world.serve(A, saying("COMMIT"))
    world.pause("shop", is_paused=False)
    await world.pass_ms(1_000)
    assert [end.transaction_id for end in world.ends()] == [old.transaction_id]
    assert world.owners[0].parked == {}


async def test_what_nobody_answers_about_afterwards_is_parked(world: World) -> None:
    """Its life is over, and it has been asked about once more."""
    world.add_group("shop", A, times=SHORT)
    world.serve(A, sending(503))
    old = world.prepare("shop")
    await world.pass_ms(FIRST_MS + 1_000)
    world.pause("shop")
    await world.pass_ms(HOUR)
    world.pause("shop", is_paused=False)
    await world.pass_ms(60_000)
    assert len(world.calls) == 2
    assert world.owners[0].parked == {old.transaction_id: MAX_LIFE}

"""The checker as a whole: who is not called, and what one group may not do to another."""

import asyncio
import json
from dataclasses import replace

import structlog

from bridge.core.check_rules import CheckCalls, CheckMode
from checker.call import EndpointCall
from tests.support.check_fakes import Response
from tests.unit.checker.world import FIRST_MS, Seen, World, hanging, make_world, saying, sending

A, B, C = "https://a.example/", "https://b.example/", "https://c.example/"
HOUR = 3_600_000


async def test_retry_after_is_honoured(world: World) -> None:
    """Another endpoint is asked meanwhile; with none, the round is rate-limited and nobody is called."""
    world.add_group("shop", A)
    world.serve(A, sending(429, retry_after="100"))
    world.prepare("shop")
    await world.pass_ms(FIRST_MS + 95_000)
    assert len(world.calls) == 1
    assert set(world.failures()) == {"rate-limited"}
    assert world.service.counts.groups_without_endpoint == set()
    await world.pass_ms(40_000)
    assert len(world.calls) == 2


async def test_gone_endpoint_is_disabled(world: World) -> None:
    """410: told to the directory, an alert, and asked no more."""
    world.add_group("shop", A, B)
    world.serve(A, sending(410))
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            world.prepare("shop")
            await world.pass_ms(7_000)
    assert [seen.url for seen in world.calls] == [A, B, B, B]
    assert world.directory.groups["shop"].endpoints[0].disabled_reason == "410 Gone"
    assert [log["event"] for log in logs if log["log_level"] == "error"] == ["endpoint_gone"]


async def test_groups_that_fetch_their_checks_are_not_called(world: World) -> None:
    """Pull mode: their endpoints stay in the settings, and nobody complains of a missing one."""
    world.add_group("shop", A, calls=CheckCalls(mode=CheckMode.PULL))
    world.prepare("shop")
    await world.pass_ms(7_000)
    assert (world.calls, world.failures()) == ([], [])


async def test_nothing_goes_out_unsigned(world: World) -> None:
    """A group without a secret is not called; one alert."""
    world.add_group("shop", A)
    world.directory.groups["shop"] = replace(world.directory.groups["shop"], secrets=())
    with structlog.testing.capture_logs() as logs:
        world.prepare("shop")
        await world.pass_ms(70_000)
    assert world.calls == []
    assert set(world.failures()) == {"no-secret"}
    assert [log["event"] for log in logs if log["log_level"] == "error"] == ["producer_group_without_secret"]


async def test_dead_groups_do_not_slow_another(world: World) -> None:
    """Fifty groups whose endpoints hang, with many due each: the healthy one is asked on time (B)."""
    for number in range(50):
        url = f"https://dead{number}.example/"
        world.add_group(f"dead{number}", url)
        world.serve(url, hanging)
        for _ in range(300):
            world.prepare(f"dead{number}")
    world.add_group("good", A)
    await world.pass_ms(20_000)  # their first rounds have failed
    for _ in range(20):
        world.prepare("good")
        await world.pass_ms(1_000)
    await world.pass_ms(8_000)
    good = [seen for seen in world.calls if seen.url == A]
    assert sum(len(seen.ids) for seen in good) == 20
    assert max(_late_ms(world, seen) for seen in good) < 500
    assert world.most_at_once <= 64


async def test_ten_thousand_due_at_once(world: World) -> None:
    """In batches, within the group's limit, none twice, none late."""
    world.add_group("shop", A)
    commit = saying("COMMIT")

    async def slow(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(20)
        return await commit(call)

    world.serve(A, slow)
    transactions = [world.prepare("shop") for _ in range(10_000)]
    await world.pass_ms(FIRST_MS + 1_000)
    asked = [id_ for seen in world.calls for id_ in seen.ids]
    assert len(asked) == len(set(asked)) == len(transactions)
    assert len(world.calls) == 100
    assert world.most_at_once == 8
    assert sum(world.service.counts.lateness.counts[:10]) == 10_000  # within a second


async def test_one_group_never_has_all_calls(world: World) -> None:
    """A greedy setting does not take the slots of the others."""
    world.add_group("greedy", A, calls=CheckCalls(concurrency=256, batch_size=1))
    commit = saying("COMMIT")

    async def slow(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(1_000)
        return await commit(call)

    world.serve(A, slow)
    for _ in range(2_000):
        world.prepare("greedy")
    await world.pass_ms(40_000)
    assert world.most_at_once == 32


async def test_large_bodies_are_divided_over_calls(world: World) -> None:
    """A call has a cap; one transaction above it goes alone."""
    world.add_group("shop", A)
    for size in (10, 400_000, 400_000, 400_000, 3_000_000, 10):
        world.prepare("shop", value=b"x" * size)
    await world.pass_ms(8_000)
    assert len(world.ends()) == 6
    assert all(len(seen.body) <= 1024 * 1024 + 1_000 or len(seen.ids) == 1 for seen in world.calls)
    assert len(world.calls) < 6


async def test_without_body_nobody_is_asked(world: World) -> None:
    """No log has it any more: no answer, and the others of the batch are asked about."""
    world.add_group("shop", A)
    gone, kept = world.prepare("shop"), world.prepare("shop")
    del world.owners[0].bodies[gone.transaction_id]
    await world.pass_ms(7_000)
    assert [seen.ids for seen in world.calls] == [[kept.transaction_id]]
    assert world.failures() == ["no-body"]


async def test_bodies_that_cannot_be_read_now_are_read_later(world: World) -> None:
    """The log is not there: not a round."""
    world.add_group("shop", A)
    world.owners[0].is_unreadable = True
    world.prepare("shop")
    await world.pass_ms(FIRST_MS + 1_000)
    assert (world.calls, world.directory.rounds) == ([], [])
    world.owners[0].is_unreadable = False
    await world.pass_ms(6_000)
    assert len(world.calls) == 1


async def test_errors_of_one_group_stay_its_own(world: World) -> None:
    """A bug in one round is counted; its transactions are asked about again, other groups are not touched."""
    world.add_group("bad", A)
    world.add_group("good", B)

    async def broken(call: EndpointCall) -> Response:
        raise ZeroDivisionError

    world.serve(A, broken)
    with structlog.testing.capture_logs() as logs:
        world.prepare("bad")
        world.prepare("good")
        await world.pass_ms(7_000)
    assert [end.endpoint for end in world.ends()] == [B]
    assert "asking_failed" in {log["event"] for log in logs}
    world.serve(A, saying("COMMIT"))
    await world.pass_ms(10_000)
    assert len(world.ends()) == 2


async def test_directory_that_cannot_write_delays_nothing(world: World) -> None:
    """Rounds are written down when it can again, none is lost."""
    world.add_group("shop", A)
    world.serve(A, sending(500))
    world.directory.is_down = True
    world.prepare("shop")
    await world.pass_ms(40_000)
    assert len(world.calls) == 2
    world.directory.is_down = False
    await world.pass_ms(6_000)
    assert world.failures() == ["status 500", "status 500"]


async def test_gauges_tell_where_it_stands(world: World) -> None:
    """Pending, due, in flight, calls."""
    world.add_group("shop", A, calls=CheckCalls(batch_size=1))
    world.serve(A, hanging)
    for _ in range(3):
        world.prepare("shop")
    assert world.service.gauges() == (3, 0, 0, 0)
    await world.pass_ms(FIRST_MS + 500)
    assert world.service.gauges() == (3, 2, 1, 1)


async def test_bad_entries_are_counted(world: World) -> None:
    """For the metric."""
    world.add_group("shop", A)
    world.serve(A, sending(200, json.dumps({"resolutions": [{"x": 1}]}).encode()))
    world.prepare("shop")
    await world.pass_ms(7_000)
    assert world.service.counts.strange == 1


async def test_run_once_asks_about_all_that_is_due() -> None:
    """Without the loop: one pass over everything due, then it returns."""
    world = make_world()
    world.add_group("shop", A)
    world.take_queue(0, [world.make("shop", delay_ms=0) for _ in range(5_000)])
    gauges = await world.clock.drive(world.service.run_once())
    assert len(world.ends()) == 5_000
    assert (gauges.due, gauges.in_flight) == (0, 0)


async def test_close_lets_calls_in_flight_end() -> None:
    """What is answered in time is appended; nothing new starts."""
    world = make_world()
    running = asyncio.ensure_future(world.service.run_forever())
    world.add_group("shop", A, calls=CheckCalls(batch_size=1))
    commit = saying("COMMIT")

    async def slow(call: EndpointCall) -> Response:
        await world.clock.sleep_ms(2_000)
        return await commit(call)

    world.serve(A, slow)
    for _ in range(3):
        world.prepare("shop")
    await world.pass_ms(FIRST_MS + 500)
    await world.clock.drive(world.service.close())
    await world.clock.drive(asyncio.wait_for(running, None))
    assert (len(world.calls), len(world.ends())) == (1, 1)


async def test_close_cuts_what_takes_too_long() -> None:
    """A hanging endpoint does not hold up the process."""
    world = make_world()
    running = asyncio.ensure_future(world.service.run_forever())
    world.add_group("shop", A, calls=CheckCalls(call_timeout_ms=60_000))
    world.serve(A, hanging)
    world.prepare("shop")
    await world.pass_ms(FIRST_MS + 500)
    start_ms = world.clock.monotonic_ms()
    await world.clock.drive(world.service.close())
    await world.clock.drive(asyncio.wait_for(running, None))
    assert world.clock.monotonic_ms() - start_ms <= 7_000
    assert world.service.gauges().in_flight == 0


def _late_ms(world: World, seen: Seen) -> int:
    born = {t: body.half.born_ms for t, body in world.owners[0].bodies.items()}
    return max(seen.at_ms - born[str(id_)] - FIRST_MS for id_ in seen.ids)

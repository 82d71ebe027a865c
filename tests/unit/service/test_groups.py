"""Producer groups: changed, shown, deleted; audited."""

from pathlib import Path

import pytest

from bridge.core.check_rules import CheckTimes, GroupSettings
from bridge.core.errors import SqlUnavailable
from bridge.core.record import Resolution
from bridge.directory import GroupSwitch, ProducerGroup
from bridge.service.contract import EndCall, Outcome, Prepared, RefusalCode, Refused
from bridge.service.groups import MAX_LEASED_ENDPOINTS, EndpointRegistered, GroupSaved, GroupService
from bridge.service.operate import Who
from bridge.service.reads import AuditList
from bridge.sql.groups import GroupHealth, put_group
from tests.support.service_world import ServiceWorld, make_service_world
from tests.support.virtual_time import in_world

WHO = Who("ada", "why")
SLOW = GroupSettings(CheckTimes(interval_ms=60_000))


@in_world(make_service_world)
async def test_put_creates_once_and_tells_its_secret_once(world: ServiceWorld) -> None:
    """Settings and static endpoints are replaced; the audit says what they were, and no secret."""
    async with world.serving() as api:
        groups = api.groups
        first = await groups.put("shop", GroupSettings(), ["https://a.example/x"], WHO)
        second = await groups.put("shop", SLOW, ["https://b.example/x"], WHO)
        assert isinstance(first, GroupSaved)
        assert isinstance(second, GroupSaved)
        assert (first.is_created, second.is_created, second.secret) == (True, False, None)
        assert first.secret is not None
        assert [endpoint.url for endpoint in second.group.endpoints] == ["https://b.example/x"]
        rotated = await groups.rotate_secret("shop", WHO)
        assert isinstance(rotated, str)
        assert api.directory.groups["shop"].secrets == (rotated, first.secret)
        audit = await api.search.audit(10)
        assert isinstance(audit, AuditList)
        whats = [(entry.what, entry.actor, entry.target) for entry in audit.entries]
        assert whats == [
            ("producer-group.rotate-secret", "ada", "shop"),
            ("producer-group.put", "ada", "shop"),
            ("producer-group.put", "ada", "shop"),
        ]
        told = {
            "endpoints": ["https://a.example/x"], "transaction_timeout_ms": 6_000, "interval_ms": 30_000,
            "max_checks": 15, "max_lifetime_ms": 86_400_000, "call_timeout_ms": 5_000, "batch_size": 100,
            "concurrency": 8, "mode": "push", "when_exhausted": "park", "accept_prepares": True,
        }  # fmt: skip
        assert audit.entries[1].before == told
        assert audit.entries[1].after == told | {"endpoints": ["https://b.example/x"], "interval_ms": 60_000}
        assert "whsec" not in str(audit)


@in_world(make_service_world)
async def test_pause_of_a_group_that_cannot_be_read_afterwards_is_not_denied(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group was made by another process; the database goes away between the pause and the look at it."""
    async with world.serving() as api:
        await world.database.run(lambda conn: put_group(conn, "shop", GroupSettings(), [], 0))

        async def fail() -> None:
            raise SqlUnavailable("away")

        with monkeypatch.context() as away:
            away.setattr(api.directory, "refresh", fail)
            paused = await api.groups.switch("shop", GroupSwitch.CHECKS, WHO, is_paused=True)
        assert isinstance(paused, Refused)
        assert (paused.code, paused.outcome) == (RefusalCode.UNAVAILABLE, Outcome.UNKNOWN)
        again = await api.groups.switch("shop", GroupSwitch.CHECKS, WHO, is_paused=True)
        assert isinstance(again, ProducerGroup)
        assert again.settings.pauses_checks


@in_world(make_service_world)
async def test_pause_is_audited_and_outlasts_a_put(world: ServiceWorld) -> None:
    """Of checks, because programs put their groups when they start; prepares are taken as the put says."""
    async with world.serving() as api:
        groups = api.groups
        await groups.put("shop", GroupSettings(), [], WHO)
        for what in GroupSwitch:
            assert isinstance(await groups.switch("shop", what, WHO, is_paused=True), ProducerGroup)
        paused = api.directory.groups["shop"].settings
        assert (paused.pauses_checks, paused.accepts_prepares) == (True, False)
        await groups.put("shop", SLOW, [], WHO)
        kept = api.directory.groups["shop"].settings
        assert (kept.pauses_checks, kept.accepts_prepares) == (True, True)
        resumed = await groups.switch("shop", GroupSwitch.CHECKS, WHO, is_paused=False)
        assert isinstance(resumed, ProducerGroup)
        assert resumed.settings == SLOW
        unknown = await groups.switch("nobody", GroupSwitch.CHECKS, WHO, is_paused=True)
        assert isinstance(unknown, Refused)
        assert unknown.code is RefusalCode.UNKNOWN_PRODUCER_GROUP
        audit = await api.search.audit(10)
        assert isinstance(audit, AuditList)
        told = [(entry.what, entry.reason, entry.after) for entry in audit.entries if "put" not in entry.what]
        assert told == [
            ("producer-group.resume", "why", {"what": "checks"}),
            ("producer-group.pause", "why", {"what": "prepares"}),
            ("producer-group.pause", "why", {"what": "checks"}),
        ]


@in_world(make_service_world)
async def test_endpoints_that_a_group_does_not_have_yet_prove_whose_they_are(world: ServiceWorld) -> None:
    """With a put and with a lease; what it has is not asked again. Of several each is named that has not."""
    asked: list[tuple[str, str]] = []

    async def prove(group: ProducerGroup, url: str) -> str | None:
        asked.append((group.name, url))
        return "no echo" if "evil" in url else None

    async with world.serving() as api:
        clock = world.settlers.memory.clock
        groups = GroupService(api.directory, api.reads, clock, 1, lambda _: None, prove)
        saved = await groups.put("shop", SLOW, ["https://a.example"], WHO)
        assert isinstance(saved, GroupSaved)
        urls = ["https://a.example", "https://evil.example/1", "https://b.example", "https://evil.example/2"]
        refused = await groups.put("shop", SLOW, urls, WHO)
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.CALLBACK_UNVERIFIED
        assert refused.errors == [("/endpoints/1/url", "no echo"), ("/endpoints/3/url", "no echo")]
        assert isinstance(await groups.put("shop", SLOW, ["https://a.example"], WHO), GroupSaved)
        leased = await groups.register_endpoint("shop", "https://evil.example/3", 60_000, WHO)
        assert isinstance(leased, Refused)
        assert leased.code is RefusalCode.CALLBACK_UNVERIFIED
        for _ in range(2):
            registered = await groups.register_endpoint("shop", "https://c.example", 60_000, WHO)
            assert isinstance(registered, EndpointRegistered)
            await api.directory.refresh()
        assert [url for _, url in asked] == [urls[0], *urls[1:], "https://evil.example/3", "https://c.example"]
        assert {endpoint.url for endpoint in api.directory.groups["shop"].endpoints} == {urls[0], "https://c.example"}


@pytest.mark.parametrize(
    "changed",
    [
        "https://a.example/other",
        "https://a.example/check/",
        "https://a.example/check?of=shop",
        "https://a.example:8443/check",
        "http://a.example/check",
        "https://b.a.example/check",
        "https://A.example/check",
    ],
)
@in_world(make_service_world)
async def test_endpoint_whose_url_has_changed_proves_itself_anew(world: ServiceWorld, changed: str) -> None:
    """However little of it, with a put and with a lease: another server may answer there, of another owner. So does one
    that had left, and one that another group has."""
    asked: list[tuple[str, str]] = []
    first, lost = "https://a.example/check", {changed}

    async def prove(group: ProducerGroup, url: str) -> str | None:
        asked.append((group.name, url))
        return "no echo" if url in lost else None

    async with world.serving() as api:
        clock = world.settlers.memory.clock
        groups = GroupService(api.directory, api.reads, clock, 1, lambda _: None, prove)
        for group in ("shop", "mail"):
            assert isinstance(await groups.put(group, SLOW, [first], WHO), GroupSaved)
        tried = [
            await groups.put("shop", SLOW, [changed], WHO),
            await groups.register_endpoint("shop", changed, 60_000, WHO),
        ]
        codes = [one.code if isinstance(one, Refused) else None for one in tried]
        assert codes == [RefusalCode.CALLBACK_UNVERIFIED] * 2
        assert [endpoint.url for endpoint in api.directory.groups["shop"].endpoints] == [first]
        assert asked == [("shop", first), ("mail", first), ("shop", changed), ("shop", changed)]
        lost.clear()
        assert isinstance(await groups.put("shop", SLOW, [changed], WHO), GroupSaved)
        assert isinstance(await groups.put("shop", SLOW, [first], WHO), GroupSaved)
        assert asked[4:] == [("shop", changed), ("shop", first)]


@in_world(make_service_world)
async def test_urls_that_may_not_be_called_are_refused(world: ServiceWorld) -> None:
    """By a rule from outside; each is named; nothing is written."""
    async with world.serving() as api:
        urls = ["https://a.example", "http://b.example", "ftp://c"]
        refused = await api.groups.put("shop", SLOW, urls, WHO)
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.CALLBACK_URL_FORBIDDEN
        assert [pointer for pointer, _ in refused.errors] == ["/endpoints/1/url", "/endpoints/2/url"]
        assert refused.detail == "only https"
        refused = await api.groups.put("shop", SLOW, urls[2:], WHO)
        assert isinstance(refused, Refused)
        assert [pointer for pointer, _ in refused.errors] == ["/endpoints/0/url"]
        for name, many, pointer in (
            ("no spaces", [], "producer_group"), ("shop", ["https://a.example"] * 101, "/endpoints"),
        ):  # fmt: skip
            refused = await api.groups.put(name, SLOW, many, WHO)
            assert isinstance(refused, Refused)
            assert refused.code is RefusalCode.INVALID_REQUEST
            assert refused.errors == ((pointer, refused.detail),)
        missing = await api.groups.get("shop")
        assert isinstance(missing, Refused)
        assert missing.code is RefusalCode.UNKNOWN_PRODUCER_GROUP


@in_world(make_service_world)
async def test_delete_waits_for_what_is_pending(world: ServiceWorld) -> None:
    """Refused while anything of the group is to be done, also when it was prepared a moment ago."""
    async with world.serving() as api, world.settlers.settling():
        groups = api.groups
        [prepared] = await api.transactions.prepare([world.call()])
        assert isinstance(prepared, Prepared)
        behind = await groups.delete("shop", WHO)
        assert isinstance(behind, Refused)
        assert behind.code is RefusalCode.PROJECTION_BEHIND
        async with world.projecting():
            in_use = await groups.delete("shop", WHO)
            assert isinstance(in_use, Refused)
            assert (in_use.code, in_use.outcome) == (RefusalCode.PRODUCER_GROUP_IN_USE, Outcome.NOT_APPLIED)
            await api.transactions.end([EndCall(prepared.transaction_id, Resolution.ROLLBACK)])
            assert await groups.delete("shop", WHO) is None
            gone = await groups.delete("shop", WHO)
            assert isinstance(gone, Refused)
            assert gone.code is RefusalCode.UNKNOWN_PRODUCER_GROUP
            audit = await api.search.audit(10)
            assert isinstance(audit, AuditList)
            assert [entry.what for entry in audit.entries] == ["producer-group.delete"]


@pytest.mark.parametrize(("is_unknown", "outcome"), [(True, Outcome.UNKNOWN), (False, Outcome.NOT_APPLIED)])
def test_write_that_the_database_breaks_off_is_unknown_only_if_it_may_have_been_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_unknown: bool, outcome: Outcome
) -> None:
    """A COMMIT without an answer; all else changed nothing."""
    world = make_service_world(tmp_path)

    async def break_off(*_: object, **__: object) -> None:
        raise SqlUnavailable("gone", is_outcome_unknown=is_unknown)

    async def story() -> None:
        async with world.serving() as api, world.projecting():
            groups, url = api.groups, "https://a.example"
            await groups.put("shop", SLOW, [], WHO)
            monkeypatch.setattr(world.database, "run", break_off)
            for answer in (
                await groups.put("shop", SLOW, [url], WHO),
                await groups.delete("shop", WHO),
                await groups.rotate_secret("shop", WHO),
                await groups.register_endpoint("shop", url, 1_000, WHO),
                await groups.remove_endpoint("shop", url, WHO),
            ):
                assert isinstance(answer, Refused)
                assert (answer.code, answer.outcome) == (RefusalCode.UNAVAILABLE, outcome)
                assert answer.retry_after_s == 1

    world.run(story())


@in_world(make_service_world)
async def test_list_is_in_the_order_of_names(world: ServiceWorld) -> None:
    """With health; a page goes on after a name."""
    async with world.serving() as api, world.serving("other") as other:
        for name in ("c", "a", "b"):
            await other.groups.put(name, SLOW, [], WHO)
        found = await api.groups.list(2)
        rest = await api.groups.list(2, "b")
        assert not isinstance(found, Refused)
        assert not isinstance(rest, Refused)
        assert [health.group.name for health in (*found, *rest)] == ["a", "b", "c"]
        health = await api.groups.get("c")
        assert isinstance(health, GroupHealth)
        assert (health.group.settings, health.stats.pending) == (SLOW, 0)


@in_world(make_service_world)
async def test_sql_down_is_said(world: ServiceWorld) -> None:
    """Nothing of a group can be changed or shown without the database."""
    async with world.serving() as api:
        world.database.is_down = True
        groups = api.groups
        answers = [
            await groups.put("shop", SLOW, [], WHO),
            await groups.get("shop"),
            await groups.list(10),
            await groups.delete("shop", WHO),
            await groups.rotate_secret("shop", WHO),
        ]
        for answer in answers:
            assert isinstance(answer, Refused)
            assert (answer.code, answer.outcome) == (RefusalCode.UNAVAILABLE, Outcome.NOT_APPLIED)


@in_world(make_service_world)
async def test_leased_endpoints_are_audited_once(world: ServiceWorld) -> None:
    """Registering and leaving are acts, renewing is none; urls go by the same rule as in a put."""
    url = "https://live.example/x"
    async with world.serving() as api:
        groups = api.groups
        unknown = await groups.register_endpoint("shop", url, 60_000, WHO)
        assert isinstance(unknown, Refused)
        assert unknown.code is RefusalCode.UNKNOWN_PRODUCER_GROUP
        assert isinstance(await groups.remove_endpoint("shop", url, WHO), Refused)
        await groups.put("shop", SLOW, [], WHO)
        now_ms = world.settlers.memory.clock.now_ms()
        for _ in range(3):
            registered = await groups.register_endpoint("shop", url, 60_000, WHO)
            assert registered == EndpointRegistered(url, now_ms + 60_000)
        inward = await groups.register_endpoint("shop", "http://b.example", 60_000, WHO)
        assert isinstance(inward, Refused)
        assert inward.code is RefusalCode.CALLBACK_URL_FORBIDDEN
        assert await groups.remove_endpoint("shop", url, WHO) is True
        assert await groups.remove_endpoint("shop", url, WHO) is False
        audit = await api.search.audit(10)
        assert isinstance(audit, AuditList)
        assert [entry.what for entry in audit.entries] == [
            "producer-group.remove-endpoint",
            "producer-group.register-endpoint",
            "producer-group.put",
        ]
        assert audit.entries[1].after == {"url": url, "lease_ms": 60_000}
        assert (audit.entries[0].before, audit.entries[0].after) == ({"url": url}, None)


@in_world(make_service_world)
async def test_leases_of_a_group_have_a_limit(world: ServiceWorld) -> None:
    """409 above it; who is in renews, and who leaves makes room."""
    async with world.serving() as api:
        groups = api.groups
        await groups.put("shop", SLOW, [], WHO)
        urls = [f"https://{number}.example/x" for number in range(MAX_LEASED_ENDPOINTS + 1)]
        for url in urls[:-1]:
            assert isinstance(await groups.register_endpoint("shop", url, 60_000, WHO), EndpointRegistered)
        refused = await groups.register_endpoint("shop", urls[-1], 60_000, WHO)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.outcome) == (RefusalCode.TOO_MANY_ENDPOINTS, Outcome.NOT_APPLIED)
        assert isinstance(await groups.register_endpoint("shop", urls[0], 60_000, WHO), EndpointRegistered)
        await groups.remove_endpoint("shop", urls[0], WHO)
        assert isinstance(await groups.register_endpoint("shop", urls[-1], 60_000, WHO), EndpointRegistered)

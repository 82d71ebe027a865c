"""`group test` against real endpoints: each defect is found by its trials, and a good one passes all."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bridge.clock import SystemClock
from bridge.core.check_rules import CheckCalls, GroupSettings
from bridge.directory import Endpoint, ProducerGroup
from checker.conformance import Trial, TrialFinding, TrialVerdict
from checker.endpoint_guard import CallbackPolicy, parse_networks
from checker.endpoint_trial import EndpointTrials, TrialPlan, TrialReport, make_sample
from checker.http_caller import HttpCaller
from tests.support.trial_endpoint import SECRET, TrialEndpoint, trial_endpoint

LOOPBACK = CallbackPolicy(parse_networks(["127.0.0.0/8"]))
KNOWN, OPEN = "0" * 28, "1" * 28
PATIENT = GroupSettings(calls=CheckCalls(call_timeout_ms=30_000))
TRIALS = [trial for trial in Trial if trial is not Trial.PROBE]
FORGED = {Trial.NO_SIGNATURE, Trial.WRONG_SIGNATURE, Trial.CHANGED_BODY, Trial.REPLAYED}


def make_group(*urls: str, secrets: tuple[str, ...] = (SECRET,)) -> ProducerGroup:
    return ProducerGroup("orders", PATIENT, tuple(Endpoint(url) for url in urls), secrets)


def verdicts(findings: list[TrialFinding], verdict: TrialVerdict) -> set[Trial]:
    return {finding.trial for finding in findings if finding.verdict is verdict}


@pytest_asyncio.fixture
async def trials() -> AsyncIterator[EndpointTrials]:
    caller = HttpCaller(LOOPBACK, SystemClock())
    yield EndpointTrials(caller)
    await caller.close()


async def attack(trials: EndpointTrials, endpoint: TrialEndpoint) -> list[TrialFinding]:
    """With all that a user can give: two transactions, an end of the open one, a restart."""
    endpoint.states |= {KNOWN: "COMMIT", OPEN: "OPEN"}
    group = make_group(endpoint.url)
    report = await trials.attack(group, TrialPlan(KNOWN, OPEN))
    endpoint.states[OPEN] = "COMMIT"
    endpoint.restart()
    return report.findings + (await trials.ask_again(group, report.later)).findings


async def test_good_endpoint_passes_every_trial(trials: EndpointTrials) -> None:
    """In their order; the URL is shown without its query."""
    with trial_endpoint() as endpoint:
        findings = await attack(trials, endpoint)
    assert [finding.trial for finding in findings] == TRIALS
    assert verdicts(findings, TrialVerdict.GOOD) == set(TRIALS), findings
    assert {finding.endpoint for finding in findings} == {endpoint.url.partition("?")[0]}


@pytest.mark.parametrize(
    ("defect", "found"),
    [
        ("commits", {Trial.UNKNOWN_ID, Trial.LARGE_CALL, Trial.MANY_CHECKS, Trial.MANY_CALLS}),
        ("fickle", {Trial.SAME_ANSWER, Trial.AFTER_RESTART}),
        ("credulous", FORGED),
        ("timeless", {Trial.REPLAYED}),
        ("brittle", {Trial.GARBAGE}),
        ("small", {Trial.LARGE_CALL}),
        ("single", {Trial.MANY_CHECKS}),
        ("eager", {Trial.OPEN}),
        ("forgets", {Trial.AFTER_RESTART}),
    ],
)
async def test_defect_is_found_by_its_trials_alone(trials: EndpointTrials, defect: str, found: set[Trial]) -> None:
    """Each finding has a remedy, and names nothing that is right."""
    with trial_endpoint(defect) as endpoint:
        findings = await attack(trials, endpoint)
    assert verdicts(findings, TrialVerdict.BAD) == found, findings
    assert all(finding.remedy for finding in findings if finding.verdict is TrialVerdict.BAD)


async def test_what_was_not_given_is_skipped_and_said(trials: EndpointTrials) -> None:
    """Trials that need a transaction or a restart."""
    with trial_endpoint() as endpoint:
        findings, later = await trials.attack(make_group(endpoint.url), TrialPlan())
    skipped = {finding.trial: finding.found for finding in findings if finding.verdict is TrialVerdict.SKIPPED}
    assert skipped == {
        Trial.COMMITTED: "needs --committed ID",
        Trial.OPEN: "needs --open ID",
        Trial.AFTER_OPEN: "needs --open ID and --interactive",
    }
    assert [one.trial for one in later] == [Trial.AFTER_RESTART]


@pytest.mark.parametrize(
    ("defect", "secret", "found"),
    [
        ("", SECRET, "answers a signed call, without its challenge"),
        ("", f"whsec_{'b' * 44}", "no answer: status 401"),
        ("brittle", SECRET, "answers a signed call, without its challenge"),
    ],
)
async def test_probe_is_one_signed_call_that_asks_nothing(
    trials: EndpointTrials, defect: str, secret: str, found: str
) -> None:
    """Another secret is found, where a connection alone would be taken for well; the endpoint has nothing to note."""
    with trial_endpoint(defect) as endpoint:
        endpoint.secret = secret
        report = await trials.probe(make_group(endpoint.url, "http://127.0.0.1:1/check"))
    assert [finding.found for finding in report.findings] == [found, "no answer: refused"]
    assert endpoint.states == {}
    assert report == TrialReport(report.findings, [])


async def test_dead_endpoint_is_told_once(trials: EndpointTrials) -> None:
    """The other trials would only say the same; another endpoint of the group is tried all the same."""
    with trial_endpoint() as endpoint:
        dead = "http://127.0.0.1:1/check"
        findings, _ = await trials.attack(make_group(dead, endpoint.url), TrialPlan())
    of_dead = [finding for finding in findings if finding.endpoint == dead]
    assert [finding.verdict for finding in of_dead] == [TrialVerdict.BAD, *[TrialVerdict.SKIPPED] * (len(TRIALS) - 1)]
    assert of_dead[0].found == "no answer: refused"
    assert not verdicts([finding for finding in findings if finding.endpoint != dead], TrialVerdict.BAD)


async def test_group_without_secret_cannot_be_tried(trials: EndpointTrials) -> None:
    """Nothing goes out unsigned but what is meant to be."""
    with trial_endpoint() as endpoint:
        group = make_group(endpoint.url, secrets=())
        reports = [await trials.attack(group, TrialPlan()), await trials.probe(group)]
    (finding,) = {finding._replace(trial=Trial.UNKNOWN_ID) for report in reports for finding in report.findings}
    assert (finding.verdict, finding.found) == (TrialVerdict.BAD, "no secret to sign with")
    assert endpoint.states == {}


def test_sample_is_a_check_like_any_other() -> None:
    """Another transaction each time; an endpoint that checks the shape of what it gets must not refuse it."""
    first, second = make_sample(1), make_sample(1)
    assert first.transaction_id != second.transaction_id
    assert '"check_number":1' in first.text
    assert '"key":"sample"' in first.text

"""How a command reaches the bridge: by HTTP, or by Kafka and SQL with the settings of this machine."""

import asyncio
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec
import typer

from api.cli.output import CommandFailed, Exit, Output, OutputOption, Row, say, show_rows
from bridge.core.errors import ConfigError
from bridge.fault_points import ArmedFault, FaultPoint, arm, parse_fault
from outbox.client.config import HttpConfig

if TYPE_CHECKING:
    from api.settings import Settings
    from api.wiring import KafkaParts


# --- calls of commands to a running bridge, with the key and the certificates that the environment names ---

DEFAULT_URL = "http://127.0.0.1:8780"
_TIMEOUT_S = 20.0  # an end waits 10 s at most
_PAGE = 100

UrlOption = Annotated[str, typer.Option("--url", envvar="OUTBOX_BRIDGE_URL", help="Where the bridge listens.")]

_ELSEWHERE = "Name such a process with --url or OUTBOX_BRIDGE_URL."
_START = "Start it with `outbox-bridge dev`, or name another address with --url or OUTBOX_BRIDGE_URL."
_OF_TLS = {
    "CERTIFICATE_VERIFY_FAILED": "Call it as its certificate does; OUTBOX_BRIDGE_CA_FILE names who signed that.",
    "_CERTIFICATE_REQUIRED": "It wants one: set OUTBOX_BRIDGE_CLIENT_CERT_FILE and OUTBOX_BRIDGE_CLIENT_KEY_FILE.",
}
_UNSENT = (
    httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol, httpx2.InvalidURL,
    httpx2.LocalProtocolError, httpx2.ProxyError, UnicodeError,
)  # fmt: skip
_LOOK = "Look before you repeat it: what was asked may have been done, or may still be."
_STRANGER = "Is this a bridge? Check --url."
_NO_CONTENT, _FIRST_FAULT = 204, 500
_OF_GATEWAYS = {502, 503, 504}
_EXITS = {400: Exit.USAGE, 404: Exit.NOT_FOUND, 409: Exit.CONFLICT, 415: Exit.USAGE, 503: Exit.UNREACHABLE}


def client_for(url: str) -> httpx2.Client:
    """A client kept for the life of the process; one that needs no certificates is made much faster.

    Proxies of the environment are for what is farther away than a bridge: they know no loopback, and would see the key.
    """
    return _make_client(not url.startswith("http:"))


@cache
def _make_client(is_secured: bool) -> httpx2.Client:
    config = HttpConfig()
    tls = config.make_tls() if is_secured else False
    return httpx2.Client(timeout=_TIMEOUT_S, verify=tls, trust_env=config.trust_env)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer that is no error. `raw`: the document as it came."""

    status: int
    raw: bytes

    @property
    def members(self) -> dict[str, Any]:
        """The document, read. A member that is not there raises CommandFailed."""
        return _Members(msgspec.json.decode(self.raw) if self.raw else {})

    def items(self, name: str) -> list[msgspec.Raw]:
        """A member that is an array, each item as it came. Raises CommandFailed."""
        members = _Members(msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw]) if self.raw else {})
        return msgspec.json.decode(members[name], type=list[msgspec.Raw])


class _Members(dict[str, Any]):
    """Those of an answer, which may be another server's."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - of a document
        reason = f"the answer is none of a bridge: it has no {name}"
        raise CommandFailed(Exit.FAILED, reason, _STRANGER, is_unknown=True)


def call(  # noqa: PLR0913 - what a request has
    url: str,
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> HttpReply:
    """One request. Raises CommandFailed for everything that is not a success."""
    params = {name: str(value) for name, value in (query or {}).items() if value is not None}
    content = None if body is None else msgspec.json.encode(body)
    kind = {} if method == "GET" else {"Content-Type": "application/json"}
    sent = {**kind, **HttpConfig().proof, **(headers or {})}
    try:
        answer = client_for(url).request(
            method, url.rstrip("/") + path, params=params, content=content, headers=sent, timeout=timeout_s
        )
    except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
        is_lost = method != "GET" and not isinstance(error, _UNSENT)
        raise (_lost if is_lost else _unreachable)(url, error) from error
    if not answer.is_success:
        raise _refused(answer)
    if answer.status_code != _NO_CONTENT and not _is_object(answer.content):
        raise _of_stranger(answer)
    return HttpReply(answer.status_code, answer.content)


def _is_object(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
    return True


def find_all(
    url: str, path: str, name: str, filters: Mapping[str, object], limit: int
) -> tuple[list[msgspec.Raw], str | None]:
    """At most `limit` items, page by page, and the cursor behind them if there are more."""
    found: list[msgspec.Raw] = []
    cursor = filters.get("cursor")
    while True:
        query = {**filters, "cursor": cursor, "limit": min(limit - len(found), _PAGE)}
        page = call(url, "GET", path, query=query)
        found += page.items(name)
        cursor = page.members["next"]
        if cursor is None or len(found) >= limit:
            return found, cursor


def quoted(segment: str) -> str:
    """A name as one segment of a path, whatever was typed."""
    return quote(segment, safe="") or "-"


def _unreachable(url: str, error: Exception) -> CommandFailed:
    reason = str(error) or type(error).__name__
    remedy = next((remedy for words, remedy in _OF_TLS.items() if words in reason), _START)
    return CommandFailed(Exit.UNREACHABLE, f"no bridge answers at {url}: {reason}", remedy)


def _lost(url: str, error: Exception) -> CommandFailed:
    """A call that reached the bridge, or may have."""
    reason = f"the answer of {url} was lost, and whether it did what was asked is not known"
    return CommandFailed(Exit.FAILED, f"{reason}: {str(error) or type(error).__name__}", _LOOK, is_unknown=True)


def _refused(answer: httpx2.Response) -> CommandFailed:
    try:
        problem = answer.json()
        slug = str(problem["type"]).rpartition("/")[2]
        reason = f"{problem['detail'] or problem['title']} ({slug})"
        places = [str(error.get("pointer") or error.get("parameter")) for error in problem.get("errors", [])]
    except (ValueError, KeyError, TypeError, AttributeError):
        return _of_stranger(answer)
    code = _EXITS.get(answer.status_code, Exit.USAGE if slug == "invalid-request" else Exit.FAILED)
    reason += f" at {', '.join(places)}" if places else ""
    if _is_elsewhere(problem):
        return CommandFailed(Exit.UNREACHABLE, reason, _ELSEWHERE)
    return CommandFailed(code, reason, _remedy_of(slug), is_unknown=problem.get("outcome") == "unknown")


def _of_stranger(answer: httpx2.Response) -> CommandFailed:
    """An answer that no bridge gives. A proxy may have handed the call on before it lost the bridge."""
    method, status = answer.request.method, answer.status_code
    said = f"{answer.url.host} answered {status} with something that is no answer of a bridge"
    if method == "GET":
        return CommandFailed(Exit.UNREACHABLE if status in _OF_GATEWAYS else Exit.FAILED, said, _STRANGER)
    if answer.is_success or status >= _FIRST_FAULT:
        reason = f"{said}, and whether one did what was asked is not known"
        return CommandFailed(Exit.FAILED, reason, _LOOK, is_unknown=True)
    return CommandFailed(Exit.FAILED, said, _STRANGER)


def _is_elsewhere(problem: Mapping[str, object]) -> bool:
    """Whether a process answered that serves nobody: of what was asked for it knows nothing."""
    from api.web.problems import NO_ROLE  # noqa: PLC0415  # slow to import, needed for errors only

    return problem["detail"] == NO_ROLE


def _remedy_of(slug: str) -> str:
    """The table of problems knows what to do about each."""
    from api.web.problems import PROBLEMS  # noqa: PLC0415  # slow to import, needed for errors only

    row = PROBLEMS.get(slug)
    return row.remedy if row is not None else ""


# --- commands that use Kafka or SQL themselves: settings, loops, and the option that arms a fault ---

AllowFaultsOption = Annotated[
    bool, typer.Option("--allow-faults", help="Die where OUTBOX_BRIDGE_FAULT=NAME[:n] says. For tests of crashes only.")
]


def refuse_fault(settings: "Settings") -> None:
    """Raises ConfigError if a fault is set: who set it must also say on the command line that it is meant."""
    if settings.fault is not None:
        raise ConfigError("OUTBOX_BRIDGE_FAULT is set, but only serve, migrate and projection rebuild with "
                          "--allow-faults obey it; unset it, or give that flag")  # fmt: skip


def _find_dev_kafka(settings: "Settings") -> str:
    """Where the Kafka of a `dev` on these data listens, if nothing else is said: it may have taken another port."""
    from api.settings import Origin  # noqa: PLC0415  # slow to import

    note = settings.data_dir / DEV_KAFKA
    if settings.origin("kafka.bootstrap.servers") is not Origin.DEFAULT or not note.exists():
        return ""
    return note.read_text().strip()


def read_seconds(text: str) -> float:
    """A duration such as 1s, 500ms or 2m."""
    read = re.fullmatch(r"(\d{1,6})(ms|s|m|h)", text)
    if read is None:
        raise typer.BadParameter(f"{text!r} is no duration: say 1s, 500ms or 2m")
    return int(read[1]) * _SECONDS[read[2]]


def arm_fault(settings: "Settings") -> ArmedFault | None:
    """Arms what is set; None if nothing is. Raises ConfigError for an unknown name."""
    if settings.fault is None:
        return None
    fault = parse_fault(settings.fault)
    arm(fault)
    return fault


def fault_points(output: OutputOption = Output.TABLE) -> None:
    """List the crash points at which a process can be made to die.

    For tests of crashes: OUTBOX_BRIDGE_FAULT=NAME[:n] together with --allow-faults ends serve, migrate or
    projection rebuild at the n-th passing of the point, as SIGKILL would.
    """
    rows: list[Row] = [{"name": p.name, "role": p.role, "meaning": p.meaning} for p in FaultPoint]
    show_rows(rows, [("POINT", "name"), ("PASSED BY", "role"), ("MEANING", "meaning")], output)


T = TypeVar("T")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file; outbox-bridge.toml here, if it exists.")
]

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}

DEV_KAFKA = "dev.kafka"

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the audit.")]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def load(config: Path | None, flags: Mapping[str, Any] | None = None, *, allow_faults: bool = False) -> "Settings":
    """The settings of this process. Raises ConfigError."""
    from api.settings import load_settings  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    settings = load_settings(flags, config)
    if flags is None and (found := _find_dev_kafka(settings)):
        settings = load_settings({"kafka": {"bootstrap.servers": found}}, config)
    if not allow_faults:
        refuse_fault(settings)
    elif (fault := arm_fault(settings)) is not None:
        say(f"FAULT ARMED: this process dies at passing {fault.passing} of {fault.point.name}", "bold red")
    return settings


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Runs until it is done, on the faster event loop."""
    import uvloop  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def with_kafka(
    config: Path | None, act: Callable[["KafkaParts", "Settings"], Awaitable[T]], flags: Mapping[str, Any] | None = None
) -> T:
    """Runs `act` with the cluster of the settings. `flags`: settings of the command line."""
    from api.wiring import KafkaParts  # noqa: PLC0415  # slow to import, not needed for calls over HTTP

    settings = load(config, flags)

    async def run() -> T:
        parts = KafkaParts(settings)
        try:
            return await act(parts, settings)
        finally:
            await parts.close()

    return run_loop(run())


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: with everything stopped that it started."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def noticed_ctrl_c(*others: signal.Signals) -> Iterator[threading.Event]:
    """The first Ctrl-C, or one of the other signals, sets the event, the second interrupts.

    An exception raised by a signal is lost when it falls into a finalizer; an event is not.
    """
    noticed = threading.Event()

    def notice(_: int, __: FrameType | None) -> None:
        if noticed.is_set():
            raise KeyboardInterrupt
        noticed.set()

    before = {number: signal.signal(number, notice) for number in (signal.SIGINT, *others)}
    try:
        yield noticed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

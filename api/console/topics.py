"""Topics of transactions: what was published last, what cannot be, and how far consumers are behind."""

from collections import Counter
from collections.abc import Mapping

from api.console.render import PREFIX, render
from api.web.parse import check_property
from api.web.problems import NOT_FOUND, Problem, Rejected
from api.web.request import ApiRequest, Query, refuse
from api.web.road import HttpAnswer, Routes
from api.web.search import PAGE_PARAMETERS
from bridge.core.grants import Verb
from bridge.core.topics import is_legal_topic
from bridge.core.transaction import TransactionState
from bridge.service.contract import Refused
from bridge.sql.search import SearchFilter

routes = Routes()

_ROWS = 50
_BLOCKED = 500  # of all topics, that are looked at


@routes.add("GET", f"{PREFIX}/topics", verb=Verb.READ, is_for_all=True)
async def show_topics(request: ApiRequest) -> HttpAnswer:
    """In the order of their names."""
    cursor = Query(request.query, PAGE_PARAMETERS).text("cursor") or ""
    check_property(cursor, "?cursor")
    found = await request.services.search.topics(_ROWS, cursor)
    if isinstance(found, Refused):
        raise refuse(found)
    blocked, is_more = await _count_blocked(request)
    following = found[-1].topic if len(found) == _ROWS else None
    return render(
        request,
        "topics.html",
        found=found,
        blocked=blocked,
        is_more=is_more,
        following=following,
        is_first=not cursor,
    )


@routes.add("GET", f"{PREFIX}/topics/{{topic}}", verb=Verb.READ, is_for_all=True)
async def show_topic(request: ApiRequest, topic: str) -> HttpAnswer:
    """One of them, as Kafka has it now."""
    if not is_legal_topic(topic):
        raise Rejected(Problem(NOT_FOUND, "no topic can be called so"))
    found = await request.services.search.topic(topic)
    if isinstance(found, Refused):
        raise refuse(found)
    blocked, is_more = await _count_blocked(request)
    watch = request.services.consumers
    lag = None if watch is None else await watch.read(topic)
    return render(request, "topic.html", one=found, blocked=blocked.get(topic, 0), is_more=is_more, lag=lag)


async def _count_blocked(request: ApiRequest) -> tuple[Mapping[str, int], bool]:
    """Blocked commits by topic, of the newest ones; whether there are more."""
    wanted = SearchFilter(states=(TransactionState.COMMITTED,), blocked=True)
    page = await request.services.search.search(wanted, _BLOCKED)
    if isinstance(page, Refused):
        raise refuse(page)
    topics = [{message.topic for message in view.messages} for view in page.transactions]
    return Counter(topic for named in topics for topic in named), page.next is not None

"""Which transactions are meant: filters from query parameters and from bodies."""

from urllib.parse import urlencode

from starlette.requests import Request

from api.bodies import check_group, check_property, parse_base64
from api.problems import invalid
from api.queries import TIME_EXPECTED, Query, parse_time_ms
from api.schemas.requests import ParkedFilter
from bridge.core.transaction import TransactionState
from bridge.sql.search import SearchFilter

PAGE_PARAMETERS = frozenset({"limit", "cursor"})
PARKED_PARAMETERS = PAGE_PARAMETERS | {
    "producer_group",
    "topic",
    "key",
    "key_base64",
    "born_after",
    "born_before",
}
SEARCH_PARAMETERS = PARKED_PARAMETERS | {"state", "blocked"}
DEFAULT_PAGE = 100
_MAX_CURSOR = 200


def search_filter(query: Query) -> SearchFilter:
    """The filter of a search."""
    states = query.words("state", TransactionState, ", ".join(TransactionState))
    return SearchFilter(
        states=states,
        group=_group(query),
        topic=query.text("topic"),
        key=_key(query.text("key"), query.text("key_base64"), "?"),
        born_after_ms=query.time_ms("born_after"),
        born_before_ms=query.time_ms("born_before"),
        blocked=query.optional_flag("blocked"),
    )


def parked_filter(body: ParkedFilter) -> SearchFilter:
    """The filter of a redrive."""
    if body.producer_group is not None:
        check_group(body.producer_group, "/filter/producer_group")
    check_property(body.topic, "/filter/topic")
    return SearchFilter(
        group=body.producer_group,
        topic=body.topic,
        key=_key(body.key, body.key_base64, "/filter/"),
        born_after_ms=_time(body.born_after, "/filter/born_after"),
        born_before_ms=_time(body.born_before, "/filter/born_before"),
    )


def page_of(query: Query, most: int) -> tuple[int, str | None]:
    """`limit` and `cursor`."""
    cursor = query.text("cursor")
    if cursor is not None and (len(cursor) > _MAX_CURSOR or not cursor.isascii()):
        raise invalid("?cursor", "not a cursor of this bridge")
    return query.integer("limit", min(DEFAULT_PAGE, most), 1, most), cursor


def link_header(request: Request, cursor: str | None) -> dict[str, str]:
    """Where the next page is. Source: RFC 8288."""
    if cursor is None:
        return {}
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    return {"Link": f'<{request.url.path}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'}


def _group(query: Query) -> str | None:
    group = query.text("producer_group")
    if group is not None:
        check_group(group, "?producer_group")
    return group


def _key(text: str | None, in_base64: str | None, prefix: str) -> bytes | None:
    if in_base64 is None:
        return None if text is None else text.encode()
    if text is not None:
        raise invalid(f"{prefix}key_base64", "key and key_base64 are both given")
    return parse_base64(in_base64, f"{prefix}key_base64")


def _time(text: str | None, where: str) -> int | None:
    try:
        return None if text is None else parse_time_ms(text)
    except ValueError:
        raise invalid(where, TIME_EXPECTED) from None

"""Producer groups: who answers for them, what their checks have come to, how they are asked."""

from api.console.acts import refuse_read_only
from api.console.entry import read_form
from api.console.render import PREFIX, render
from api.web.groups import render_settings
from api.web.parse import check_group
from api.web.request import ApiRequest, Query, refuse, who_is
from api.web.road import HttpAnswer, Routes
from api.web.search import PAGE_PARAMETERS
from bridge.core.grants import Verb
from bridge.service.contract import Refused

routes = Routes()

_ROWS = 100


@routes.add("GET", f"{PREFIX}/groups", verb=Verb.READ)
async def show_groups(request: ApiRequest) -> HttpAnswer:
    """All of them, in the order of their names."""
    cursor = Query(request.query, PAGE_PARAMETERS).text("cursor")
    if cursor is not None:
        check_group(cursor, "?cursor")
    found = await request.services.groups.list(_ROWS, cursor or "", request.caller.rights)
    if isinstance(found, Refused):
        raise refuse(found)
    following = found[-1].group.name if len(found) == _ROWS else None
    return render(request, "groups.html", found=found, following=following, is_first=cursor is None)


@routes.add("GET", f"{PREFIX}/groups/{{group}}", verb=Verb.READ)
async def show_group(request: ApiRequest, group: str) -> HttpAnswer:
    """One of them."""
    return await _render_group(request, group)


@routes.add("POST", f"{PREFIX}/groups/{{group}}/rotate-secret", verb=Verb.ADMIN)
async def rotate_secret(request: ApiRequest, group: str) -> HttpAnswer:
    """A new signing secret, shown this once."""
    refuse_read_only(request)
    check_group(group, "?group")
    await read_form(request)
    secret = await request.services.groups.rotate_secret(group, who_is(request, ""))
    if isinstance(secret, Refused):
        raise refuse(secret)
    return await _render_group(request, group, secret)


async def _render_group(request: ApiRequest, group: str, secret: str | None = None) -> HttpAnswer:
    check_group(group, "?group")
    health = await request.services.groups.get(group, request.caller.rights)
    if isinstance(health, Refused):
        raise refuse(health)
    settings = render_settings(health.group.settings)
    named = {name.replace("_", " "): getattr(settings, name) for name in settings.__struct_fields__}
    check = {name: f"{value:g}" if isinstance(value, float) else value for name, value in named.items()}
    return render(request, "group.html", health=health, check=check, secret=secret)

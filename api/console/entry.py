"""Who reads the pages, and what they do by hand."""

import re
from collections.abc import Callable
from urllib.parse import parse_qsl

from api.console.render import (
    HEADERS,
    HTML,
    LANGUAGE_COOKIE,
    LANGUAGES,
    PREFIX,
    SESSION_COOKIE,
    base_of,
    find_cookie,
    redirect,
    render,
)
from api.console.transactions import render_transaction
from api.web.guard import NOBODY, identify
from api.web.parse import check_transaction_id
from api.web.problems import (
    FORBIDDEN,
    INVALID_REQUEST,
    UNAUTHENTICATED,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    Rejected,
    invalid,
    problem_of,
    reject,
)
from api.web.request import ApiRequest, check_reason, who_is
from api.web.road import HttpAnswer, Routes, Run
from bridge.core.grants import Verb
from bridge.core.record import Act, Resolution
from bridge.service.access import LIFE_S, Caller
from bridge.service.contract import Refused

# --- who reads the pages: by a credential as everywhere, else by the session that an API key has begun ---

routes = Routes()

SIGN_IN = f"{PREFIX}/sign-in"
_FORM = "application/x-www-form-urlencoded"
_MOST_BYTES = 64 * 1024
_PLACE = re.compile(r"[a-z-]+(/[A-Za-z0-9._~%-]+)*(\?[A-Za-z0-9._~%=&+-]*)?")  # a page below the first one


def identify_reader(request: ApiRequest) -> Caller | Problem:
    """Who asks for a page. Without a proof only the way to sign in is shown."""
    services, path = request.services, request.path
    found = identify(services.access, path, request.scope["headers"], request.certified)
    if not isinstance(found, Problem) or b"authorization" in request.fields:
        return found
    shown = find_cookie(request, SESSION_COOKIE)
    caller = None if shown is None or services.sessions is None else services.sessions.find(shown)
    if caller is not None:
        services.access.note_use(caller)
        return caller
    return NOBODY if path == SIGN_IN or path.startswith(f"{PREFIX}/assets/") else found


def lead_to_sign_in(request: ApiRequest) -> HttpAnswer:
    """Where somebody without a session is sent; the way back is remembered.

    On the way from another site browsers keep the session back, so such a page first leads to itself.
    """
    below = request.path.partition(PREFIX)[2].strip("/")
    query = request.scope["query_string"].decode("latin-1")
    wanted = below + (f"?{query}" if query else "")
    if request.fields.get(b"sec-fetch-site") == b"cross-site":
        return render(request, "bounce.html", target=base_of(request.path) + wanted)
    return redirect(request, "sign-in", **({"next": wanted} if _PLACE.fullmatch(wanted) else {}))


@routes.add("GET", SIGN_IN, verb=None)
async def show_sign_in(request: ApiRequest) -> HttpAnswer:
    """Asks for an API key."""
    if request.services.access.config.is_open:
        return redirect(request, "")
    return render(request, "sign_in.html", wanted=request.query.get("next", ""), is_wrong=False)


@routes.add("POST", SIGN_IN, verb=None)
async def sign_in(request: ApiRequest) -> HttpAnswer:
    """Begins a session."""
    form = await read_form(request)
    sessions, wanted = request.services.sessions, form.get("next", "")
    begun = None if sessions is None else sessions.begin(form.get("key", "").strip())
    if begun is None:
        client = request.scope.get("client") or ("unknown",)
        request.traffic.refused_proofs.note(client[0], "not a key that is valid")
        return render(request, "sign_in.html", 401, wanted=wanted, is_wrong=True)
    return _leave(request, wanted if _PLACE.fullmatch(wanted) else "", f"{begun}; Max-Age={LIFE_S}")


@routes.add("POST", f"{PREFIX}/sign-out", verb=None)
async def sign_out(request: ApiRequest) -> HttpAnswer:
    """Ends the session in this browser."""
    await read_form(request)
    return _leave(request, "sign-in", "; Max-Age=0")


@routes.add("POST", f"{PREFIX}/language", verb=None)
async def switch_language(request: ApiRequest) -> HttpAnswer:
    """Another language, for a year or until another one is chosen; then back to the page."""
    form = await read_form(request)
    language, place = form.get("language", ""), form.get("next", "")
    if language not in LANGUAGES:
        raise invalid("/language", f"one of {', '.join(LANGUAGES)}")
    kept = f"{LANGUAGE_COOKIE}={language}; Max-Age=31536000; HttpOnly; SameSite=Lax"
    target = base_of(request.path) + (place if _PLACE.fullmatch(place) else "")
    return HttpAnswer(303, b"", (*HEADERS, ("Location", target), ("Set-Cookie", kept)), HTML)


def _leave(request: ApiRequest, place: str, cookie: str) -> HttpAnswer:
    """Without a path the cookie is for the folder of this address, whatever a proxy puts before it."""
    is_secured = request.scope.get("scheme") == "https" or request.fields.get(b"origin", b"").startswith(b"https:")
    kept = f"{SESSION_COOKIE}={cookie}; HttpOnly; SameSite=Strict{'; Secure' if is_secured else ''}"
    headers = (*HEADERS, ("Location", base_of(request.path) + place), ("Set-Cookie", kept))
    return HttpAnswer(303, b"", headers, HTML)


async def read_form(request: ApiRequest) -> dict[str, str]:
    """The fields of a form, each given once. Raises Rejected."""
    kinds = request.values(b"content-type")
    if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() != _FORM:
        raise reject(UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {_FORM}")
    raw = await request.body()
    if len(raw) > _MOST_BYTES:
        raise invalid("", "the form is too large")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=bool(raw), errors="strict")
    except ValueError:
        raise invalid("", "not a form in UTF-8") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise invalid("", "a field is given twice")
    return fields


def is_unproven(problem: Problem) -> bool:
    """Whether signing in would help."""
    return problem.type is UNAUTHENTICATED


# --- acts by hand on one transaction: a call of the HTTP interface too, with the same rights and audit ---


NO_REASON = "Nothing was done: say why, others will want to know."


def refuse_read_only(request: ApiRequest) -> None:
    """Raises Rejected where pages let nobody do anything."""
    if request.services.is_read_only:
        raise Rejected(Problem(FORBIDDEN, "this console is read-only (http.console); use the HTTP interface"))


def _make(word: str, act: Act | Resolution) -> Run:
    async def run(request: ApiRequest, transaction_id: str) -> HttpAnswer:
        """Does it, and leads back to the transaction; on a refusal the page says what has become of it."""
        refuse_read_only(request)
        check_transaction_id(transaction_id, "?transaction_id")
        reason = (await read_form(request)).get("reason", "")
        try:
            who = who_is(request, "" if act is Act.CHECK else check_reason(reason))
        except Rejected as error:
            asked = Problem(INVALID_REQUEST, "nothing was done: say why, others will want to know")
            why = error.problem if reason.strip() else asked
            return await render_transaction(request, transaction_id, why, reason)
        service, wait_ms = request.services.transactions, int(request.services.limits.wait_s * 1000)
        if isinstance(act, Act):
            answer = await service.act(transaction_id, act, who, wait_ms)
        else:
            answer = await service.force(transaction_id, act, who, wait_ms)
        if isinstance(answer, Refused):
            refused = problem_of(answer)
            try:
                return await render_transaction(request, transaction_id, refused, reason)
            except Rejected:  # the page cannot be read; what became of the act is what has to be said
                raise Rejected(refused) from None
        return redirect(request, f"transactions/{transaction_id}", done=word)

    return run


_ACTS: dict[str, Act | Resolution] = {
    "check": Act.CHECK,
    "commit": Resolution.COMMIT,
    "rollback": Resolution.ROLLBACK,
    "resume": Act.RESUME,
    "abandon": Act.ABANDON,
}
for _word, _act in _ACTS.items():
    _add: Callable[[Run], Run] = routes.add(
        "POST", f"{PREFIX}/transactions/{{transaction_id}}/{_word}", verb=Verb.OPERATE
    )
    _add(_make(_word, _act))

"""Acts by hand on one transaction: a call of the HTTP interface too, with the same rights and audit."""

from collections.abc import Callable

from api.console.entry import read_form
from api.console.render import PREFIX, redirect
from api.console.transaction import render_transaction
from api.web.parse import check_transaction_id
from api.web.problems import FORBIDDEN, INVALID_REQUEST, Problem, Rejected, problem_of
from api.web.request import ApiRequest, check_reason, who_is
from api.web.road import HttpAnswer, Routes, Run
from bridge.core.grants import Verb
from bridge.core.record import Act, Resolution
from bridge.service.contract import Refused

routes = Routes()


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
        except Rejected:
            asked = Problem(INVALID_REQUEST, "nothing was done: say why, others will want to know")
            return await render_transaction(request, transaction_id, asked, reason)
        service, wait_ms = request.services.transactions, int(request.services.limits.wait_s * 1000)
        if isinstance(act, Act):
            answer = await service.act(transaction_id, act, who, wait_ms)
        else:
            answer = await service.force(transaction_id, act, who, wait_ms)
        if isinstance(answer, Refused):
            return await render_transaction(request, transaction_id, problem_of(answer), reason)
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

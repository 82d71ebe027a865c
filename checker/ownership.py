"""Proof that an endpoint belongs to a producer group: it sends back a text that only a signed call told it.

Without it, whoever may register endpoints could have the bridge call any server on the internet, again and again.
"""

from collections.abc import Callable

from bridge.clock import Clock
from bridge.directory import ProducerGroup
from checker.call import encode_challenge, is_echo, sign_call
from checker.caller import CheckCaller, EndpointCall

_TIMEOUT_MS = 3_000
_MOST_BYTES = 4_096


class OwnershipProof:
    """Asks endpoints for it. `open_caller`: called once, when the first one is asked."""

    def __init__(self, open_caller: Callable[[], CheckCaller], clock: Clock, make_text: Callable[[], str]) -> None:
        self._open_caller = open_caller
        self._clock = clock
        self._make_text = make_text
        self._caller: CheckCaller | None = None

    async def find_flaw(self, group: ProducerGroup, url: str) -> str | None:
        """Why the endpoint may not be called for this group; None: it has proved that it may."""
        challenge = self._make_text()
        body = encode_challenge(group.name, challenge)
        headers = sign_call(group.secrets, self._make_text(), self._clock.now_ms(), body)
        if headers is None:
            return "the group has no secret that calls can be signed with"
        if self._caller is None:
            self._caller = self._open_caller()
        reply = await self._caller.call(EndpointCall(url, headers, body.encode(), _TIMEOUT_MS, _MOST_BYTES))
        if reply.failure is not None:
            return f"the endpoint did not answer the challenge: {reply.failure}" + _show_status(reply.status)
        return None if is_echo(reply.body, challenge) else "the endpoint did not send the challenge back"

    async def close(self) -> None:
        """Cuts what is open."""
        if self._caller is not None:
            await self._caller.close()


def _show_status(status: int) -> str:
    return f" {status}" if status else ""

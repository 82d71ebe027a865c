"""A client of RocketMQ's remoting protocol that can be told what no library would do: for the door and for brokers."""

import hmac
import json
import socket
import ssl
import time
import uuid
from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple

from api.remoting.frame import FrameBuffer, HeaderType, RemotingCommand, encode_frame
from bridge.core.properties import write_properties

_ONE_WAY, _PREPARED = 2, "4"
_SEND, _HEARTBEAT, _END, _CHECK = 310, 34, 37, 39


class HalfSent(NamedTuple):
    """Where a half message is. `key`: its UNIQ_KEY."""

    key: str
    transaction_id: str
    queue_offset: str
    log_offset: str


def sign(access_key: str, secret_key: str, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
    """The fields with a signature, as AclClientRPCHook makes it."""
    named = {**fields, "AccessKey": access_key}
    content = "".join(named[name] for name in sorted(named)).encode() + body
    return {**named, "Signature": b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()}


class RemotingClient:
    """One connection of a producer group. What the other side asks meanwhile waits in `checks`.

    `context`: for TLS. `signing`: AccessKey and SecretKey.
    """

    def __init__(
        self,
        port: int,
        group: str = "shop",
        *,
        context: ssl.SSLContext | None = None,
        signing: tuple[str, str] | None = None,
    ) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket = plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
        self.group = group
        self._signing = signing
        self.checks: list[RemotingCommand] = []
        self._buffer, self._came = FrameBuffer(), list[RemotingCommand]()
        self._opaque = 0

    def close(self) -> None:
        self.socket.close()

    def read(self) -> RemotingCommand:
        """The next answer. Raises ConnectionError at the end."""
        while True:
            while not self._came:
                self._receive()
            frame = self._came.pop(0)
            if frame.code != _CHECK or frame.is_response:
                return frame
            self.checks.append(frame)

    def wait_checks(self, seconds: float) -> list[RemotingCommand]:
        """The checks that have come by then; they are taken out."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.socket.settimeout(left_s)
            try:
                self._receive()
            except TimeoutError:
                break
        self.socket.settimeout(20)
        self.checks += [frame for frame in self._came if frame.code == _CHECK]
        self._came.clear()
        found, self.checks = self.checks, []
        return found

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"", flag: int = 0) -> RemotingCommand | None:
        """The answer; None to what is one-way."""
        self._write(code, fields, body, flag)
        return None if flag else self.read()

    def join(self) -> None:
        """Says which group it is of."""
        beat = {"clientID": f"{self.group}@{id(self)}", "producerDataSet": [{"groupName": self.group}]}
        answer = self.ask(_HEARTBEAT, {}, json.dumps({**beat, "consumerDataSet": []}).encode())
        assert answer is not None
        assert answer.code == 0, answer

    def send(self, topic: str, key: str, body: bytes = b"paid", **properties: str) -> RemotingCommand:
        """A half message."""
        self.begin_send(topic, key, body, **properties)
        return self.read()

    def begin_send(self, topic: str, key: str, body: bytes = b"paid", **properties: str) -> None:
        """The answer is read later."""
        text = write_properties({"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": key, **properties})
        fields = {
            "a": self.group, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": _PREPARED,
            "g": str(round(time.time() * 1000)), "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        self._write(_SEND, fields, body, 0)

    def prepare(self, topic: str, key: str | None = None) -> HalfSent:
        """A half message that must be taken."""
        key = key or uuid.uuid4().hex.upper()
        answer = self.send(topic, key)
        assert answer.code == 0, answer
        found = answer.fields
        return HalfSent(key, found["transactionId"], found["queueOffset"], str(int(found["msgId"][-16:], 16)))

    def end(self, transaction_id: str, resolution: int, group: str | None = None) -> None:
        """By its id alone, which is enough for the door."""
        fields = {"transactionId": transaction_id, "commitOrRollback": str(resolution)}
        self.ask(_END, {**fields, "producerGroup": group or self.group}, flag=_ONE_WAY)

    def end_half(self, half: HalfSent, resolution: int) -> None:
        """As a library does when the local transaction is over."""
        fields = {
            "producerGroup": self.group, "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.log_offset,
            "commitOrRollback": str(resolution), "fromTransactionCheck": "false", "msgId": half.key,
            "transactionId": half.transaction_id,
        }  # fmt: skip
        self.ask(_END, fields, flag=_ONE_WAY)

    def answer_check(self, check: RemotingCommand, resolution: int) -> None:
        """As a library does when its listener has been asked."""
        own = {"producerGroup": self.group, "commitOrRollback": str(resolution), "fromTransactionCheck": "true"}
        names = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        self.ask(_END, {**own, **{name: check.fields.get(name, "") for name in names}}, flag=_ONE_WAY)

    def _receive(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError("closed")
        self._buffer.add(data)
        self._came += self._buffer.take()

    def _write(self, code: int, fields: Mapping[str, str], body: bytes, flag: int) -> None:
        self._opaque += 1
        if self._signing is not None:
            fields = sign(*self._signing, fields, body)
        request = RemotingCommand(code, self._opaque, flag, 513, None, fields, body, HeaderType.ROCKETMQ)
        self.socket.sendall(encode_frame(request))

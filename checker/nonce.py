"""Nonces of checks: `<check number>-<random>`."""

import re

_NONCE = re.compile(r"([1-9][0-9]{0,8})-[0-9A-Za-z_-]{16,64}")


def make_nonce(check_number: int, random_text: str) -> str:
    """The nonce of a transaction's check; `random_text` is URL-safe base64."""
    return f"{check_number}-{random_text}"


def parse_nonce(nonce: str) -> int | None:
    """The check number in a nonce; None if it has not the form of one."""
    match = _NONCE.fullmatch(nonce)
    return int(match[1]) if match else None

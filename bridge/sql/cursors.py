"""Page cursors: a kind and numbers, opaque to callers."""

import base64

from bridge.sql.errors import MalformedCursor

_INT64 = 2**63


def encode_cursor(kind: str, *numbers: int) -> str:
    """URL-safe, without padding."""
    text = ":".join([kind, *map(str, numbers)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(kind: str, count: int, cursor: str) -> list[int]:
    """So many numbers of 64 bits. Raises MalformedCursor at any text but the one that is made of them."""
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        numbers = [int(part) for part in raw.split(b":")[1:]]
    except ValueError as error:
        raise MalformedCursor("not a cursor of this bridge") from error
    is_made = len(numbers) == count and encode_cursor(kind, *numbers) == cursor  # base64 and int() pass over much
    if not is_made or not all(-_INT64 <= number < _INT64 for number in numbers):
        raise MalformedCursor("not a cursor of this bridge")
    return numbers

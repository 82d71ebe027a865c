"""How much the service takes on."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one process, and of what all processes together leave pending."""

    max_messages: int = 100  # of one transaction
    max_message_bytes: int = MIB  # key, value and headers
    max_record_bytes: int = 8 * MIB + 64 * 1024  # of a journal record; the journal's max.message.bytes
    max_pending: int = 2_000_000
    max_in_flight: int = 100_000  # records being appended
    max_text_chars: int = 1_000  # reasons, actors, keys that travel in properties
    projection_wait_ms: int = 2_000
    retry_after_s: int = 1

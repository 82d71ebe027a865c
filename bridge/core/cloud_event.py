"""What the bridge tells others about itself, as CloudEvents 1.0 in JSON. Pure.

Source: CloudEvents 1.0.2, JSON format 1.0.2. The id is made of what happened, so that whoever hears it twice can tell.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from bridge.core.message import write_json
from bridge.core.moment import show_time

CLOUD_EVENTS_JSON = "application/cloudevents+json"


class CloudEvent(NamedTuple):
    """`text`: the whole event as JSON."""

    event_id: str
    type: str
    text: str


class Happening(NamedTuple):
    """`key`: what makes it this one and no other of its type. `data`: JSON members."""

    type: str
    key: str
    subject: str
    at_ms: int
    data: Mapping[str, object]


def make_cloud_event(source: str, happening: Happening) -> CloudEvent:
    """Equal happenings of one source are one event."""
    told = f"{source}\0{happening.type}\0{happening.key}".encode()
    event_id = f"evt_{hashlib.blake2b(told, digest_size=16).hexdigest()}"
    members = {
        "specversion": "1.0",
        "id": event_id,
        "source": source,
        "type": happening.type,
        "subject": happening.subject,
        "time": show_time(happening.at_ms),
        "datacontenttype": "application/json",
        "data": dict(happening.data),
    }
    return CloudEvent(event_id, happening.type, write_json(members))


def name_source(cluster_id: str, topic: str) -> str:
    """The bridge as the source of events: that of this journal in this cluster. A URI."""
    return f"urn:outbox-bridge:{cluster_id or '-'}:{topic}"

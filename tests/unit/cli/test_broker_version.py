"""api.cli.examinations: the release of a broker from what it says."""

import struct

import pytest

from api.cli.examinations import make_request, name_release, read_features


def answer(level: int) -> bytes:
    """Correlation id, no error, one API, no throttle, supported features."""
    name = b"metadata.version"
    ranges = b"\x02" + bytes([len(name) + 1]) + name + struct.pack(">hh", 7, level) + b"\x00"
    apis = b"\x02" + struct.pack(">hhh", 18, 0, 4) + b"\x00"
    return struct.pack(">ih", 1, 0) + apis + struct.pack(">i", 0) + b"\x01\x00" + bytes([len(ranges)]) + ranges


def test_request_carries_its_length() -> None:
    """ApiVersions, version 3."""
    request = make_request()
    assert struct.unpack(">i", request[:4])[0] == len(request) - 4
    assert struct.unpack(">hh", request[4:8]) == (18, 3)


def test_supported_features_are_read() -> None:
    """Behind the list of APIs, in the first tagged field."""
    assert read_features(answer(30)) == {"metadata.version": 30}


@pytest.mark.parametrize("length", range(40))
def test_broken_answer_tells_nothing(length: int) -> None:
    """Cut off anywhere: no version, and no exception."""
    assert read_features(answer(30)[:length]) == {}


@pytest.mark.parametrize(
    ("level", "release"),
    [(None, None), (3, None), (7, "3.3"), (14, "3.6"), (25, "4.0"), (27, "4.1"), (30, "4.3"), (34, "4.3 or newer")],
)
def test_level_names_its_release(level: int | None, release: str | None) -> None:
    """As Kafka's own table says."""
    assert name_release(level) == release

"""Bytes that are no request, each with the status and code of the answer; the connection is closed then."""

_HEAD = b"POST /v1/transactions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n"
_GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
RAW_REQUESTS: list[tuple[str, bytes, int, str]] = [
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed-request"),
    ("a header without a colon", b"GET /livez HTTP/1.1\r\nHost\r\n\r\n", 400, "malformed-request"),
    ("length and chunks both", _CHUNKED + b"Content-Length: 2\r\n\r\n{}", 400, "malformed-request"),
    ("two lengths", _HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "malformed-request"),
    ("a length below 0", _HEAD + b"Content-Length: -2\r\n\r\n{}", 400, "malformed-request"),
    ("a bad chunk", _CHUNKED + b"\r\nZZ\r\n{}\r\n", 400, "malformed-request"),
    ("a bad chunk behind a good one", _CHUNKED + b"\r\n1\r\n{\r\nxyz\r\n", 400, "malformed-request"),
    ("a path that is not ASCII", b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed-request"),
    ("a URI of 9 KiB", b"GET /" + b"a" * 9_216 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "uri-too-long"),
    ("17 KiB in one header", _GET + b"X: " + b"a" * 17_408 + b"\r\n\r\n", 431, "headers-too-large"),
    ("a header without end", _GET + b"X: " + b"a" * 70_000, 431, "headers-too-large"),
    (
        "2,000 headers",
        b"GET /livez HTTP/1.1\r\n" + b"".join([b"X-%d: some value\r\n" % n for n in range(2_000)]) + b"\r\n",
        431,
        "headers-too-large",
    ),
]

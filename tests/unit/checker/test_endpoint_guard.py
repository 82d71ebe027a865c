"""URLs and addresses that must not be called, in every notation."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from bridge.core.errors import ConfigError
from checker.endpoint_guard import CallbackPolicy, CheckedUrl, check_addresses, check_url, is_allowed, parse_networks

PUBLIC = CallbackPolicy()
LOOPBACK = CallbackPolicy(parse_networks(["127.0.0.0/8", "::1/128"]))


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://shop.example", "shop.example", 443),
        ("https://shop.example/check?a=b%20c&d=[1]", "shop.example", 443),
        ("https://Shop.Example:8443/", "shop.example", 8443),
        ("https://shop.example./x", "shop.example.", 443),
        ("https://xn--caf-dma.example/", "xn--caf-dma.example", 443),
        ("https://a_b.shop-1.example/~me/", "a_b.shop-1.example", 443),
    ],
)
def test_plain_https_names_are_taken(url: str, host: str, port: int) -> None:
    """As they are."""
    assert check_url(url, PUBLIC) == CheckedUrl(url, "https", host, port)


@pytest.mark.parametrize(
    "url",
    [
        "http://shop.example/",
        "HTTPS://shop.example/",
        "https://shop.example:80/",
        "https://shop.example:22/",
        "https://shop.example:0/",
        "https://shop.example:65536/",
        "https://shop.example:/",
        "https://shop.example:44\uff13/",
        "https://user@shop.example/",
        "https://user:secret@shop.example/",
        "https://shop.example@127.0.0.1/",
        "https://shop.example#fragment",
        "https://shop.example/#fragment",
        "https://shop.example?query",
        "https://shop.example\\@127.0.0.1/",
        "https://shop.example/\\evil",
        "https:/shop.example/",
        "https:shop.example/",
        "//shop.example/",
        "ftp://shop.example/",
        "file:///etc/passwd",
        "gopher://shop.example/",
        " https://shop.example/",
        "https://shop.example/ ",
        "https://shop.example/\n",
        "https://shop.example/\r\nHost: evil",
        "https://sh op.example/",
        "https://shop.example/\x00",
        "https:///path",
        "https://.example/",
        "https://shop..example/",
        "https://-shop.example/",
        "https://%31%32%37.0.0.1/",
        "https://caf\u00e9.example/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://\u2460\u2461\u2466.0.0.1/",
        "https://shop\u3002example/",
        "https://shop.example\u2028/",
        "https://" + "a" * 64 + ".example/",
        "https://shop.example/" + "a" * 2_000,
    ],
)
def test_anything_unusual_is_refused(url: str) -> None:
    """What two parsers could read differently is no URL of an endpoint."""
    assert isinstance(check_url(url, PUBLIC), str)
    assert isinstance(check_url(url, LOOPBACK), str) or url.startswith(
        ("http://shop.example/", "https://shop.example:")
    )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "8.8.8.8", "127.1", "127.0.1", "0", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1",
        "017700000001", "127.0.0.0x1", "127.0.0.1.", "1.2.3.4.5", "256.1.1.1", "shop.0x", "shop.1",
        "[::1]", "[::]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[fe80::1]", "[0:0:0:0:0:0:0:1]", "[2001:db8::1]",
        "[2606:4700::1111]", "[fd00:ec2::254]", "[::1%25eth0]", "[127.0.0.1]", "[v1.x]", "[]",
    ],
)  # fmt: skip
def test_addresses_are_no_names_in_any_notation(host: str) -> None:
    """An endpoint of the public internet is a name."""
    assert isinstance(check_url(f"https://{host}/", PUBLIC), str)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://shop.example/", "not a plain http or https URL"),
        ("https://shop.example:65536/", "no such port"),
        ("https://shop..example/", "not a host name"),
        ("https://127.1/", "not a host name"),
        ("http://shop.example/", "only https on ports 443 and 8443"),
        ("https://8.8.8.8/", "an address instead of a name"),
    ],
)
def test_a_refusal_says_why(url: str, why: str) -> None:
    """Whoever registers an endpoint reads it."""
    assert check_url(url, PUBLIC) == why


def test_length_and_ports_are_taken_up_to_their_limits() -> None:
    """2,000 characters; 1 to 65,535."""
    longest = "https://shop.example/" + "a" * (2_000 - 21)
    assert check_url(longest, PUBLIC) == CheckedUrl(longest, "https", "shop.example", 443)
    assert isinstance(check_url(longest + "a", PUBLIC), str)
    for port in (1, 65_535):
        url = f"http://localhost:{port}/"
        assert check_url(url, LOOPBACK) == CheckedUrl(url, "http", "localhost", port)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8780/check", "http://[::1]:9/", "https://127.9.9.9/"])
def test_allowed_networks_take_http_any_port_and_addresses(url: str) -> None:
    """The development setting: loopback."""
    checked = check_url(url, LOOPBACK)
    assert isinstance(checked, CheckedUrl)
    seen = URL(url)
    assert checked == CheckedUrl(url, seen.scheme, seen.host or "", seen.port or 0)
    assert check_addresses(checked, [checked.host], LOOPBACK) is None


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f.1", "8.8.8.8", "[0:0::1]", "[::ffff:127.0.0.1]", "10.0.0.1"]
)
def test_allowed_networks_take_nothing_else(host: str) -> None:
    """Only canonical addresses inside them."""
    assert isinstance(check_url(f"http://{host}:8080/", LOOPBACK), str)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255", "168.63.129.16",
        "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1",
        "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::808:808",
        "64:ff9b:1::1", "100::1", "2001::1", "2001:0:53aa::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1",
        "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
        "4000::1", "not an address", "", "8.8.8.8 ", "010.8.8.8",
    ],
)  # fmt: skip
def test_denied_addresses(address: str) -> None:
    """Loopback, private, link-local, metadata, CGNAT, multicast, reserved, ULA, mapped, NAT64, 6to4, Teredo."""
    checked = CheckedUrl("https://shop.example/", "https", "shop.example", 443)
    assert check_addresses(checked, [address], PUBLIC) is not None
    assert check_addresses(checked, ["8.8.8.8", address], PUBLIC) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00::1"])
def test_public_addresses(address: str) -> None:
    """The rest of the internet."""
    checked = CheckedUrl("https://shop.example/", "https", "shop.example", 443)
    assert check_addresses(checked, [address], PUBLIC) is None


def test_no_address_is_no_endpoint() -> None:
    """An empty answer allows nothing."""
    checked = CheckedUrl("https://a.b/", "https", "a.b", 443)
    assert check_addresses(checked, [], PUBLIC) == "no address"
    assert check_addresses(checked, ["127.0.0.1"], PUBLIC) == "address not allowed"


def test_one_denied_address_refuses_the_name() -> None:
    """Also when other networks are allowed: http to the public internet stays denied."""
    checked = check_url("http://localhost:8080/", LOOPBACK)
    assert isinstance(checked, CheckedUrl)
    assert check_addresses(checked, ["127.0.0.1", "::1"], LOOPBACK) is None
    assert check_addresses(checked, ["127.0.0.1", "8.8.8.8"], LOOPBACK) is not None
    assert check_addresses(checked, ["127.0.0.1", "10.0.0.1"], LOOPBACK) is not None


@pytest.mark.parametrize("url", ["https://shop.example:8080/", "http://shop.example:443/"])
def test_allowed_networks_open_no_port_of_the_internet(url: str) -> None:
    """Only https and only its two ports lead there."""
    checked = check_url(url, LOOPBACK)
    assert isinstance(checked, CheckedUrl)
    assert check_addresses(checked, ["8.8.8.8"], LOOPBACK) == "address not allowed"


def test_our_own_addresses_are_denied_even_in_allowed_networks() -> None:
    """Kafka, SQL and the bridge itself."""
    policy = CallbackPolicy(parse_networks(["127.0.0.0/8"]), frozenset({("127.0.0.1", 9092), ("8.8.4.4", 0)}))
    assert not is_allowed("127.0.0.1", 9092, policy, is_public=False)
    assert is_allowed("127.0.0.1", 9093, policy, is_public=False)
    assert check_addresses(CheckedUrl("", "http", "localhost", 9092), ["127.0.0.1"], policy) is not None
    assert not is_allowed("8.8.4.4", 443, policy, is_public=True)
    assert isinstance(check_url("http://127.0.0.1:9092/", policy), str)
    assert isinstance(check_url("http://127.0.0.1:9093/", policy), CheckedUrl)


def test_wrong_networks_are_a_configuration_error() -> None:
    """Host bits set, or no network at all."""
    for text in ("127.0.0.1/8", "localhost", ""):
        with pytest.raises(ConfigError):
            parse_networks([text])


def test_shown_without_query() -> None:
    """Tokens in a query never reach logs or the journal."""
    checked = check_url("https://shop.example/check?token=s3cret", PUBLIC)
    assert isinstance(checked, CheckedUrl)
    assert checked.shown == "https://shop.example/check"


@given(st.from_regex(r"https?://[ -~]{1,40}", fullmatch=True))
def test_the_client_reads_the_same_host_and_port(url: str) -> None:
    """No URL the guard takes means another host to the client."""
    checked = check_url(url, LOOPBACK)
    if isinstance(checked, CheckedUrl):
        seen = URL(url, encoded=True)
        assert (str(seen.raw_host).lower(), seen.port, seen.scheme) == (checked.host, checked.port, checked.scheme)
        assert (seen.user, seen.raw_fragment) == (None, "")


METADATA = ["169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "192.0.0.192"]
ADDRESSES = st.ip_addresses() | st.sampled_from(METADATA).map(ip_address)


@given(ADDRESSES)
def test_no_address_outside_the_public_internet_is_allowed(address: IPv4Address | IPv6Address) -> None:
    """What the standard library knows as private, reserved or embedded is a second opinion."""
    if is_allowed(str(address), 443, PUBLIC, is_public=True):
        assert address.is_global
        assert not any([address.is_multicast, address.is_reserved, str(address) in METADATA])
        if isinstance(address, IPv6Address):
            assert (address.ipv4_mapped, address.sixtofour, address.teredo) == (None, None, None)


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::", "::ffff:0:0:0"]))
def test_no_ipv4_address_is_allowed_inside_an_ipv6_address(inner: IPv4Address, prefix: str) -> None:
    """Mapped, compatible and translated ones, a public one too; neither in networks that are allowed."""
    outer = str(IPv6Address(int(IPv6Address(prefix)) | int(inner)))
    everything = CallbackPolicy(parse_networks(["0.0.0.0/0"]))
    assert not is_allowed(outer, 443, PUBLIC, is_public=True)
    assert not is_allowed(outer, 443, everything, is_public=True)
    assert isinstance(check_url(f"https://[{outer}]/", everything), str)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[IPv4Address, str]:
    """An address as libc reads it: one to four numbers, each decimal, octal or hexadecimal."""
    address = draw(st.ip_addresses(v=4) | st.ip_addresses(network="127.0.0.0/8"))
    count = draw(st.integers(1, 4))
    numbers = [*address.packed[: count - 1], int.from_bytes(address.packed[count - 1 :])]
    parts = [draw(st.sampled_from(["{}", "0{:o}", "00{:o}", "0x{:x}", "0X{:X}", "0x0{:x}"])).format(n) for n in numbers]
    return address, ".".join(parts) + draw(st.sampled_from(["", "."]))


@given(spellings(), st.sampled_from(["http", "https"]))
def test_no_spelling_of_an_address_is_a_name(made: tuple[IPv4Address, str], scheme: str) -> None:
    """Nor is it an address, but for the usual spelling in networks that are allowed."""
    address, text = made
    checked = check_url(f"{scheme}://{text}/", LOOPBACK)
    is_usual = text == str(address) and address in IPv4Network("127.0.0.0/8")
    assert isinstance(checked, CheckedUrl) is is_usual
    assert isinstance(check_url(f"{scheme}://{text}/", PUBLIC), str)


@given(st.text("0123456789abcdefxX.", min_size=1, max_size=20))
@example("127.0.0.1")
def test_what_libc_reads_as_an_address_is_no_name(host: str) -> None:
    """A resolver that is given it would never ask a name server."""
    if isinstance(check_url(f"https://{host}/", PUBLIC), CheckedUrl):
        with pytest.raises(OSError, match="illegal IP address"):
            socket.inet_aton(host)


@given(ADDRESSES, st.integers(1, 65_535), st.booleans())
def test_a_denied_address_stays_denied_whatever_is_allowed(
    address: IPv4Address | IPv6Address, port: int, is_public: bool
) -> None:
    """Kafka, SQL and the bridge itself are nobody's endpoint."""
    everywhere = parse_networks(["0.0.0.0/0", "::/0"])
    text = str(address)
    assert is_allowed(text, port, CallbackPolicy(everywhere), is_public=is_public)
    assert not is_allowed(text, port, CallbackPolicy(everywhere, frozenset({(text, port)})), is_public=is_public)
    assert not is_allowed(text, port, CallbackPolicy(everywhere, frozenset({(text, 0)})), is_public=is_public)

"""Texts from elsewhere as pages show them."""

from api.console import render
from api.console.render import CUT_CHARS, JsonPlace, begin_page, cut, isolate, show_bytes, show_duration, show_size


def show_value(raw: bytes) -> render.ShownValue:
    """Alone on its page."""
    return render.show_value(raw, begin_page())


def count_places(place: JsonPlace | None) -> int:
    return 0 if place is None else 1 + sum(map(count_places, place.inner or ()))


def test_what_cannot_be_seen_is_written_out() -> None:
    """Else a name turns the text behind it round, or looks like another one."""
    assert isolate("a\u202eb\x1bc\u200bd\ud800") == "<bdi>a\\u202eb\\u001bc\\u200bd\\ud800</bdi>"


def test_markup_is_text() -> None:
    """A group may be called so in another bridge's records."""
    assert isolate("<script>&") == "<bdi>&lt;script&gt;&amp;</bdi>"
    assert "<script>" not in cut("<script>" * 100)


def test_long_texts_are_cut_and_not_lost() -> None:
    """The rest is behind a click; of a huge one it is said how much is not shown."""
    assert cut("x" * CUT_CHARS) == f"<bdi>{'x' * CUT_CHARS}</bdi>"
    long = cut("x" * CUT_CHARS + "rest")
    assert long.startswith("<details")
    assert "<bdi>rest</bdi>" in long
    assert len(cut("x" * 1_000_000)) < 20_000


def test_bytes_are_never_decoded_lossily() -> None:
    """Null, empty, text and anything else look different."""
    assert [str(show_bytes(raw)) for raw in (None, b"", b"42", b"\xff\x00")] == [
        '<span class="null">null</span>',
        '<span class="null">""</span>',
        "<bdi>42</bdi>",
        '<span class="hex">0x</span><bdi>ff00</bdi>',
    ]


def test_numbers_of_a_value_are_shown_digit_by_digit() -> None:
    """No reader may see another amount than consumers get."""
    shown = show_value(b'{"n":12345678901234567890123,"d":1.50,"e":[true,null,"x"]}')
    assert shown.tree is not None
    assert shown.tree.inner is not None
    big, decimal, rest = shown.tree.inner
    assert (big.text, decimal.text) == ("12345678901234567890123", "1.50")
    assert rest.inner is not None
    assert [(one.name, one.text) for one in rest.inner] == [("0", "true"), ("1", "null"), ("2", '"x"')]


def test_values_that_are_no_json_have_no_tree() -> None:
    """Text is text, other bytes are bytes; the dump has both columns."""
    assert (show_value(b"plain").tree, show_value(b"plain").text) == (None, "plain")
    odd = show_value(b"\xffA\n")
    assert (odd.tree, odd.text, odd.hex_rows) == (None, None, [("00000000", "ff 41 0a", "\u00b7A\u00b7")])


def test_huge_values_make_pages_of_bounded_size() -> None:
    """A megabyte of small members is not a million elements."""
    shown = show_value(b'{"a":[' + b",".join([b"1"] * 20_000) + b"]}")
    assert shown.tree is not None
    assert shown.tree.inner is not None
    assert len(shown.tree.inner[0].inner or ()) <= 2_000
    large = show_value(b"x" * 1_000_000)
    assert (large.size, large.is_cut, len(large.text or "") < 20_000, len(large.hex_rows)) == (
        1_000_000,
        True,
        True,
        64,
    )


def test_trees_of_a_page_have_so_many_places_together() -> None:
    """A hundred messages of four kilobytes kept everybody waiting for fifteen seconds, one of 64 for two. What has no
    tree is shown as text."""
    deep = b"[" * 30 + b"1" + b",0]" * 30
    shown = [render.show_value(deep, left) for left in [begin_page()] for _ in range(100)]
    assert sum(count_places(one.tree) for one in shown) <= 2_100
    assert shown[0].tree is not None
    assert (shown[-1].tree, shown[-1].text) == (None, deep.decode())
    wide = b"[" * 30 + b"1" + (b",0" * 1_000 + b"]") * 30
    assert count_places(show_value(wide).tree) <= 2_100


def test_durations_and_sizes_have_fitting_units() -> None:
    """In the two largest of them."""
    told = [show_duration(ms) for ms in (0, 999, 1_000, 5_340, 60_000, 61_000, 3_600_000, 90_061_000)]
    assert told == ["0 ms", "999 ms", "1 s", "5.3 s", "1 min", "1 min 1 s", "1 h", "1 d 1 h"]
    assert [show_size(size) for size in (0, 1_023, 1_024, 1_572_864)] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]

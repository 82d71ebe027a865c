"""What follows from grants: nothing that was not granted, and all that was."""

import tracemalloc
from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.grants import EVERYTHING, Grant, Rights, Verb, is_pattern
from bridge.core.keyring import RANDOM_BYTES, hash_key, make_key_text, read_key_id

NAMES = st.text("ab.", min_size=1, max_size=3)
PATTERNS = NAMES | NAMES.map(lambda name: f"{name}*") | st.just("*")
GRANTS = st.lists(st.builds(Grant, st.sampled_from(Verb), PATTERNS, PATTERNS), max_size=5)


@given(GRANTS, st.lists(st.tuples(st.sampled_from(Verb), NAMES, NAMES | st.just("")), min_size=1, max_size=8))
def test_rights_are_those_of_the_grants(grants: list[Grant], asked: list[tuple[Verb, str, str]]) -> None:
    """Asked in any order, and again; a topic counts only where messages are prepared."""
    rights = Rights(grants)
    for verb, group, topic in [*asked, *asked]:
        named = topic if verb is Verb.PREPARE else ""
        is_granted = any(
            grant.verb is verb and fnmatchcase(group, grant.groups) and (not named or fnmatchcase(named, grant.topics))
            for grant in grants
        )
        assert rights.may(verb, group, named) == is_granted
        assert rights.may_somewhere(verb) or not is_granted
        assert is_granted or not rights.may_everywhere(verb)
        only = rights.find_only_group(verb)
        assert only is None or (rights.may(verb, only) and not (is_granted and group != only))


def test_nothing_is_allowed_that_is_not_granted() -> None:
    """By default."""
    assert not any(Rights(()).may(verb, "orders") or Rights(()).may_somewhere(verb) for verb in Verb)
    assert all(EVERYTHING.may_everywhere(verb) for verb in Verb)


def test_what_is_no_name_is_not_remembered() -> None:
    """Whoever may prepare to some topics asks for any, with a name of eight megabytes: thousands were kept."""
    rights = Rights([Grant(Verb.PREPARE, "orders", "orders.*")])
    tracemalloc.start()
    try:
        for number in range(100):
            assert rights.may(Verb.PREPARE, "orders", f"orders.{number}" + "x" * 100_000)
            assert not rights.may(Verb.DECIDE, f"{number}" + "x" * 100_000)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_patterns_are_names_and_beginnings() -> None:
    """As Kafka's literal and prefixed ones; no other wildcards."""
    assert all(map(is_pattern, ["orders", "orders*", "orders.*", "*", "a_b-c.9"]))
    assert not any(map(is_pattern, ["", "or*ders", "*orders", "**", "orders?", "o/rders", "orders\n", "x" * 250]))


@given(st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
def test_key_has_an_id_and_no_two_texts_have_its_hash(random: bytes) -> None:
    """Its id is found again in it; a key that differs in a character is another one."""
    text = make_key_text(random)
    key_id = read_key_id(text)
    assert key_id is not None
    assert text.startswith(f"obk_{key_id}_")
    assert len(text) == 56
    assert hash_key(text) != hash_key(text[:-1] + ("A" if text[-1] != "A" else "B"))
    assert all(read_key_id(wrong) is None for wrong in ("", "obk_", text[1:], text[:-1], f"{text}x", text.upper()))

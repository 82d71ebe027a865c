"""bridge.broker.ports: one holder at a time."""

from pathlib import Path

from bridge.broker.ports import FileLock


def test_second_taker_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    """Also within one process; letting go twice is harmless."""
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.take(wait=False)
    assert not second.take(wait=False)
    first.free()
    first.free()
    assert second.take(wait=False)
    second.free()


def test_left_over_lock_file_means_nothing(tmp_path: Path) -> None:
    """A file without a living holder is no lock."""
    (tmp_path / "lock").write_text("12345")
    with FileLock(tmp_path / "lock"):
        assert not FileLock(tmp_path / "lock").take(wait=False)

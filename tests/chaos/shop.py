"""A producer group's own database: its local transactions, and so the witness of what it meant."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

COMMIT, ROLLBACK, UNKNOWN = "COMMIT", "ROLLBACK", "UNKNOWN"


def make_shop(path: Path) -> None:
    """The empty database. Two connections that change the journal mode at once do not wait for each other."""
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("CREATE TABLE deeds (ref TEXT PRIMARY KEY, resolution TEXT) WITHOUT ROWID")


class Shop:
    """Which local transactions were committed or rolled back, by a reference that each message carries.

    One connection, one thread. Whoever asks about a reference that is not there bars it: a producer that was slow
    finds that it cannot commit any more.
    """

    def __init__(self, path: Path) -> None:
        self._sql = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._sql.execute("PRAGMA synchronous = OFF")

    def note(self, resolutions: Iterable[tuple[str, str]]) -> None:
        """Local transactions; what is there already stays."""
        self._sql.execute("BEGIN IMMEDIATE")
        self._sql.executemany("INSERT OR IGNORE INTO deeds VALUES (?, ?)", list(resolutions))
        self._sql.execute("COMMIT")

    def ask(self, refs: Iterable[str]) -> dict[str, str]:
        """The truth about each; bars those that are not there."""
        wanted = list(refs)
        self.note((ref, ROLLBACK) for ref in wanted)
        return self.read(wanted)

    def read(self, refs: Iterable[str]) -> dict[str, str]:
        """What stands there of these."""
        found = {}
        for ref in refs:
            row = self._sql.execute("SELECT resolution FROM deeds WHERE ref = ?", (ref,)).fetchone()
            if row is not None:
                found[ref] = row[0]
        return found

    def settle(self, ref: str, resolution: str) -> None:
        """Somebody has looked into it: what was UNKNOWN is known now."""
        self._sql.execute(
            "UPDATE deeds SET resolution = ? WHERE ref = ? AND resolution = ?", (resolution, ref, UNKNOWN)
        )

    def close(self) -> None:
        self._sql.close()

"""What reports on tormented traffic came to, for people and for programs."""

from collections import Counter
from collections.abc import Iterable

from spark.judge.rules import FindingKind
from tests.support.run_files import RunReport
from tests.traffic.audits import Audit

_INTRODUCTION = (
    "Producers prepare, publish, commit, roll back, repeat, contradict, forget; endpoints answer, hang and lie; "
    "operators resume and force what is parked. Meanwhile processes, brokers, network and SQL are broken. "
    "Reports are made during that, and when all is at rest. Then the settlers are stopped and "
    "anomalies are written into the same topics, with the truth beside them."
)
_COLUMNS = (
    "Of each: transactions in its books and of these open, offsets read, transactions that were told event by event, "
    "findings, seconds without Spark's start, tries without a verdict (brokers being away) before it."
)


class Report(RunReport, kw_only=True):
    """`audits`: in their order; `planted`, `found`: by kind, in the first report on what was planted."""

    seed: int
    commit: str
    versions: dict[str, str]
    seconds: float
    reached: dict[str, tuple[int, int]]
    done: dict[str, int]
    looked_at: dict[str, int]
    audits: list[Audit]
    planted: dict[str, int]
    found: dict[str, int]
    same: dict[str, bool]

    def markdown(self) -> str:
        """The same for people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        looked_at = ", ".join(f"{name} {count:,}" for name, count in self.looked_at.items())
        kinds = [(str(kind), self.planted.get(kind, 0), self.found.get(kind, 0)) for kind in FindingKind]
        reached = [(name, *both) for name, both in self.reached.items()]
        lines = [
            "# Reconciliation of a real bridge's traffic, with chaos",
            "",
            f"{'GOOD' if self.is_good else 'BAD'}. Seed {self.seed}, commit {self.commit}, {self.seconds:.0f} s.",
            f"{versions}.",
            "",
            _INTRODUCTION,
            "",
            *_show_table(("what", "wanted at least", "reached"), reached),
            *_show_table(("fault", "times"), sorted(self.done.items())),
            f"The history checker, which knows what every client heard: {looked_at}.",
            "",
            "## Reports",
            "",
            _COLUMNS,
            "",
            *_show_table(
                ("report", "transactions", "open", "offsets", "told", "findings", "seconds", "tries"),
                map(_row, self.audits),
            ),
            "## Planted",
            "",
            *_show_table(("kind", "planted", "found"), kinds),
            "## Verdict",
            "",
            *([f"* {each}" for each in self.broken] or ["Everything planted was found with its kind, 0 false."]),
            "",
            *[f"* {name}: {'byte-equal' if same else 'NOT byte-equal'}" for name, same in self.same.items()],
        ]
        return "\n".join(lines) + "\n"


def count_kinds(pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Of pairs of transaction and kind."""
    return dict(Counter(kind for _, kind in pairs))


def _row(audit: Audit) -> tuple[str, *tuple[float, ...]]:
    read = (audit.prepared, audit.open, audit.offsets, audit.told)
    return (audit.name, *read, len(audit.findings), round(audit.seconds), audit.tries)


def _show_table(header: tuple[str, ...], rows: Iterable[tuple[str, *tuple[float, ...]]]) -> list[str]:
    shown = [" | ".join([name, *[f"{count:,}" for count in counts]]) for name, *counts in rows]
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *[f"| {row} |" for row in shown], ""]

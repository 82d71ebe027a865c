"""What a run of kills did and found, for people and for programs."""

from collections.abc import Iterable, Sequence

from tests.support.run_files import RunReport


class Report(RunReport, kw_only=True):
    """`reached`: what had to be done at least, and what was; `broken`: why it failed; `violations`: by their kinds."""

    seed: int
    planted: str
    commit: str
    versions: dict[str, str]
    seconds: float
    at_rest_after_s: float
    reached: dict[str, tuple[int, int]]
    killed: dict[str, int]
    outcomes: dict[str, int]
    ended: dict[str, int]
    violations: dict[str, int]

    def markdown(self) -> str:
        """The same for people."""
        planted = f" Built in: the bug `{self.planted}`." if self.planted else ""
        lines = [
            "# Producers, relays and bridge killed at random",
            "",
            f"{'GOOD' if self.is_good else 'BAD'}. Seed {self.seed}, commit {self.commit}, {self.seconds:.0f} s, "
            f"at rest {self.at_rest_after_s:.1f} s after the last order.{planted} "
            + ", ".join(f"{name} {version}" for name, version in self.versions.items())
            + ".",
            "",
            *_show_table(("what", "wanted at least", "reached"), ((n, *both) for n, both in self.reached.items())),
            *_show_table(("killed with SIGKILL", "times"), self.killed.items()),
            *_show_table(("what became of an order, as its producer knows", "times"), self.outcomes.items()),
            *_show_table(("transactions at the bridge, and who ended them", "times"), self.ended.items()),
            "## Verdict",
            "",
            ", ".join(f"{count:,} {kind}" for kind, count in self.violations.items()) + ".",
            *(["", *[f"* {each}" for each in self.broken]] if self.broken else []),
        ]
        return "\n".join(lines) + "\n"


def _show_table(header: Sequence[str], rows: Iterable[tuple[str, *tuple[int, ...]]]) -> list[str]:
    shown = [" | ".join([name, *[f"{count:,}" for count in counts]]) for name, *counts in rows]
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *[f"| {row} |" for row in shown], ""]

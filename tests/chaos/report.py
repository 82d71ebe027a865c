"""What a run did and found, for people and for programs."""

import os
import platform
from importlib.metadata import version

from tests.chaos.figures import GOALS_S, Distribution
from tests.chaos.orders import Size
from tests.support.run_files import RunReport
from tests.support.source_tree import run_git

_PACKAGES = ("confluent-kafka", "sqlalchemy", "aiohttp", "uvicorn", "fastapi")


class Report(RunReport, kw_only=True):
    """All of it. `reached`: what the run had to do at least, and what it did; `broken`: why it failed."""

    size: Size
    seed: int
    commit: str
    versions: dict[str, str]
    seconds: float
    processor_seconds: float  # of all processes that have ended by then; a busy machine takes longer for the same
    reached: dict[str, tuple[int, int]]
    done: dict[str, int]
    notes: dict[str, int]
    verdict: str
    looked_at: dict[str, int]
    decided_after_s: float | None
    figures: dict[str, dict[str, Distribution | None]]
    settler_mib: int = 0  # the most memory that a settler had; the kernel kills it at its limit, where it may be set

    def markdown(self) -> str:
        """The same for people."""
        lines = [
            "# Chaos run",
            "",
            f"{'GOOD' if self.is_good else 'BAD'}. Seed {self.seed}, commit {self.commit}, {self.seconds:.0f} s, "
            f"{self.processor_seconds:.0f} s of processors, "
            f"{self.size.brokers} broker(s). " + ", ".join(f"{n} {v}" for n, v in self.versions.items()) + ".",
            "",
            "| what | wanted at least | reached |",
            "|---|---|---|",
            *[f"| {name} | {wanted:,} | {got:,} |" for name, (wanted, got) in self.reached.items()],
            "",
            "| fault | times |",
            "|---|---|",
            *[f"| {name} | {count} |" for name, count in sorted(self.done.items())],
            "",
            "Remarks: " + ("; ".join(f"{note}: {count}" for note, count in sorted(self.notes.items())) or "none") + ".",
            "",
            "## Verdict",
            "",
            ", ".join(f"{name} {count:,}" for name, count in self.looked_at.items()) + ".",
            "",
            *([f"* {each}" for each in self.broken] or ["0 lost, 0 phantom, 0 duplicate, 0 torn, 0 contradictory."]),
            "",
            f"When faults and producers had ended, all that was due was decided in {_show(self.decided_after_s)} s.",
            f"A settler had {self.settler_mib} MiB of memory at most.",
            "",
            "## Recovery, in seconds",
            "",
            "| figure | goal | n | min | p50 | p90 | p99 | max |",
            "|---|---|---|---|---|---|---|---|",
            *[_row(name, way, found) for name, ways in self.figures.items() for way, found in ways.items()],
        ]
        if not self.is_good:
            lines += ["", "## Findings", "", "```", self.verdict.rstrip(), "```"]
        return "\n".join(lines) + "\n"


def _row(figure: str, way: str, found: Distribution | None) -> str:
    head = f"| {way or figure} | {'' if way else f'{GOALS_S[figure]:.0f}'} |"
    if found is None:
        return f"{head} 0 | | | | | |"
    return f"{head} {found.n} | " + " | ".join(f"{value:.2f}" for value in found[1:]) + " |"


def _show(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f}"


def read_processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    return round(sum(os.times()[:4]), 1)


def is_same_code(commit: str) -> bool:
    """Whether what runs in production is the same now as it was then."""
    if commit.endswith("+") or not run_git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        return False
    return not run_git("diff", "--name-only", commit, "--", "alembic", "api", "bridge", "checker")


def read_versions(kafka: str) -> dict[str, str]:
    """Of what the run depends on."""
    return {"Kafka": kafka, "Python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}

"""Changes the rules bit by bit and sees that a test fails: `python -m tests.mutation`, `--report` for what survived.

mutmut does the work, in .outbox-bridge/mutation/, and goes on where it was stopped; what changed in the code it tries
again by itself, what changed in the tests with `--survivors` or `--anew`. It changes what functions do, not what stands
outside of them. `equivalent.txt` lists the mutants that no test can kill, with the reason. Where tests take
seconds, only some mutants are tried, the same each time. A mutant with which a test takes no end counts as killed.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from msgspec import Struct

from tests.mutation.mutants import Mutant, read_equivalent, read_mutants

ROOT = Path(__file__).parents[2]
STATE = ROOT / ".outbox-bridge" / "mutation"
_COPIED = ("alembic", "alembic.ini", "api", "bridge", "checker", "docs", "outbox", "pyproject.toml", "spark", "tests")
_SAMPLE = ("*__mutmut_*4",)  # every tenth
_PYTEST = ("-ptests.mutation.hung", "--hypothesis-profile=mutation", "-knot postgres")
# What an error or a line in the log says is promised nowhere; crash points have a lane of their own.
_LEFT = (r"raise \w+\(", r"_LOG\.\w+\(", r"\breach\(FaultPoint")


class Part(Struct, frozen=True):
    """Modules that are changed, and the tests that must notice. `goal`: per cent of the mutants that can be killed;
    `sample`: patterns of those that are tried."""

    name: str
    modules: Sequence[str]
    tests: Sequence[str]
    goal: int = 90
    sample: Sequence[str] = ()


def _modules_of(folder: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py")


_CODECS = ("record_codec", "op_message", "message", "properties", "transaction")
_RULES = ("check_rules", "errors", "position", "queue_state", "record", "topics", "transition")
_TURNS = ("timetable", "timetable_clocks", "timetable_offered", "turns", "concurrency")
_CODECS_TESTS = [
    "tests/unit/core", "tests/unit/checker/test_check_call.py",
    *[f"tests/unit/sql/test_{name}.py" for name in ("chunking", "entries")],
]  # fmt: skip
_USUAL = [
    *[f"tests/unit/sql/test_{name}.py" for name in ("entries", "chunking", "usual")],
    "tests/unit/test_projector_loop.py", "tests/unit/test_projector_rebuild.py",
]  # fmt: skip
_SCENARIOS = [  # those that take a few seconds
    f"tests/scenarios/test_{name}.py"
    for name in ("blocked_chains", "ordering_scope", "rebuilding", "repeats", "take_over", "told")
]
_SETTLER = [
    "tests/unit/settler", "tests/unit/checker/test_with_settler.py", "tests/unit/test_log_watch.py",
    *[f"tests/scenarios/test_{name}.py" for name in ("abandoned", "batches_in_bytes", "lost_logs")],
]  # fmt: skip
_GIVEN_UP = "tests/scenarios/test_given_up.py"
PARTS = (
    Part("codecs", [f"bridge/core/{name}.py" for name in _CODECS], _CODECS_TESTS),
    Part("rules", [f"bridge/core/{name}.py" for name in _RULES], ["tests/unit/core"]),
    Part(
        "rows",
        ["bridge/sql/rows.py"],
        [f"tests/unit/sql/test_{name}.py" for name in ("cursors", "rows", "fold", "entries")],
    ),
    Part("answers", ["checker/call.py"], ["tests/unit/checker"]),
    Part("guard", ["checker/endpoint_guard.py"], ["tests/unit/checker/test_endpoint_guard.py"]),
    Part(
        "turns",
        [f"checker/{name}.py" for name in ("scheduler", "concurrency")],
        [f"tests/unit/checker/test_{name}.py" for name in _TURNS],
    ),
    Part("fold", ["bridge/sql/fold.py"], ["tests/unit/sql/test_fold.py"], 80),
    Part("usual", [f"bridge/sql/{name}.py" for name in ("chunking", "projection")], _USUAL, 80),
    Part("settler", _modules_of("bridge/settler"), [*_SETTLER, *_SCENARIOS], 80, _SAMPLE),
    Part("service", _modules_of("bridge/service"), ["tests/unit/service", *_SCENARIOS, _GIVEN_UP], 80, _SAMPLE),
    Part(
        "projector",
        ["bridge/projector.py"],
        [*[f"tests/unit/test_projector{what}.py" for what in ("", "_loop", "_rebuild")], *_SCENARIOS],
        80,
        _SAMPLE,
    ),
    Part("topology", ["bridge/topology.py"], ["tests/unit/test_topology.py"], 80, _SAMPLE),
)


def main(arguments: Sequence[str]) -> int:
    """0: in every group enough mutants are killed."""
    parser = argparse.ArgumentParser("python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--report", action="store_true", help="run nothing; show the survivors of the last run")
    parser.add_argument("--survivors", action="store_true", help="try only what survived, again")
    parser.add_argument("--anew", action="store_true", help="forget what was tried before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]
    equivalent = read_equivalent()
    is_enough = True
    for part in parts:
        if options.anew:
            shutil.rmtree(STATE / part.name, ignore_errors=True)
        names = _choose(part, is_again=options.survivors)
        if not options.report and (names or not options.survivors) and _run(part, options.jobs, names):
            return 1
        is_enough &= _show(part, equivalent, is_report=options.report) >= part.goal
    return 0 if is_enough else 1


def _choose(part: Part, *, is_again: bool) -> list[str]:
    """Names or patterns of the mutants to try; of a sample, what an earlier run has not come to."""
    known = _read(part)
    if is_again:
        return [mutant.name for mutant in known if mutant.is_alive]
    left = [mutant.name for mutant in known if mutant.is_untried]
    return [name for name in left if any(fnmatch(name, pattern) for pattern in part.sample)] or list(part.sample)


def _run(part: Part, jobs: int, names: Sequence[str]) -> int:
    folder = STATE / part.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)
    (folder / "setup.cfg").write_text(_settings(part))
    # what each test enters, which is found out anew: a test that has changed may enter more
    (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    # PYTHONPATH would lead the tests to the code as it is
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names]
    with subprocess.Popen(command, cwd=folder, env=environment) as mutmut:
        try:
            return mutmut.wait()
        except KeyboardInterrupt:  # it has heard that too, and ends its workers
            return mutmut.wait() or 1


def _settings(part: Part) -> str:
    """Without shrinking: that a test fails is enough."""
    # what has no meaning here and costs time in every run
    plugins = [f"no:{name}" for name in ("cacheprovider", "xdist", "unraisableexception", "threadexception")]
    lists = {
        "source_paths": ["bridge", "checker", "api"],
        "only_mutate": part.modules,
        "do_not_mutate_patterns": _LEFT,
        "also_copy": ["alembic", "docs", "outbox"],
        "pytest_add_cli_args": [*(f"-p{name}" for name in plugins), *_PYTEST],
        "pytest_add_cli_args_test_selection": part.tests,
    }
    lines = [f"{name} =\n" + "\n".join(f"    {line}" for line in lists[name]) for name in lists]
    # mutmut's own limits are of wall-clock time, which a busy machine exceeds: see hung.py
    scalars = ["timeout_constant = 3600", "track_dependencies = false", "use_git_change_detection = false"]
    return "\n".join(["[mutmut]", *lines, *scalars, ""])


def _read(part: Part) -> list[Mutant]:
    return list(read_mutants(STATE / part.name, part.modules))


def _show(part: Part, equivalent: frozenset[tuple[str, str, str]], *, is_report: bool) -> float:
    everything = _read(part)
    for module in part.modules:
        _show_line(module, [mutant for mutant in everything if mutant.module == module], equivalent)
    if is_report:
        for mutant in everything:
            if mutant.is_alive and mutant.change not in equivalent:
                print(f"\n{mutant.function}\n- {mutant.before}\n+ {mutant.after}")
    return _show_line(f"{part.name}:", everything, equivalent)


def _show_line(title: str, mutants: Sequence[Mutant], equivalent: frozenset[tuple[str, str, str]]) -> float:
    alive = [mutant for mutant in mutants if mutant.is_alive]
    same = sum(mutant.change in equivalent for mutant in alive)
    untried = sum(mutant.is_untried for mutant in mutants)
    tried = len(mutants) - untried - same
    share = 100 * (tried - len(alive) + same) / tried if tried else 0.0
    hung = sum(mutant.is_hung for mutant in mutants)
    seconds = sum(mutant.seconds for mutant in mutants)
    print(
        f"{title:<32} {len(mutants):5} mutants {tried - len(alive) + same:5} killed ({hung} hung) {same:3} equivalent "
        f"{len(alive) - same:3} survived {untried:5} untried {share:5.1f} % {seconds:5.0f} s",
        flush=True,
    )
    return share


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.fuzz.parsers`: bytes that Atheris makes up, guided by coverage, for each parser of `targets`.

    --runs 10000000    so many for each (5,000 unless set)
    --only records     one of them
    --jobs 2           so many at once
    --keep             what covers something new goes into seeds/

Each target has a process of its own and begins with the seeds: a line each, bytes written as a JSON text of Latin-1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from tests.support.source_tree import ROOT

NAMES = ("bodies", "frames", "heads", "properties", "records", "tokens", "urls")
_SEEDS = Path(__file__).parent / "seeds"
_MOST_SEED_BYTES = 400
_INSTRUMENTED = [
    "api.remoting",
    "api.web.json",
    "api.web.parse",
    "api.web.protocol",
    "bridge.core",
    "bridge.service.issuers",
    "checker.endpoint_guard",
]


def main() -> int:
    """0, or 1 if a parser broke a promise: then the bytes are printed."""
    arguments = _parser().parse_args()
    if find_spec("atheris") is None:
        print("parsers are not looked at: there is no Atheris for this machine", file=sys.stderr)
        return 0
    names = arguments.only or NAMES
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(lambda name: _fuzz(name, arguments.runs, is_kept=arguments.keep), names))
    return int(not all(outcomes))


def read_seeds(name: str) -> list[bytes]:
    """Those of a target."""
    lines = (_SEEDS / f"{name}.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line).encode("latin-1") for line in lines]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.parsers")
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    return parser


def _fuzz(name: str, runs: int, *, is_kept: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as text:
        folder = Path(text)
        found = folder / "found"
        _write(found, read_seeds(name))
        began = time.monotonic()
        is_good = _run(name, folder, f"-runs={runs}", "-max_len=2048", "-verbosity=0", found)
        took_s = time.monotonic() - began
        for crash in sorted(folder.glob("crash-*")):
            print(f"{name}: {crash.read_bytes()!r}", file=sys.stderr)
        if is_kept:
            _keep(name, [file.read_bytes() for file in found.iterdir()])
        print(
            f"{name}: {runs} runs in {took_s:.0f} s, {len(list(found.iterdir()))} inputs: {_tell(is_good)}", flush=True
        )
    return is_good


def _tell(is_good: bool) -> str:
    return "nothing found" if is_good else "BROKEN"


def _run(name: str, folder: Path, *arguments: object) -> bool:
    command = [sys.executable, "-m", __spec__.name, "--target", name, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-4_000:], done.stderr[-4_000:], file=sys.stderr)
    return done.returncode == 0


def _write(folder: Path, seeds: Sequence[bytes]) -> None:
    folder.mkdir()
    for number, seed in enumerate(seeds):
        (folder / f"{number:05}").write_bytes(seed)


def _keep(name: str, seeds: Sequence[bytes]) -> None:
    kept = sorted({seed for seed in seeds if len(seed) <= _MOST_SEED_BYTES} | set(read_seeds(name)))
    (_SEEDS / f"{name}.jsonl").write_text("".join([json.dumps(seed.decode("latin-1")) + "\n" for seed in kept]))


def _run_target(name: str, arguments: Sequence[str]) -> None:
    """In the process of one target; libFuzzer ends it."""
    import atheris  # noqa: PLC0415 - only here, and before what it instruments

    with atheris.instrument_imports(include=_INSTRUMENTED):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--target"]:
        _run_target(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())

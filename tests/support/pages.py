"""The documents' pages as a reader follows them: what their marks say is run, in a network where each port is free."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.source_tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_MARK = re.compile(
    r"^<!-- (?P<kind>run until|run in|run|given|file|Ctrl-C)(?:: (?P<text>.*?))? -->\n"
    r"(?:```(?P<language>\w*)\n(?P<block>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)

# What runs in the background of a script may have been told to ignore Ctrl-C; a reader's shell has not.
BASH = ["env", "--default-signal=INT", "bash", "-c"]

# Job control gives each terminal a process group, to which Ctrl-C is sent as a real terminal sends it.
_SHELL = r"""
set -euo pipefail
terminals=()

terminal() { # TEXT BLOCK: in a terminal of its own; goes on when that has printed the text
    local log
    log=$(mktemp -p "$TERMINALS")
    set -m
    bash -euo pipefail -c "$2" </dev/null >"$log" 2>&1 &
    set +m
    terminals+=("$! $log")
    until grep -qF -- "$1" "$log"; do
        kill -0 "$!" 2>/dev/null || { echo "ended before it said: $1" >&2; return 1; }
        sleep 0.1
    done
}

ctrl_c() { # in the terminal that was opened last; what ran there ends as after any Ctrl-C, and says nothing of a defect
    local pid log code=0
    read -r pid log <<<"${terminals[-1]}"
    unset 'terminals[-1]'
    kill -INT -- "-$pid" 2>/dev/null || true # it may have ended by itself
    wait "$pid" || code=$?
    cat "$log"
    [ "$code" = 0 ] || [ "$code" = 130 ] || { echo "ended with $code after Ctrl-C" >&2; return 1; }
    ! grep -q '^Traceback' "$log" || { echo "a defect after Ctrl-C" >&2; return 1; }
}

leave() {
    local code=$? each pid log
    [ "$code" = 0 ] || echo "failed: $failed" >&2
    for each in "${terminals[@]}"; do
        read -r pid log <<<"$each"
        kill -KILL -- "-$pid" 2>/dev/null || true
        cat "$log" >&2
    done
    kill -KILL $(jobs -p) 2>/dev/null || true
}
failed=
trap 'failed=$BASH_COMMAND' ERR
trap leave EXIT
"""


class Step(NamedTuple):
    """A mark, and the block below it. `text`: what stands behind the mark's colon."""

    kind: str
    text: str
    language: str
    block: str

    @property
    def commands(self) -> list[str]:
        """Its lines, without what is said beside them."""
        return [line.partition(" #")[0].strip() for line in self.block.splitlines() if line.strip()]


def read_steps(page: Path) -> list[Step]:
    """In the order of the page."""
    return [Step(*(found[part] or "" for part in Step._fields)) for found in _MARK.finditer(page.read_text())]


def is_run(page: Path) -> bool:
    return any(step.kind in {"run", "run until"} for step in read_steps(page))


def make_script(steps: Sequence[Step]) -> str:
    """Runs the blocks one after the other in one shell, and others beside it; ends with the first that fails."""
    lines = [_SHELL]
    for step in steps:
        match step.kind:
            case "run" if step.language == "python":
                lines.append(f"python -c {shlex.quote(step.block)}")
            case "run":
                lines.append(step.block)
            case "given":
                lines.append(step.text)
            case "run until":
                lines.append(f"terminal {shlex.quote(step.text)} {shlex.quote(step.block)}")
            case "Ctrl-C":
                lines.append("ctrl_c")
    return "\n".join([*lines, 'while [ "${#terminals[@]}" -gt 0 ]; do ctrl_c; done'])


@contextmanager
def own_network() -> Iterator[list[str]]:
    """What a command begins with to run in a network of its own: nothing, where the system does not let us have one."""
    kinds = ["net"] if os.geteuid() == 0 else ["user", "net"]  # root stays what it is to the files of others
    options = ["--map-root-user"] if "user" in kinds else []
    hold = ["unshare", "--net", *options, "sh", "-c", "ip link set lo up && echo up && exec cat"]
    try:
        holder = subprocess.Popen(
            hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except FileNotFoundError:
        yield []
        return
    with holder:
        assert holder.stdout is not None
        is_up = holder.stdout.readline() == "up\n"
        enter = ["nsenter", "--preserve-credentials", *(f"--{kind}=/proc/{holder.pid}/ns/{kind}" for kind in kinds)]
        yield enter if is_up else []
        assert holder.stdin is not None
        holder.stdin.close()  # its end

"""`python -m tests.rocketmq`: one client's behaviours on a real RocketMQ and on the door, side by side.

    --only twice --only slow   some of them
    --door                     the door alone, which needs no RocketMQ
    --write                    the table goes into docs/coming-from-rocketmq.md and its translation

Exit code 1: something at the door is not as it must be.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from benchmarks.peers.rocketmq.broker import VERSION, PeerUnavailable
from tests.rocketmq.behaviours import BEHAVIOURS, COUNT, Behaviour, Stage
from tests.rocketmq.sides import Side, door, rocketmq
from tests.support.progress import make_tell
from tests.support.source_tree import ROOT

_BEGIN, _END = "<!-- behaviours -->", "<!-- end of behaviours -->"
_CHINESE = {"visible": "可见", "asked": "被回查", "put aside": "被搁置"}
_Found = Mapping[str, Mapping[str, int]]


def main() -> int:
    """Looks at both, and says what differs."""
    options = _read_options()
    chosen = [one for one in BEHAVIOURS if not options.only or one.name in options.only]
    tell = make_tell()
    try:
        theirs: _Found = {} if options.door else _look("RocketMQ", rocketmq, chosen, tell)
    except PeerUnavailable as error:
        print(f"RocketMQ cannot be run here: {error}", file=sys.stderr)
        return 2
    ours = _look("door", door, chosen, tell)
    table = make_table(chosen, theirs, ours)
    print(table)
    if options.write:
        write_table("coming-from-rocketmq.md", table)
        write_table("coming-from-rocketmq.zh.md", make_table(chosen, theirs, ours, is_chinese=True))
    wrong = [one for one in chosen if ours[one.name] != one.wanted]
    for one in wrong:
        print(f"{one.name}: {show(ours[one.name])} at the door; {show(one.wanted)} must be", file=sys.stderr)
    return int(bool(wrong))


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.rocketmq", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=[one.name for one in BEHAVIOURS])
    parser.add_argument("--door", action="store_true", help="without RocketMQ")
    parser.add_argument("--write", action="store_true", help="the table goes into the documents")
    options = parser.parse_args()
    if options.write and (options.only or options.door):
        parser.error("--write needs all of them, on both sides")
    return options


def _look(
    name: str, open_side: Callable[[], AbstractContextManager[Side]], chosen: Sequence[Behaviour],
    tell: Callable[[str], None],
) -> _Found:  # fmt: skip
    found = {}
    with open_side() as side:
        for one in chosen:
            stage = Stage(side, f"look-{one.name}", f"group-{one.name}")
            side.open(stage.topic, stage.group)
            found[one.name] = one.look(stage)
            tell(f"{name}: {one.words.format(count=COUNT)}: {show(found[one.name])}")
    return found


def show(found: Mapping[str, int], words: Mapping[str, str] | None = None) -> str:
    """In a cell."""
    between = ", " if words is None else "\uff0c"
    return between.join(f"{number} {what if words is None else words[what]}" for what, number in found.items())


def make_table(chosen: Sequence[Behaviour], theirs: _Found, ours: _Found, *, is_chinese: bool = False) -> str:
    """What differs is bold."""
    words = _CHINESE if is_chinese else None
    head = ("客户端的行为", "本项目的入口") if is_chinese else ("a client", "the door")
    lines = [f"| {head[0]} | RocketMQ {VERSION} | {head[1]} |", "|---|---|---|"]
    for one in chosen:
        text = (one.chinese if is_chinese else one.words).format(count=COUNT)
        left, right = show(theirs.get(one.name, {}), words), show(ours[one.name], words)
        lines.append(f"| {text} | {left if left == right else f'**{left}**'} | {right} |")
    return "\n".join(lines)


def write_table(name: str, table: str) -> None:
    """Between its two marks."""
    path = ROOT / "docs" / name
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin, f"{name} has no {_BEGIN}"
    assert end, f"{name} has no {_END}"
    path.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())

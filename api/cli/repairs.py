"""Proposals of a report: looked at again, sent if that is wanted, and written down."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from api.cli.connect import call, quoted
from api.cli.output import CommandFailed, Exit, message_console

WANTED, DONE, NOT_NEEDED = "wanted", "done", "not needed any more"
AUDIT = "repaired.jsonl"
_PROPOSALS, _MANIFEST, _LEDGER = "repair.jsonl", "manifest.json", "ledger.json"
_VERBS = {"check", "force"}  # nothing that could publish a message again


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call to the bridge, and the states in which it makes sense. `remark`: the producer's last one, if any."""

    transaction_id: str
    kind: str
    verb: str
    body: Mapping[str, Any] | None
    states: Sequence[str]
    remark: str | None = None

    @property
    def path(self) -> str:
        """Where it is sent."""
        return f"/v1/transactions/{quoted(self.transaction_id)}/{self.verb}"


def find_run(folder: Path) -> Path:
    """A run's folder: this one, or the last one in a folder of runs. Raises CommandFailed."""
    return folder if (folder / _MANIFEST).exists() else find_runs(folder)[-1]


def find_runs(folder: Path) -> list[Path]:
    """The folders of the complete runs in a folder of runs, oldest first; at least one. Raises CommandFailed."""
    try:
        runs = json.loads((folder / _LEDGER).read_text(encoding="utf-8"))["runs"]
        found = [folder / f"{run['run']:06d}" for run in runs]
    except (OSError, ValueError, KeyError, TypeError):
        found = []
    if not found:
        remedy = "Name the folder that `report run` has printed, or the one of all runs (its --out)."
        raise CommandFailed(Exit.NOT_FOUND, f"{folder} holds no complete report", remedy)
    return found


def read_proposals(run: Path) -> list[Proposal]:
    """What the report proposes. Raises CommandFailed."""
    path = run / _PROPOSALS
    try:
        return [_read(json.loads(line)) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Let `report run` write it anew."
        raise CommandFailed(Exit.FAILED, f"{path} cannot be read: {error}", remedy) from error


def work_through(url: str, run: Path, proposals: Sequence[Proposal], *, is_applied: bool) -> Iterator[dict[str, Any]]:
    """A row for each: the state found and what came of it. Raises CommandFailed where no bridge answers."""
    columns = (TextColumn("asking the bridge"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=message_console(), transient=True) as progress, _audit(run, is_applied) as note:
        for proposal in progress.track(proposals):
            state, result = _repair(url, proposal, note if is_applied else None)
            call_shown = f"POST {proposal.path}"
            yield {
                "transaction_id": proposal.transaction_id,
                "kind": proposal.kind,
                "call": call_shown,
                "body": proposal.body,
                "state": state,
                "result": result,
                **({} if proposal.remark is None else {"remark": proposal.remark}),
            }


def _repair(url: str, proposal: Proposal, note: "Note | None") -> tuple[str | None, str]:
    """The state before, and what came of the call: an answer that is no success is the call's, not the command's."""
    try:
        state = call(url, "GET", f"/v1/transactions/{quoted(proposal.transaction_id)}").members["state"]
        if state not in proposal.states:
            return state, NOT_NEEDED
    except CommandFailed as failure:
        _raise_if_away(failure)
        return None, f"not looked at: {failure.reason}"
    if note is None:
        return state, WANTED
    note.sent(proposal, state)
    try:
        answer = call(url, "POST", proposal.path, body={} if proposal.body is None else proposal.body)
    except CommandFailed as failure:
        note.answered(proposal, None, failure.reason)
        _raise_if_away(failure)
        return state, f"{'not known' if failure.is_unknown else 'refused'}: {failure.reason}"
    note.answered(proposal, answer.status, answer.members)
    return state, DONE


def _raise_if_away(failure: CommandFailed) -> None:
    if failure.code is Exit.UNREACHABLE:
        raise failure


@dataclass(frozen=True, slots=True)
class Note:
    """Writes down what is sent, before it is sent, and what was answered."""

    file: IO[str]

    def sent(self, proposal: Proposal, state: str) -> None:
        """A call is about to be made."""
        known = {"kind": proposal.kind, "state": state, "method": "POST", "path": proposal.path, "body": proposal.body}
        self._write("sent", proposal, known)

    def answered(self, proposal: Proposal, status: int | None, answer: object) -> None:
        """The record was; `status` None: the answer is a refusal, or there was none."""
        self._write("answered", proposal, {"status": status, "answer": answer})

    def _write(self, event: str, proposal: Proposal, members: Mapping[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"at": at, "event": event, "transaction_id": proposal.transaction_id, **members}
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def _audit(run: Path, is_applied: bool) -> Iterator[Note]:
    """Beside the proposals; nothing is sent where it cannot be written."""
    path = run / AUDIT if is_applied else Path(os.devnull)
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror}; nothing was sent"
        raise CommandFailed(
            Exit.FAILED, reason, "What is sent must be written down: make the folder writable."
        ) from error
    with file:
        yield Note(file)


def _read(line: Mapping[str, Any]) -> Proposal:
    verb = str(line["path"]).rpartition("/")[2]
    if verb not in _VERBS or line["method"] != "POST":
        raise ValueError(f"{line['method']} {line['path']} is nothing that a report proposes")
    if line["precondition"].get("published") is not False:
        raise ValueError("nobody has looked whether it was published (an older version has written it)")
    states, remark = line["precondition"]["state"], line.get("remark")
    return Proposal(line["transaction_id"], line["kind"], verb, line["body"], states, remark)

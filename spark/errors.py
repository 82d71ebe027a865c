"""Why a reconciliation ends without a verdict.

ReconcileError
+-- BadUsage        a window, a topic or an option that cannot be; retrying does not help
+-- Indeterminate   Kafka, Java, Spark or a file did not do its part; retrying may help
"""

_CALLING = "An error occurred while calling "
_WORKER = "Python worker exited unexpectedly"
_TRACEBACK = "Traceback (most recent call last):"


class ReconcileError(Exception):
    """Root of the errors of this package; `remedy` is one sentence for the user."""

    exit_code = 3

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class BadUsage(ReconcileError):
    """What was asked for cannot be."""

    exit_code = 2


class Indeterminate(ReconcileError):
    """Nothing can be said about the window now."""


def was_interrupted(error: BaseException | None) -> bool:
    """Whether it came on the way out of a Ctrl-C: PySpark then still asks Java, on a connection that is closed."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def explain(error: Exception) -> str:
    """The innermost reason of an error of Spark's, or of Python in a worker, in one line."""
    text = str(error)
    told = text.partition("\n: ")[2] if text.startswith(_CALLING) else ""  # py4j says first which call it was
    text = told or text
    if _WORKER in text:  # whose cause is java.io.EOFException, which nobody understands
        return "a Python worker has ended in the middle of its work: was it killed, as where memory is short?"
    causes = [line.strip() for line in text.splitlines() if line.strip().startswith("Caused by:")]
    line = causes[-1].removeprefix("Caused by: ") if causes else text.strip().partition("\n")[0]
    _, is_python, frames = text.partition(_TRACEBACK)
    if is_python:
        line = next((one for one in frames.splitlines() if one and not one[0].isspace()), line)
    return line[:300]

"""Progress of long runs."""

import sys
import time
from collections.abc import Callable


def make_tell() -> Callable[[str], None]:
    """Writes lines with the seconds since now."""
    began = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {text}\n")
        sys.stdout.flush()

    return tell

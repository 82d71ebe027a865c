"""Files of JSON that a user names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark.errors import BadUsage


def read_json(path: Path) -> Mapping[str, Any]:
    """A file with one JSON object. Raises BadUsage."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadUsage(f"{path} is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise BadUsage(f"{path} is no JSON object")
    return read

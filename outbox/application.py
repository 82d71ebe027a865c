"""Finds and starts the application: the bridge itself, which an installation keeps out of everybody's imports.

A wheel has `api`, `bridge`, `checker` and `spark` in a folder that is on nobody's path, for a service may have
packages of these names; a checkout has them beside `outbox`. The processes that run the application put that folder
first on their own path, and on that of their children.

    python -P -m outbox.application MODULE ...      runs a module of the application
"""

import os
import runpy
import sys
from pathlib import Path


def find_application() -> Path:
    """The folder that holds the application's packages."""
    inside = Path(__file__).with_name("_application")
    return inside if inside.is_dir() else Path(__file__).parents[1]


def enter_application() -> None:
    """Lets this process and its children import the application, whatever the working directory holds."""
    folder = str(find_application())
    sys.path.insert(0, folder)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *(path for path in inherited if path not in {"", folder})])
    os.environ["PYTHONSAFEPATH"] = "1"  # else `python -m` looks into the working directory first


def main() -> None:
    """Runs the module that the first argument names, with the other arguments."""
    enter_application()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

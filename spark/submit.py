"""What `spark-submit` starts: it knows no package, only this file. `outbox-bridge report job` says where that is.

The driver alone needs the project's code: it gives executors what they run of it.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # was this folder, whose modules are no packages of their own
    runpy.run_module("spark.reconcile", run_name="__main__", alter_sys=True)

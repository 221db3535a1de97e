"""These tests run where the environment says TRITON_INTERPRET=1 before anything imports Triton.

Set in a process that has Triton already, the variable would change kernels that others compile; so
test_triton_kernels.py runs this folder in a process of its own.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

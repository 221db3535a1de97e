"""Our kernels share their package name with one of Hugging Face's; nobody may take them for it."""

import subprocess
import sys

import transformers.utils


def test_transformers_does_not_take_our_kernels_for_its_own() -> None:
    assert not transformers.utils.is_kernels_available()


def test_kernels_import_where_triton_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; "
        "import kernels.kv_write, kernels.paged_attention, kernels.sampling"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr

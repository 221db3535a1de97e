"""The Triton kernels without a GPU: what they compute when interpreted, and that they compile for devices."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.kv_write.triton_kernel import kv_write_kernel
from kernels.paged_attention.triton_kernel import paged_attention_kernel

INTERPRETED = Path(__file__).parent / "interpreted"

KV_WRITE_SIGNATURE = {
    "qkv_ptr": "*{dtype}",
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "slots_ptr": "*i64",
    "query_ptr": "*{dtype}",
    "key_cache_ptr": "*{dtype}",
    "value_cache_ptr": "*{dtype}",
    "qkv_stride": "i32",
    "num_heads": "i32",
    "num_kv_heads": "i32",
    "block_size": "i32",
}
ATTENTION_SIGNATURE = {
    "query_ptr": "*{dtype}",
    "key_cache_ptr": "*{dtype}",
    "value_cache_ptr": "*{dtype}",
    "output_ptr": "*{dtype}",
    "query_start_loc_ptr": "*i32",
    "seq_lens_ptr": "*i32",
    "block_tables_ptr": "*i32",
    "scale_log2": "fp32",
    "query_token_stride": "i32",
    "block_table_stride": "i32",
    "num_kv_heads": "i32",
}


def test_kernels_equal_the_reference_when_interpreted() -> None:
    """In one process for all, without the plugins of other folders: it imports longer than it computes."""
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--noconftest", str(INTERPRETED)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=INTERPRETED.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def compile_for(
    kernel: Any, signature: dict[str, str], constants: dict[str, int | bool], dtype: str, arch: int
) -> Any:
    types = {name: kind.format(dtype=dtype) for name, kind in signature.items()}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    # Said outright, because the default changes between the versions that we support, with a warning.
    options = {"enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_kv_write_compiles_without_a_gpu(dtype: str, arch: int) -> None:
    constants = {"HEAD_DIM": 64, "PADDED_HEAD_DIM": 64}
    assert compile_for(kv_write_kernel, KV_WRITE_SIGNATURE, constants, dtype, arch).asm["cubin"]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("dtype", "head_dim"), [("fp32", 64), ("bf16", 64), ("bf16", 80)])
def test_paged_attention_compiles_without_a_gpu(dtype: str, head_dim: int, arch: int) -> None:
    constants = {
        "GROUP_SIZE": 3,
        "HEAD_DIM": head_dim,
        "PADDED_HEAD_DIM": triton.next_power_of_2(head_dim),
        "BLOCK_SIZE": 32,
        "TILE_ROWS": 16,
        "TILE_KEYS": 32,
        "UPCAST": dtype == "fp32",
    }
    assert compile_for(paged_attention_kernel, ATTENTION_SIGNATURE, constants, dtype, arch).asm["cubin"]

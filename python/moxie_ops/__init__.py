"""Moxie's operations for PyTorch and whatever else speaks DLPack, through apache-tvm-ffi.

    import moxie_ops
    moxie_ops.moe_fp8_block_scale(..., output)   # arguments as in the public definition, in its order

The work is done by libmoxie_ops.so, which the wheel holds; MOXIE_OPS_LIBRARY names another one.
"""

import json
import os
import pathlib

import tvm_ffi

__all__ = ["moe_fp8_block_scale", "rows", "__version__"]

_library = tvm_ffi.load_module(os.environ.get("MOXIE_OPS_LIBRARY") or
                               pathlib.Path(__file__).parent / "libmoxie_ops.so")
_moe_fp8 = _library.moe_fp8_block_scale
_moe_fp8_by = _library.moe_fp8_block_scale_by
__version__ = str(_library.version())


def moe_fp8_block_scale(routing_logits, routing_bias, hidden_states, hidden_states_scale,
                        gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale,
                        local_expert_offset, routed_scaling_factor, output, *,
                        row="", top_k=8, n_group=8, topk_group=4):
    """The FP8 block-scale mixture of experts with grouped sigmoid routing; writes `output`.

    Shapes and types are those of docs/fp8-moe.md; tensors of uint8 and uint16 may hold the bits of
    E4M3 and BF16. On CUDA the work goes to PyTorch's current stream, and nothing waits for it. `row`
    is a name of rows(); without one the row with the least predicted time runs.

    Raises ValueError for a wrong argument, TypeError for one that is no tensor or number, and
    RuntimeError for what the device or its memory says.
    """
    if not row and top_k == 8 and n_group == 8 and topk_group == 4:
        _moe_fp8(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,
                 gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,
                 routed_scaling_factor, output)
    else:
        _moe_fp8_by(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,
                    gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,
                    routed_scaling_factor, output, row, top_k, n_group, topk_group)


def rows(device="cpu"):
    """The rows for "cpu" or "cuda:0": dicts with name, runs, why_not, supports and limits."""
    target = tvm_ffi.device(device)
    return json.loads(str(_library.moe_fp8_block_scale_rows(target.dlpack_device_type(),
                                                            target.index)))

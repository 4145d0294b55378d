"""Prints the solution that `flashinfer-bench run --local TREE` executes: JSON for a file
TREE/solutions/moxie/moe/DEFINITION/NAME.json.

    python -m moxie_ops.solution [--definition DEFINITION] [--row ROW] [--name NAME]

It is a solution in Python of one function, which calls this package: that must be installed where
flashinfer-bench runs.
"""

import argparse
import json
import sys

DEFINITION = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
PARAMETERS = ("routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,\n"
              "        gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,\n"
              "        routed_scaling_factor, output")
ENTRY = "main.py"


def source(row=""):
    """The text of the entry point, whose parameters are those of the definition."""
    chosen = f",\n        row={row!r}" if row else ""
    return ("from moxie_ops import moe_fp8_block_scale\n\n\n"
            f"def run({PARAMETERS}):\n"
            f"    moe_fp8_block_scale(\n        {PARAMETERS}{chosen})\n")


def solution(definition=DEFINITION, row="", name=""):
    return {
        "name": name or row or "moxie_moe_fp8_block_scale",
        "definition": definition,
        "author": "moxie",
        "description": "Moxie's FP8 block-scale mixture of experts, " + (row or "cheapest row"),
        "spec": {
            "language": "python",
            "target_hardware": ["cuda", "cpu"],
            "entry_point": f"{ENTRY}::run",
            "dependencies": ["moxie_ops"],
            "destination_passing_style": True,
        },
        "sources": [{"path": ENTRY, "content": source(row)}],
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m moxie_ops.solution",
                                     description="Prints a solution for flashinfer-bench")
    parser.add_argument("--definition", default=DEFINITION)
    parser.add_argument("--row", default="", help="a name of moxie_ops.rows(); else the cheapest")
    parser.add_argument("--name", default="", help="the solution's name; else the row's")
    json.dump(solution(**vars(parser.parse_args(arguments))), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()

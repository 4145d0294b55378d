"""moxie_ops on CPU tensors: against the vectors of an independent computation and against `moxie op
run`, and what it says about wrong arguments. MOXIE_BINARY names the program."""

import json
import os
import subprocess
import sys
import threading

import numpy
import pytest

import moxie_ops
import vectors

RUNNING = [row["name"] for row in moxie_ops.rows() if row["runs"]]


def run(named, **keywords):
    moxie_ops.moe_fp8_block_scale(*named.values(), **keywords)
    return named["output"]


def test_rows_are_listed_and_say_why_they_cannot_run():
    rows = moxie_ops.rows()
    assert "moe_fp8_block_scale_reference" in RUNNING
    assert all(row["runs"] == (row["why_not"] == "") for row in rows)
    assert all(row["name"].startswith("moe_fp8_block_scale_") and row["supports"] for row in rows)


@pytest.mark.parametrize("row", ["", "reference", *RUNNING])
def test_rows_agree_with_an_independent_computation(row):
    expected = vectors.read(vectors.FOLDER / "small_expected.safetensors")["output"]
    output = vectors.bf16_values(run(vectors.arguments(), row=row))
    # BF16 rounds to 2^-8 of the value. Sums of rows in F32 err beside the greatest output.
    sums = 0 if row.endswith("reference") else 1e-5 * abs(expected).max()
    assert (abs(output - expected) <= 2**-8 * abs(expected) + sums).all()
    assert not output[[0, 3]].any()  # tokens without a local expert


@pytest.mark.parametrize("row", RUNNING)
def test_outputs_are_those_of_moxie_op_run(row, tmp_path):
    subprocess.run([os.environ["MOXIE_BINARY"], "op", "run", "moe_fp8_block_scale", "--kernel", row,
                    "--inputs", vectors.FOLDER / "small.safetensors",
                    "--output", tmp_path / "out.safetensors"], check=True, capture_output=True)
    expected = vectors.read(tmp_path / "out.safetensors")["output"]
    assert (run(vectors.arguments(), row=row) == expected).all()


def test_no_token_is_no_work():
    named = vectors.arguments()
    for name in "routing_logits", "hidden_states", "output":
        named[name] = named[name][:0]
    named["hidden_states_scale"] = named["hidden_states_scale"][:, :0].copy()
    assert run(named).shape == (0, 384)


def test_other_numbers_of_groups_and_choices():
    named = vectors.arguments()
    default = run(named).copy()
    same = run(vectors.arguments(), top_k=8, n_group=8, topk_group=4, row="reference")
    assert abs(vectors.bf16_values(default) - vectors.bf16_values(same)).max() < 0.01 * abs(
        vectors.bf16_values(same)).max()
    fewer = run(vectors.arguments(), top_k=1)
    assert (fewer != default).any()


def test_only_the_output_is_written():
    named = vectors.arguments()
    before = {name: value.copy() for name, value in named.items() if hasattr(value, "copy")}
    room = numpy.full((8, 384), 0x1234, "<u2")
    named["output"] = room[1:7]
    run(named)
    assert (room[0] == 0x1234).all() and (room[7] == 0x1234).all()
    assert all((named[name] == value).all() for name, value in before.items() if name != "output")


def test_threads_take_turns():
    expected = run(vectors.arguments())
    outputs = [vectors.arguments() for _ in range(4)]
    threads = [threading.Thread(target=run, args=(named,)) for named in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((named["output"] == expected).all() for named in outputs)


WRONG = [
    ("hidden_states_scale", lambda x: x.T.copy(), "hidden_states_scale: has shape [6, 3], expected [3, 6]"),
    ("routing_logits", lambda x: x.astype("f8"), "routing_logits: is of DLPack's type code 2 with 64 bits, "
     "expected float32"),
    ("routing_logits", lambda x: x[:, :63].copy(), "groups do not divide"),
    ("routing_logits", lambda x: x[:5].copy(), "hidden_states: has shape [6, 384], expected [5, 384]"),
    ("routing_logits", lambda x: x.ravel(), "routing_logits: has 1 dimensions, expected 2"),
    ("routing_bias", lambda x: x.view("<f2"), "expected bfloat16"),
    ("routing_bias", lambda x: x[:-1].copy(), "routing_bias: has shape [63], expected [64]"),
    ("hidden_states", lambda x: x.view("i1"), "expected float8_e4m3fn"),
    ("hidden_states", lambda x: x[:, :200].copy(), "hidden is not a positive multiple of 128"),
    ("gemm1_weights", lambda x: x[:, :-128].copy(), "gemm1_weights: has shape [2, 384, 384]"),
    ("gemm1_weights", lambda x: numpy.repeat(x, 2, 2)[:, :, ::2], "gemm1_weights: is not contiguous"),
    ("gemm1_weights_scale", lambda x: x[:1].copy(), "gemm1_weights_scale: has shape [1, 4, 3]"),
    ("gemm2_weights", lambda x: x[:1].copy(), "gemm1_weights: has shape [2, "),
    ("gemm2_weights_scale", lambda x: x.astype("<i4"), "gemm2_weights_scale: is of DLPack's type code 0"),
    ("local_expert_offset", lambda x: 63, "offset of the local experts is out of range"),
    ("local_expert_offset", lambda x: -1, "local_expert_offset: -1 is out of range"),
    ("local_expert_offset", lambda x: 2**40, "local_expert_offset: 1099511627776 is out of range"),
    ("routed_scaling_factor", lambda x: float("nan"), "routed_scaling_factor: is no finite float32"),
    ("routed_scaling_factor", lambda x: 1e300, "routed_scaling_factor: is no finite float32"),
    ("output", lambda x: x.astype("<f4"), "expected bfloat16"),
    ("output", lambda x: x[:, :256].copy(), "output: has shape [6, 256], expected [6, 384]"),
]


@pytest.mark.parametrize("name, change, text", WRONG, ids=[f"{i}_{case[0]}" for i, case in enumerate(WRONG)])
def test_wrong_arguments_raise_and_write_nothing(name, change, text):
    named = vectors.arguments()
    named[name] = change(named[name])
    before = named["output"].copy()
    with pytest.raises(ValueError) as raised:
        run(named)
    assert text in str(raised.value)
    assert (named["output"] == before).all()


def test_a_tensor_that_is_not_aligned_is_refused():
    named = vectors.arguments()
    logits = named["routing_logits"]
    room = numpy.zeros(logits.nbytes + 4, "u1")
    odd = room[1:1 + logits.nbytes].view("<f4").reshape(logits.shape)
    named["routing_logits"] = odd
    with pytest.raises(ValueError, match="routing_logits: is not aligned to 4 bytes"):
        run(named)


@pytest.mark.parametrize("keywords, error, text", [
    ({"top_k": 0}, ValueError, "choices a token"),
    ({"n_group": 7}, ValueError, "groups do not divide"),
    ({"topk_group": 9}, ValueError, "kept groups"),
    ({"row": "moe_fp8_block_scale_e4m3_f32_gem"}, RuntimeError, "did you mean moe_fp8_block_scale_e4m3_f32_gemm"),
])
def test_wrong_keywords(keywords, error, text):
    with pytest.raises(error, match=text):
        run(vectors.arguments(), **keywords)


def test_what_is_no_tensor_or_number_is_a_type_error():
    for name, value in ("routing_logits", None), ("output", 3), ("local_expert_offset", "one"):
        named = vectors.arguments()
        named[name] = value
        with pytest.raises(TypeError):
            run(named)


def test_rows_of_another_device_or_cpu_are_refused_by_name():
    for row in moxie_ops.rows():
        if not row["runs"]:
            with pytest.raises(RuntimeError, match="which this device lacks"):
                run(vectors.arguments(), row=row["name"])


@pytest.mark.parametrize("row", ["", "reference"])
def test_the_solution_is_what_flashinfer_bench_reads_and_runs(row):
    printed = subprocess.run([sys.executable, "-m", "moxie_ops.solution", "--row", row],
                             check=True, text=True, capture_output=True).stdout
    solution = json.loads(printed)
    assert solution["definition"] == "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
    spec = solution["spec"]
    assert spec["language"] == "python" and spec["destination_passing_style"] is True
    file, entry = spec["entry_point"].split("::")
    sources = {source["path"]: source["content"] for source in solution["sources"]}
    loaded = {}
    exec(sources[file], loaded)
    # The runner passes inputs in the definition's order, then the output, and counts parameters.
    assert loaded[entry].__code__.co_varnames == (*vectors.INPUTS, "output")
    named = vectors.arguments()
    loaded[entry](*named.values())
    assert (named["output"] == run(vectors.arguments(), row=row)).all()

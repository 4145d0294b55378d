"""moxie_ops on a CUDA device with PyTorch: rows, streams, graphs, and wrong arguments. Run by
tools/gpu/flashinfer_bench.sh; without PyTorch or a device everything here is skipped."""

import pytest

import moxie_ops
import vectors

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

TYPES = {"u1": torch.float8_e4m3fn, "<u2": torch.bfloat16}
RUNNING = ([row["name"] for row in moxie_ops.rows("cuda:0") if row["runs"]]
           if torch.cuda.is_available() else [])


def on_device(named, device="cuda"):
    """The arguments as tensors of PyTorch with the types that the bits stand for."""
    moved = {}
    for name, value in named.items():
        if hasattr(value, "dtype"):
            held = torch.from_numpy(value.view("<i2") if value.dtype == "<u2" else value).to(device)
            kind = TYPES.get(value.dtype.str.replace("|", ""))
            value = held if kind is None else held.view(kind)
        moved[name] = value
    return moved


def many(tokens, seed=0):
    """Random arguments of many tokens with the weights of the vectors."""
    named = on_device(vectors.arguments())
    random = torch.Generator("cuda").manual_seed(seed)
    experts, hidden = named["routing_logits"].shape[1], named["hidden_states"].shape[1]
    normal = lambda *shape: torch.randn(shape, device="cuda", generator=random)  # noqa: E731
    named["routing_logits"] = normal(tokens, experts)
    named["hidden_states"] = normal(tokens, hidden).clamp(-2, 2).to(torch.float8_e4m3fn)
    named["hidden_states_scale"] = normal(hidden // 128, tokens)
    named["output"] = torch.full((tokens, hidden), float("nan"), dtype=torch.bfloat16, device="cuda")
    return named


def most(row, tokens):
    """The number of tokens, or as many as the row takes: the one for the fewest takes 8."""
    return min(tokens, 8) if "_stream_" in row else tokens


def run(named, **keywords):
    moxie_ops.moe_fp8_block_scale(*named.values(), **keywords)
    return named["output"]


def reference(named):
    """The output of the reference row on the CPU."""
    held = {name: value.cpu() if hasattr(value, "cpu") else value for name, value in named.items()}
    return run(held, row="reference")


def assert_matches(output, expected, row):
    """Rows that round the intermediate to E4M3 have the tolerances of their authors; FP16 in the middle
    leaves up to 3% of the few outputs here off."""
    absolute, relative, least = (0.1, 0.2, 0.85) if "_e4m3_e4m3_" in row else (0.01, 0.01, 0.97)
    output, expected = output.cpu().double(), expected.double()
    error = (output - expected).abs()
    share = ((error <= absolute) | (error <= relative * expected.abs())).double().mean().item()
    assert share >= least


def test_a_row_runs_here():
    assert RUNNING and all(row["why_not"] for row in moxie_ops.rows("cuda:0") if not row["runs"])


@pytest.mark.parametrize("row", ["", *RUNNING])
def test_rows_agree_with_an_independent_computation(row):
    expected = torch.from_numpy(vectors.read(vectors.FOLDER / "small_expected.safetensors")["output"])
    output = run(on_device(vectors.arguments()), row=row)
    assert_matches(output, expected, row)
    assert not output[[0, 3]].any()


@pytest.mark.parametrize("tokens", [1, 7, 130, 901])
@pytest.mark.parametrize("row", ["", *RUNNING])
def test_any_number_of_tokens(row, tokens):
    named = many(most(row, tokens))
    assert_matches(run(named, row=row), reference(named), row)


def test_no_token_is_no_work():
    named = many(1)
    for name in "routing_logits", "hidden_states", "output":
        named[name] = named[name][:0]
    named["hidden_states_scale"] = named["hidden_states_scale"][:, :0].contiguous()
    assert run(named).shape == (0, 384)
    torch.cuda.synchronize()


@pytest.mark.parametrize("row", RUNNING)
def test_work_is_on_the_current_stream_and_nothing_waits(row):
    named = many(most(row, 100))
    expected = run(named, row=row).clone()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(named, row=row)  # the allocator gets this stream's workspace
        named["output"].fill_(float("nan"))
        torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
        run(named, row=row)
        done.record()
    assert not done.query(), "the call waited for the device"
    done.synchronize()
    assert torch.equal(named["output"], expected)


@pytest.mark.parametrize("row", RUNNING)
def test_streams_side_by_side(row):
    cases = [many(most(row, tokens), seed) for seed, tokens in enumerate((3, 60, 200, 500))]
    expected = [run(named, row=row).clone() for named in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(20):
        for named, stream in zip(cases, streams):
            with torch.cuda.stream(stream):
                named["output"].fill_(float("nan"))
                run(named, row=row)
    torch.cuda.synchronize()
    assert all(torch.equal(named["output"], value) for named, value in zip(cases, expected))


@pytest.mark.parametrize("tokens", [7, 300])
@pytest.mark.parametrize("row", RUNNING)
def test_a_graph_replays_with_inputs_of_the_moment(row, tokens):
    tokens = most(row, tokens)
    named, other = many(tokens, 1), many(tokens, 2)
    expected = [run(case, row=row).clone() for case in (named, other)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(named, row=row)
    for case, value in ((other, expected[1]), (many(tokens, 1), expected[0])):
        for name in "routing_logits", "hidden_states", "hidden_states_scale":
            named[name].copy_(case[name])
        # What others allocate between replays must not be the graph's workspace.
        busy = [torch.full((1 << 22,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
        named["output"].fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(named["output"], value)
        assert all((room == 255).all() for room in busy)


def unaligned(tensor):
    room = torch.zeros(tensor.numel() + 1, dtype=torch.float32, device="cuda")
    view = room[1:].view(tensor.shape)
    return view.copy_(tensor)


@pytest.mark.parametrize("name, change, text", [
    ("gemm2_weights", lambda x: x.cpu(), "gemm2_weights: is on cpu:0, routing_logits on cuda:0"),
    ("output", lambda x: x.cpu(), "output: is on cpu:0"),
    ("routing_logits", unaligned, "routing_logits: is not aligned to 16 bytes"),
    ("routing_logits", lambda x: x.half(), "expected float32"),
    ("hidden_states", lambda x: x.float().to(torch.float8_e5m2), "expected float8_e4m3fn"),
    ("hidden_states", lambda x: x.t().contiguous().t(), "hidden_states: is not contiguous"),
    ("hidden_states_scale", lambda x: x.t().contiguous(), "hidden_states_scale: has shape [7, 3]"),
])
def test_wrong_arguments_raise_and_write_nothing(name, change, text):
    named = many(7)
    output = named["output"]
    named[name] = change(named[name])
    with pytest.raises(ValueError) as raised:
        run(named)
    assert text in str(raised.value)
    torch.cuda.synchronize()
    assert output.isnan().all()


def test_tokens_beyond_a_row_are_refused_by_name():
    row = "moe_fp8_block_scale_e4m3_f16_stream_sm90"
    if row not in RUNNING:
        pytest.skip(f"{row} does not run here")
    with pytest.raises(RuntimeError, match="more than 8 tokens"):
        run(many(9), row=row)


def test_a_row_for_the_cpu_is_refused_by_name():
    with pytest.raises(RuntimeError, match="is for the CPU, the tensors are on CUDA"):
        run(many(7), row="reference")


def test_the_current_device_stays():
    before = torch.cuda.current_device()
    run(many(7))
    assert torch.cuda.current_device() == before

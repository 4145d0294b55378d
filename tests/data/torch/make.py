"""Writes the files of tests/data/torch: vectors and things that are none, saved by torch.

    python3 tests/data/torch/make.py

Value i of a vector is (i - 3) / 4, which BF16, F16 and F32 hold exactly. Made with PyTorch 2.11.
"""

import pathlib

import torch

FOLDER = pathlib.Path(__file__).parent
VECTOR = (torch.arange(8) - 3) / 4
BF16 = torch.bfloat16

FILES = {
    "bf16": VECTOR.to(BF16),
    "f16_row": VECTOR.half()[None],
    "f32_column_of_two": torch.stack([VECTOR, -VECTOR], dim=1)[:, 0],
    "bf16_row_of_three": torch.stack([-VECTOR, VECTOR, -VECTOR]).to(BF16)[1],
    "dict": {"mask_token_id": 507, "embedding": VECTOR.to(BF16)},
    "dict_of_one": {"embedding": VECTOR},
    # Refused.
    "f64": VECTOR.double(),
    "matrix": torch.stack([VECTOR, VECTOR]),
    "parameter": torch.nn.Parameter(VECTOR),
    "text": "no tensor",
    "numbers": {"mask_token_id": 507},
    "two": {"a": VECTOR, "b": -VECTOR},
}

for name, value in FILES.items():
    torch.save(value, FOLDER / f"{name}.pt")
torch.save(VECTOR, FOLDER / "legacy.pt", _use_new_zipfile_serialization=False)

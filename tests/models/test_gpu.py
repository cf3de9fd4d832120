"""Every function of a model on a GPU gives the numbers of the CPU."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from models.test_in_memory import FUNCTIONS, assert_unchanged, made, state
from test_matrix import ANALYSES, Subject, tables_of

from interp.models import as_model
from interp.testing import toy_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning"),
]
KINDS = {
    "hooked decoder": ("gpt2", {"backend": "hooked"}),
    "bridge": ("llama", {"backend": "bridge"}),
    "encoder": ("bert", {"backend": "hooked"}),
    "bridge in bfloat16": ("gpt2", {"backend": "bridge", "dtype": torch.bfloat16}),
}
SEARCHED = {"rank", "contexts", "p", "p_adjusted", "null_95", "null_high", "null_mean", "expected"}
"""Columns that depend on an order or on random draws, which rounding may change."""


@pytest.fixture(scope="module")
def subjects() -> dict[tuple[str, str], Any]:
    return {}


def run(analysis: str, subject: Subject) -> Any:
    try:
        return ANALYSES[analysis](subject)
    except ValueError as error:
        return str(error).replace("cuda:0", "cpu")


def assert_close(on_gpu: Any, on_cpu: Any, *, rtol: float) -> None:
    assert type(on_gpu) is type(on_cpu)
    if isinstance(on_cpu, str):
        assert on_gpu == on_cpu
    if isinstance(on_cpu, torch.Tensor):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=rtol, rtol=rtol)
    if isinstance(on_cpu, np.ndarray):
        np.testing.assert_allclose(on_gpu, on_cpu, atol=rtol, rtol=rtol)
    for name, table in tables_of(on_cpu).items():
        found = tables_of(on_gpu)[name]
        assert found.columns.equals(table.columns), name
        if SEARCHED & set(table.columns):
            continue
        pd.testing.assert_frame_equal(found, table, rtol=rtol, atol=rtol, obj=f"table {name}")


@pytest.mark.parametrize("analysis", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_function(kind: str, analysis: str, subjects: Any, load_toy: Any, texts: list[str]) -> None:
    name, options = KINDS[kind]
    for device in ("cpu", "cuda"):
        if (kind, device) not in subjects:
            subjects[kind, device] = Subject(load_toy(name, device=device, **options), texts)
    on_cpu, on_gpu = (run(analysis, subjects[kind, device]) for device in ("cpu", "cuda"))
    assert_close(on_gpu, on_cpu, rtol=0.1 if "bfloat16" in kind else 1e-3)


@pytest.mark.parametrize("analysis", FUNCTIONS)
def test_a_model_in_memory(analysis: str, subjects: Any, load_toy: Any, texts: list[str]) -> None:
    if ("in memory", "cuda") not in subjects:
        hf = made("gpt2").cuda()
        subjects["before"] = hf, state(hf)
        subjects["in memory", "cuda"] = Subject(as_model(hf, toy_tokenizer()), texts)
        subjects["in memory", "cpu"] = Subject(as_model(made("gpt2"), toy_tokenizer()), texts)
    on_cpu, on_gpu = (run(analysis, subjects["in memory", device]) for device in ("cpu", "cuda"))
    assert_close(on_gpu, on_cpu, rtol=1e-3)
    assert_unchanged(*subjects["before"])

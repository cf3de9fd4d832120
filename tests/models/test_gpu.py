"""Every function of a model on a GPU gives the numbers of the CPU."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from models.test_in_memory import FUNCTIONS, assert_unchanged, made, state
from test_matrix import ANALYSES, Subject, tables_of

from interp import encoding
from interp.instruments.decoding import Generation
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
FLOAT32, BFLOAT16 = 1e-3, 0.1
SEARCHED = ["rank", "p", "p_adjusted", "null_95", "null_high", "null_mean", "expected"]
"""Columns that depend on an order or on random draws, which rounding may change."""


@pytest.fixture(scope="module")
def subjects() -> dict[tuple[str, str], Any]:
    return {}


def run(analysis: str, subject: Subject) -> Any:
    try:
        return ANALYSES[analysis](subject)
    except ValueError as error:
        return str(error).replace("cuda:0", "cpu")


def numbers(answer: Any) -> dict[str, pd.DataFrame | np.ndarray]:
    """What is compared in an answer: its tables, arrays or tensors, what a fit measured, or generated tokens."""
    if isinstance(answer, encoding.regression.Fit):
        return {"alpha": answer.alpha, "E[h]": answer.mean_input, "slope": answer.fitted.slope}
    if isinstance(answer, list) and answer and isinstance(answer[0], Generation):
        return {"tokens": np.array([text.token_ids for text in answer])}
    if isinstance(answer, dict):
        return {name: value.float().cpu().numpy() for name, value in answer.items()}
    if isinstance(answer, torch.Tensor | np.ndarray):
        return {"": torch.as_tensor(answer).double().cpu().numpy()}
    return {name: table.drop(columns=SEARCHED, errors="ignore") for name, table in tables_of(answer).items()}


def assert_close(on_gpu: Any, on_cpu: Any, *, rtol: float) -> None:
    assert type(on_gpu) is type(on_cpu)
    if isinstance(on_cpu, str):
        assert on_gpu == on_cpu
        return
    found, expected = numbers(on_gpu), numbers(on_cpu)
    assert found.keys() == expected.keys()
    if rtol == BFLOAT16:
        expected.pop("contexts", None)  # the texts with the largest activations, which tie in bfloat16
    for name, values in expected.items():
        if isinstance(values, pd.DataFrame):
            pd.testing.assert_frame_equal(found[name], values, rtol=rtol, atol=rtol, obj=f"table {name}")
        else:
            np.testing.assert_allclose(found[name], values, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize("analysis", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_function(kind: str, analysis: str, subjects: Any, load_toy: Any, texts: list[str]) -> None:
    name, options = KINDS[kind]
    for device in ("cpu", "cuda"):
        if (kind, device) not in subjects:
            subjects[kind, device] = Subject(load_toy(name, device=device, **options), texts)
    on_cpu, on_gpu = (run(analysis, subjects[kind, device]) for device in ("cpu", "cuda"))
    assert_close(on_gpu, on_cpu, rtol=BFLOAT16 if "bfloat16" in kind else FLOAT32)


@pytest.mark.parametrize("analysis", FUNCTIONS)
def test_a_model_in_memory(analysis: str, subjects: Any, load_toy: Any, texts: list[str]) -> None:
    if ("in memory", "cuda") not in subjects:
        hf = made("gpt2").cuda()
        subjects["before"] = hf, state(hf)
        subjects["in memory", "cuda"] = Subject(as_model(hf, toy_tokenizer()), texts)
        subjects["in memory", "cpu"] = Subject(as_model(made("gpt2"), toy_tokenizer()), texts)
    on_cpu, on_gpu = (run(analysis, subjects["in memory", device]) for device in ("cpu", "cuda"))
    assert_close(on_gpu, on_cpu, rtol=FLOAT32)
    assert_unchanged(*subjects["before"])

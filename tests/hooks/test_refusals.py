"""Bad arguments of the recipes are refused before the model runs."""

from typing import Any

import numpy as np
import pytest
import torch
from workshop import BAD, TYPE, Case, Workshop, check_refused

from interp import hooks


def taken(w: Workshop, layer: int = 0, dims: Any = (1,), **options: Any) -> Any:
    return hooks.ablate_dims(w.model("gpt2"), layer, dims, **({"where": "keys"} | options))


CASES: dict[str, Case] = {
    "a factor of NaN": (
        BAD,
        ("factor", "nan"),
        lambda w: hooks.scale_bias(w.model("gpt2"), "ln", np.nan),
    ),
    "True for a factor": (TYPE, ("factor", "True"), lambda w: hooks.scale_bias(w.model("gpt2"), "ln", True)),
    "a factor beyond floats": (
        BAD,
        ("factor",),
        lambda w: hooks.scale_bias(w.model("gpt2"), "ln", 10**400),
    ),
    "a vector of another length": (BAD, (16, "(5,)"), lambda w: hooks.shift_head_input(w.model("gpt2"), np.ones(5))),
    "a vector with NaN": (BAD, (16,), lambda w: hooks.shift_head_input(w.model("gpt2"), np.full(16, np.nan))),
    "a complex strength": (
        TYPE,
        ("tau", "1j"),
        lambda w: hooks.adjust_logits(w.model("gpt2"), np.full(67, -1.0), 1j),
    ),
    "numpy's True for a factor": (
        TYPE,
        ("factor", "np.True_"),
        lambda w: hooks.scale_bias(w.model("gpt2"), "ln", np.True_),
    ),
    "a complex prior": (
        TYPE,
        ("log_prior", "complex64"),
        lambda w: hooks.adjust_logits(w.model("gpt2"), torch.zeros(67, dtype=torch.complex64), 1.0),
    ),
    "complex means": (
        TYPE,
        ("means", "complex64"),
        lambda w: taken(w, mode="mean", means=torch.full((16,), 1j)),
    ),
    "means that are true or false": (
        TYPE,
        ("means", "bool"),
        lambda w: taken(w, mode="mean", means=[True] * 16),
    ),
    "means of full-width digits": (
        TYPE,
        ("means", "['３'"),
        lambda w: taken(w, mode="mean", means=["３"] * 16),
    ),
    "means beyond whole numbers": (
        BAD,
        ("means", "real numbers"),
        lambda w: taken(w, mode="mean", means=[10**400] * 16),
    ),
    "means beyond float32": (
        BAD,
        ("torch.float32",),
        lambda w: taken(w, mode="mean", means=np.full(16, 1e300)),
    ),
    "an unknown mode": (BAD, ("mode", "'median'"), lambda w: taken(w, where="residual", mode="median")),
    "means of NaN": (
        BAD,
        ("means", "NaN"),
        lambda w: taken(w, mode="mean", means=torch.full((16,), np.nan)),
    ),
    "part of a layer": (TYPE, ("layer", 0.5), lambda w: taken(w, 0.5)),
    "a float for a hidden state": (
        TYPE,
        ("state", 1.0),
        lambda w: taken(w, 1.0, where="residual"),
    ),
    "no layer": (TYPE, ("state", "None"), lambda w: taken(w, None, where="residual")),
    "a mask for dimensions": (
        TYPE,
        ("dimension", "True"),
        lambda w: taken(w, dims=[True, False]),
    ),
    "part of a dimension": (TYPE, ("dimension", 3.7), lambda w: taken(w, dims=[3.7])),
    "part of a dimension to prune": (
        TYPE,
        ("dimension", 3.7),
        lambda w: hooks.prune_output_dims(w.model("gpt2"), [3.7]),
    ),
    "a name for a model": (
        TYPE,
        ("HookedTransformer",),
        lambda w: hooks.ablate_dims("gpt2", 0, [1], where="keys"),
    ),
}


@pytest.mark.usefixtures("untyped", "unread")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)

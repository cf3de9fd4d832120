"""What removing b_LN changes, against the size of the models of a family."""

from dataclasses import replace

import pytest
import torch

import interp
from interp.analyses.frequency.page import sides
from interp.testing import toy_decoder

TEXT = ["w0 w1 w2 w3 w4", "w5 w6 w7 w8 w9 w1"] * 20
WIDTHS = {"small": 16, "medium": 24, "large": 32}


@pytest.fixture(scope="module")
def family():
    effects = {}
    for name, width in WIDTHS.items():
        model = toy_decoder(n_embd=width)
        with torch.no_grad():
            model.ln_final.b.normal_()
        with pytest.warns(UserWarning, match="word frequencies come from texts"):
            effect = interp.frequency.study(model, TEXT, scales=[0, 1], progress=False)
        effects[name] = effect, model
    return effects


def test_each_model_stands_at_its_number_of_parameters(family):
    page = sides({name: effect for name, (effect, _) in family.items()})
    drawn = {trace.name: (trace.x[0], trace.y[0]) for trace in page.figures["by_size"].data}
    assert "not drawn" not in page.summary
    assert list(drawn) == list(family)
    for name, (effect, model) in family.items():
        n_parameters, added = drawn[name]
        tied = model.W_U.numel()  # the transpose of W_E
        assert n_parameters == sum(value.numel() for value in model.parameters() if value.any()) - tied
        kl = effect.kl.set_index("scale")["kl_unigram_model"]
        assert added == pytest.approx(kl[0] - kl[1], abs=1e-4)


def test_models_that_are_no_family_are_not_drawn_and_it_is_said(family):
    effects = {name: effect for name, (effect, _) in family.items()}

    def compared(**changes):
        last = effects["large"]
        return sides(effects | {"large": replace(last, provenance=last.provenance | changes)})

    for changes, reason in (
        ({"n_parameters": effects["small"].provenance["n_parameters"]}, "fewer than 3 of them differ"),
        ({"tokenizer": "another"}, "their tokenizers differ"),
        ({"n_parameters": None}, "did not record their number of parameters"),
    ):
        page = compared(**changes)
        assert "by_size" not in page.figures
        assert reason in page.summary
    two = sides({name: effects[name] for name in ("small", "large")})
    assert "by_size" not in two.figures
    assert "size" not in two.summary

"""Code as a user of `interp` would write it: every line has the right type under mypy and pyright.

It is checked, not run. `assert_type` fails if a type is different or unknown (`Any`).
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pandas as pd
import torch
import xarray
from torch import Tensor
from transformer_lens import HookedTransformer

import interp
from interp.analyses.attention import AttentionStudy
from interp.analyses.attention.patterns import AttentionInText
from interp.analyses.encoding import EncodingStudy
from interp.analyses.encoding.regression import Fit
from interp.analyses.frequency import FrequencyStudy
from interp.analyses.generation import GenerationStudy
from interp.analyses.probing import ProbingStudy
from interp.analyses.probing.probes import Probe
from interp.analyses.probing.states import States
from interp.analyses.probing.sweeps import Sweep
from interp.corpora.batching import Batch, Batches
from interp.figures.figure import Figure
from interp.hooks import ablate_dims, adjust_logits, prune_output_dims, scale_bias
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.execution import execute
from interp.passes.observers import Observer
from interp.results.dense import Dense
from interp.results.result import Result

# The README

model = interp.load("tiny-gpt2")
assert_type(model, Model)
text = interp.corpora.batches(model, "bundled", bos=True)
assert_type(text, Batches)
effect = interp.frequency.study(model, text, scales=[0.0, 1.0])
assert_type(effect, FrequencyStudy)
assert_type(effect.kl, pd.DataFrame)
assert_type(interp.frequency.study(model, text, biases="ln", scales=0.5), FrequencyStudy)
assert_type(interp.plots.bias_curve(effect, "ln"), Figure)
interp.plots.bias_curve(effect, "ln").save("curve.pdf", width=3.3)
assert_type(effect.figures(), dict[str, Figure])
assert_type(effect.summary(), str)
assert_type(effect.to_latex("kl"), str)
assert_type(effect.to_csv("tables"), list[Path])
assert_type(interp.load_result("runs/demo", "frequency"), Result)

study = interp.attention.study(model, "bundled", seed=1)
assert_type(study, AttentionStudy)
assert_type(study.ablation, pd.DataFrame)
assert_type(study.scores(layer=3, head=[0, 2]), pd.DataFrame)
assert_type(interp.attention.gaps(study.scores), Dense)
assert_type(interp.attention.gaps(study.scores.table), pd.DataFrame)
assert_type(study.gaps.arrays["gap"].sel(key_class="sep").max("dim"), xarray.DataArray)
interp.plots.dimension_means(study)
with model.hooks(fwd_hooks=ablate_dims(model, 3, [48], where="keys")):
    assert_type(interp.attention.attention_by_class(model, "bundled", layers=3), pd.DataFrame)

fit = interp.encoding.fit(model, text)
assert_type(fit, Fit)
assert_type(fit.regression, pd.DataFrame)

pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number", "left_branch"], limit=100)
assert_type(pairs, pd.DataFrame)
states = interp.probing.collect(model, pairs, states=[0, 6], bos=True)
assert_type(states, States)
found = interp.probing.sweep(states, l0_strengths=[0.4, 1], methods=["l0", "dense"])
assert_type(found, Sweep)
probe = interp.probing.probe(found, "reflexive_number", 6)
assert_type(probe, Probe)
tokens, scores = interp.probing.token_scores(model, probe, "The boy hurt themselves.")
assert_type(tokens, list[str])
interp.plots.probe_view(tokens, scores)

# The other studies, and what one text shows

assert_type(interp.encoding.study(model, "bundled"), EncodingStudy)
assert_type(interp.generation.study(model, interp.generation.prompts(model, "bundled")), GenerationStudy)
assert_type(interp.probing.study(model, pairs), ProbingStudy)
assert_type(interp.attention.attention_in_text(model, "A text.", 3, 48), AttentionInText)
assert_type(execute(model, interp.frequency.study.passes(model, text)), FrequencyStudy)

# Recipes on a user's own model

bare = HookedTransformer.from_pretrained("gpt2")
recipe = scale_bias(bare, "ln", 0.5) + adjust_logits(bare, np.zeros(50257), 1.0) + prune_output_dims(bare, [0])
assert_type(recipe, Recipe)
with bare.hooks(fwd_hooks=scale_bias(bare, "ln", 0.5) + interp.encoding.steer(bare, " river", 5, fit)):
    bare.generate("They came to the", max_new_tokens=10)
bare.run_with_hooks(torch.tensor([[1, 2, 3]]), fwd_hooks=recipe)


class MeanResidual(Observer):
    """A user's own observer."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__(model.W_U.device, layer=layer)
        self.site = hook_name(model, "resid_post", layer)
        self.add_state("sum", (model.cfg.d_model,))

    def hooks(self, batch: Batch) -> Recipe:
        def read(resid: Tensor, hook: Any) -> None:
            self.add("sum", batch.select(resid).sum(0))

        return [(self.site, read)]


observer = MeanResidual(model, 0)
interp.observe(model, text, observer)
assert_type(observer.state["sum"], Tensor)

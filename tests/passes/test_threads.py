"""One model in several threads: right numbers, or a refusal that says why."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from toys import every_table

import interp
from interp import hooks
from interp.analyses.generation import generate
from interp.analyses.probing import collect, minimal_pair_accuracy
from interp.models.running import active_hooks, running
from interp.models.sites import hook_name
from interp.passes.observers import Observer
from interp.passes.reading import observe


@pytest.fixture
def gpt2(load_toy):
    return load_toy("gpt2")


def together(*tasks):
    """Run all at once, each in its own thread; returns their results in order."""
    gate = threading.Barrier(len(tasks))
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(lambda t=task: (gate.wait(), t())[1]) for task in tasks]]


@pytest.mark.slow
@pytest.mark.e2e
def test_rounds_of_two_threads_on_one_model(gpt2, texts):
    parts = texts[:6], texts[6:12]
    counts = np.arange(1, gpt2.W_U.shape[1] + 1)
    effect = lambda part: interp.frequency.study(  # noqa: E731
        gpt2, list(part), unigram=counts, batch_size=1, scales=[0, 1], progress=False
    )
    alone = [effect(part) for part in parts]
    assert not alone[0].kl.equals(alone[1].kl)
    for _ in range(12):
        for found, expected in zip(together(*(lambda p=part: effect(p) for part in parts)), alone, strict=True):
            assert found.provenance["active_hooks"] == []
            tables = every_table(found)
            for name, table in every_table(expected).items():
                pd.testing.assert_frame_equal(tables[name], table, check_exact=True)
    assert active_hooks(gpt2) == []


@pytest.mark.slow
def test_different_functions_at_the_same_time(gpt2, texts):
    pairs = pd.DataFrame({"sentence_good": ["w1 w2", "w3 w5"], "sentence_bad": ["w2 w1", "w4 w5"], "UID": ["t", "t"]})
    tasks = {
        "collect": lambda: collect(gpt2, pairs, progress=False).load(1),
        "pairs": lambda: minimal_pair_accuracy(gpt2, pairs, progress=False)["accuracy"].to_numpy(),
        "generate": lambda: [g.token_ids for g in generate(gpt2, ["w1", "w2 w3"], decoder="sample", max_new_tokens=9,
                                                           hooks=hooks.scale_bias(gpt2, "ln", 0.0), progress=False)],
        "attention": lambda: interp.attention.attention_by_class(
            gpt2, texts, key_classes={"a": [7]}, batch_size=2, progress=False)["sum"].to_numpy(),
    }  # fmt: skip
    alone = [task() for task in tasks.values()]
    for _ in range(5):
        for name, found, expected in zip(tasks, together(*tasks.values()), alone, strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_hooks_do_not_act_on_a_forward_pass_of_another_thread(gpt2):
    """A thread runs the model without interp, in the middle of one of interp's contexts."""
    tokens = torch.tensor([[1, 2, 3]])
    expected = gpt2(tokens)
    with running(gpt2, hooks.scale_bias(gpt2, "ln", 0.0)):
        with ThreadPoolExecutor(1) as pool:
            torch.testing.assert_close(pool.submit(gpt2, tokens).result(), expected)
        assert not torch.allclose(gpt2(tokens), expected)
    torch.testing.assert_close(gpt2(tokens), expected)


class Meddling(Observer):
    """A hook is set on the model while it is being read."""

    def __init__(self, model, batch):
        super().__init__()
        self.model, self.name, self.batch, self.seen = model, hook_name(model, "logits"), batch, 0

    def hooks(self, batch):
        self.seen += 1
        if self.seen == self.batch:
            self.model.add_hook(self.name, lambda logits, hook: logits + 1)
        return [(self.name, lambda logits, hook: None)]


def test_hooks_that_are_added_in_the_middle_are_refused(gpt2, texts):
    text = interp.corpora.batches(gpt2, texts, batch_size=1)
    with pytest.raises(RuntimeError, match=naming("unembed.hook_out")):
        observe(gpt2, text, Meddling(gpt2, 3), progress=False)
    gpt2.reset_hooks()
    with pytest.raises(RuntimeError, match=naming("view(model).copied")), running(gpt2):
        gpt2.add_hook("unembed.hook_out", lambda logits, hook: None)


def test_a_copy_of_a_model_has_its_own_turn(gpt2):
    other = copy.deepcopy(gpt2)
    with running(gpt2), ThreadPoolExecutor(1) as pool:

        def run():
            with running(other):
                return True

        assert pool.submit(run).result(timeout=10)


def test_unknown_hook_points_are_refused(gpt2):
    with (
        pytest.raises(ValueError, match=naming("blocks.9.hook_resid_post")),
        running(gpt2, [("blocks.9.hook_resid_post", lambda x, hook: None)]),
    ):
        pass
    assert active_hooks(gpt2) == []


def test_a_function_of_names_selects_every_name_that_it_accepts(gpt2):
    """This is as in `model.hooks`."""
    seen = []
    with running(gpt2, [(lambda name: name.endswith("attn.hook_z"), lambda z, hook: seen.append(hook.name))]):
        gpt2(torch.tensor([[1, 2]]))
    assert seen == ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]
    with pytest.raises(ValueError, match=naming("<function")), running(gpt2, [(lambda name: False, print)]):
        pass


def test_autocast_is_refused(gpt2, texts):
    """It gives other numbers, while the provenance would say float32."""
    with torch.autocast("cpu", torch.bfloat16):
        for run in (
            lambda: interp.frequency.study(gpt2, texts, unigram=np.arange(1, 68), progress=False),
            lambda: generate(gpt2, ["w1"], max_new_tokens=3, progress=False),
        ):
            with pytest.raises(RuntimeError, match=naming("torch.autocast")):
                run()
    assert active_hooks(gpt2) == []

"""Readings that start from a hidden state, against whole passes with the same edit."""

import pytest
import torch

from interp import corpora
from interp.hooks import ablate_dims
from interp.models.running import running
from interp.models.sites import hook_name
from interp.passes import distributed, kept
from interp.passes.execution import Reading, execute
from interp.passes.kept import execute_from, keep
from interp.passes.observers import Observer

DIMS = [3, 5]


class LogitSums(Observer):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_state("sums", (model.W_U.shape[1],))

    def hooks(self, batch):
        return [(hook_name(self.model, "logits"), lambda x, hook: self.add("sums", batch.select(x).double().sum(0)))]


def summed(model, batches):
    observer = LogitSums(model)
    yield [Reading("sums", batches, [observer])]
    return observer.state["sums"]


def both(model, batches, state):
    """Logits without some dimensions of a state, computed from the tokens and from the state."""
    recipe = ablate_dims(model, state, DIMS, where="residual")
    ((name, ablate),) = recipe
    with running(model, recipe):
        whole = execute(model, summed(model, batches), progress=False)
    found = keep(model, summed(model, batches), state)
    return whole, execute_from(model, summed(model, batches), found, lambda x: ablate(x, model.hook_dict[name]))


@pytest.fixture(params=["gpt2", "gpt2, padded on the left", "llama", "bert"])
def read(request, load_toy, texts):
    """A model, and padded batches in which it reads some positions."""
    model = load_toy(request.param.split(",")[0])
    if "left" in request.param:
        model.tokenizer.padding_side = "left"
    rate = 0.3 if request.param == "bert" else None
    return model, corpora.batches(model, texts[:9], layout="texts", batch_size=4, mask_rate=rate)


@pytest.mark.quick("gpt2, padded", "bert")
@pytest.mark.parametrize("state", [0, 1, 2])
def test_a_reading_from_a_state_is_that_of_a_whole_pass(state, read):
    whole, found = both(*read, state)
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-4)
    plain = execute(read[0], summed(*read), progress=False)
    assert (whole - plain).abs().max() > 0.1, "the edit changes something"


@pytest.mark.quick("llama")
@pytest.mark.parametrize("site", [("mlp_out", 0), ("head_norm", None)])
def test_hooks_of_others_count(site, read):
    """Both hooks before the state and hooks on the head, which then sees every position."""
    model, batches = read
    plain = both(model, batches, 2)[0]
    with model.hooks(fwd_hooks=[(hook_name(model, *site), lambda x, hook: x + x.mean(1, keepdim=True))]):
        whole, found = both(model, batches, 2)
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-4)
    assert (whole - plain).abs().max() > 0.1


def test_nothing_before_the_state_runs_again(read, monkeypatch):
    model, batches = read
    found = keep(model, summed(model, batches), 1)

    def runs(*_, **__):
        raise AssertionError("block 0 ran")

    monkeypatch.setattr(model.blocks[0], "forward", runs)
    execute_from(model, summed(model, batches), found, lambda x: x)


@pytest.mark.slow
def test_what_is_read_from_the_start(load_toy, texts, monkeypatch):
    bridge, hooked = (load_toy("gpt2", backend=backend) for backend in ("bridge", "hooked"))
    assert keep(bridge, summed(bridge, corpora.batches(bridge, texts)), 1) is None
    batches = corpora.batches(hooked, texts)
    with monkeypatch.context() as patched:
        patched.setattr(distributed, "part", lambda: distributed.Part(0, 2, grouped=True))
        assert keep(hooked, summed(hooked, batches), 1) is None
    streams = keep(hooked, summed(hooked, batches), 1).streams
    n_bytes = sum(stream.nbytes for _, stream in streams)
    monkeypatch.setattr(kept, "_MOST_BYTES", n_bytes)
    assert keep(hooked, summed(hooked, batches), 1) is not None
    monkeypatch.setattr(kept, "_MOST_BYTES", n_bytes - 1)
    assert keep(hooked, summed(hooked, batches), 1) is None

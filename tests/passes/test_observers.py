import contextlib
import json
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from naming import naming
from processes import Command, Script, often

from interp import corpora, hooks
from interp.analyses.frequency import study
from interp.cli import main
from interp.models.sites import hook_name
from interp.passes import reading
from interp.passes.observers import Observer, fingerprint
from interp.passes.reading import observe
from interp.support.checks import check_same
from interp.testing import toy_bridge, toy_decoder, toy_encoder


class Residual(Observer):
    """The sum, largest and smallest value of the residual stream at the positions that are read."""

    def __init__(self, model, layer=0):
        super().__init__(model.W_U.device, layer=layer)
        self.name = hook_name(model, "resid_post", layer)
        self.add_state("sum", (model.cfg.d_model,))
        self.add_state("n", ())
        self.add_state("max", (model.cfg.d_model,), "max")
        self.add_state("min", (model.cfg.d_model,), "min")

    def hooks(self, batch):
        def read(resid, hook):
            chosen = batch.select(resid)
            self.add("sum", chosen.double().sum(0))
            self.add("n", float(len(chosen)))
            self.add("max", chosen.amax(0))
            self.add("min", chosen.amin(0))

        return [(self.name, read)]


class Logits(Residual):
    def __init__(self, model):
        super().__init__(model)
        self.name = hook_name(model, "logits")
        for name in ("sum", "max", "min"):
            self.add_state(name, (model.W_U.shape[1],), "sum" if name == "sum" else name)


def equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-9, rtol=1e-6)


@pytest.mark.quick("packed-llama", "texts-bert")
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("layout", ["packed", "texts"])
def test_one_pass_equals_plain_forwards(kind, layout, load_toy, texts):
    model = load_toy(kind)
    options = {"mask_rate": 0.3} if kind == "bert" else {}
    batches = corpora.batches(model, texts, layout=layout, batch_size=4, **options)
    residual, logits = Residual(model, 1), Logits(model)
    observe(model, batches, residual, logits, progress=False)
    seen = {"resid": [], "logits": []}
    for batch in batches:
        extra = {"one_zero_attention_mask": batch.mask} if kind == "bert" else {}
        out, cache = model.run_with_cache(batch.tokens, **extra)
        seen["resid"].append(cache[residual.name][batch.read])
        seen["logits"].append(out[batch.read])
    for observer, name in ((residual, "resid"), (logits, "logits")):
        flat = torch.cat(seen[name]).double()
        expected = {"sum": flat.sum(0), "n": torch.tensor(float(len(flat))).double(), "max": flat.amax(0)}
        torch.testing.assert_close(
            {k: v for k, v in observer.state.items() if k in expected}, expected, atol=1e-4, rtol=1e-4
        )


def test_together_equals_alone(load_toy, texts):
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, batch_size=4)
    together = Residual(model, 0), Residual(model, 1), Logits(model)
    observe(model, batches, *together, progress=False)
    for observer, alone in zip(together, (Residual(model, 0), Residual(model, 1), Logits(model)), strict=True):
        observe(model, batches, alone, progress=False)
        equal(observer.state, alone.state)


def test_nothing_unneeded_is_computed(load_toy, texts, monkeypatch):
    for kind in ("gpt2", "bert"):
        model = load_toy(kind)
        monkeypatch.setattr(model.unembed, "forward", lambda *_: pytest.fail("the unembedding ran"))
        if kind == "gpt2":
            monkeypatch.setattr(model.blocks[1], "forward", lambda *_, **__: pytest.fail("block 1 ran"))
        observe(model, corpora.batches(model, texts, mask_rate=0.5 if kind == "bert" else None), Residual(model, 0))


def test_the_head_sees_only_positions_that_are_read(load_toy, texts):
    model = load_toy("bert")
    batch = next(iter(corpora.batches(model, texts, mask_rate=0.2)))
    shapes = []

    class Shape(Logits):
        def hooks(self, batch):
            return [(self.name, lambda logits, hook: shapes.append(tuple(logits.shape)))]

    one = corpora.Batches({}, None, lambda: iter([batch]))
    observe(model, one, Shape(model), progress=False)
    with model.hooks(fwd_hooks=hooks.scale_bias(model, "fc", 0.5)):
        observe(model, one, Shape(model), progress=False)
    assert shapes == [(1, int(batch.read.sum()), 67), (*batch.tokens.shape, 67)]


def test_active_hooks_are_observed(load_toy, texts):
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, batch_size=4)
    plain, edited = Logits(model), Logits(model)
    observe(model, batches, plain, progress=False)
    with model.hooks(fwd_hooks=hooks.adjust_logits(model, torch.full((67,), -1.0), 2.0)):
        observe(model, batches, edited, progress=False)
    torch.testing.assert_close(edited.state["max"], plain.state["max"] + 2)
    assert not any(point.has_hooks() for point in model.hook_dict.values())


def test_a_failed_batch_leaves_nothing_behind(load_toy, texts):
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, batch_size=4)
    good = Residual(model)

    class Bad(Residual):
        def hooks(self, batch):
            def read(resid, hook):
                raise RuntimeError("boom")

            return [(self.name, read)]

    with pytest.raises(RuntimeError, match="boom"):
        observe(model, batches, good, Bad(model, 1), progress=False)
    equal(good.state, Residual(model).state)
    good.commit()
    equal(good.state, Residual(model).state)
    assert not any(point.has_hooks() for point in model.hook_dict.values())


def test_a_hook_that_never_fires_is_refused(load_toy, texts):
    model = load_toy("gpt2")

    class Lost(Residual):
        def hooks(self, batch):
            return [("blocks.0.hook_q_input", lambda *_, **__: None)]

    with pytest.raises(RuntimeError, match=naming("blocks.0.hook_q_input")):
        observe(model, corpora.batches(model, texts), Lost(model), progress=False)


def test_bad_use(load_toy, texts):
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts)
    one = Residual(model)
    with pytest.raises(ValueError, match=naming("observers", 0)):
        observe(model, batches)
    with pytest.raises(ValueError, match=naming("observers", 2)):
        observe(model, batches, one, one)
    with pytest.raises(ValueError, match=naming("layer", 0, 1)):
        one.merge(Residual(model, 1))
    with pytest.raises(ValueError, match=naming("'sum'", "(3,)")):
        one.add("sum", torch.zeros(3))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=2, max_size=9), st.integers(1, 8))
def test_merge_is_update_of_both(values, cut):
    def fill(part):
        observer = Observer()
        for name in ("sum", "max", "min"):
            observer.add_state(name, (3,), name)
        for value in part:
            for name in ("sum", "max", "min"):
                observer.add(name, torch.tensor(value, dtype=torch.float64))
            observer.commit()
        return observer

    a, b, both = fill(values[:cut]), fill(values[cut:]), fill(values)
    a.merge(b)
    equal(a.state, both.state)


@pytest.mark.parametrize("how", [{}, {"group": 1}])
def test_adding_and_merging_change_only_the_observer(how):
    value = torch.ones(3, dtype=torch.float64)
    one, other = Observer(), Observer()
    for observer in (one, other):
        observer.add_state("x", (2, 3) if how else (3,), "groups" if how else "sum")
        observer.add("x", value, **how)
        observer.add("x", value, **how)
        observer.commit()
    one.merge(other)
    assert value.sum() == 3
    assert other.state["x"].sum() == 6
    assert one.state["x"].sum() == 12


def test_resuming_gives_the_same_bits(load_toy, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("interp.passes.reading.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, batch_size=2)
    whole = Residual(model)
    observe(model, batches, whole, progress=False)
    path = tmp_path / "new" / "state.safetensors"

    class Interrupted(Exception):
        pass

    for stop in (3, 7, 12):

        def cut(stop=stop):
            for number, batch in enumerate(batches):
                if number == stop:
                    raise Interrupted
                yield batch

        with pytest.raises(Interrupted):
            observe(model, corpora.Batches(batches.settings, None, cut), Residual(model), checkpoint=path)
    seen = []
    resumed = Residual(model)
    feed = reading.feed
    monkeypatch.setattr(reading, "feed", lambda *arguments: (seen.append(1), feed(*arguments)))
    observe(model, batches, resumed, progress=False, checkpoint=path)
    assert len(seen) == len(list(batches)) - 12
    assert all(torch.equal(resumed.state[name], whole.state[name]) for name in whole.state)
    with pytest.raises(ValueError, match=naming("observers", "data")):
        observe(model, batches, resumed, progress=False, checkpoint=path)
    again = Residual(model)
    observe(model, batches, again, progress=False, checkpoint=path)
    assert len(seen) == len(list(batches)) - 12, "a finished run is not run again"
    assert torch.equal(again.state["sum"], whole.state["sum"])
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_a_foreign_checkpoint_is_refused(load_toy, texts, tmp_path):
    model = load_toy("gpt2")
    path = tmp_path / "c"
    observe(model, corpora.batches(model, texts), Residual(model), checkpoint=path, progress=False)
    for other, data, observer, values in (
        (load_toy("gpt_neox"), texts, Residual, ("weights",)),
        (model, texts[:-1], Residual, ("batches.fingerprint",)),
        (model, texts, lambda m: Residual(m, 1), ("observer 0.layer", 0, 1)),
    ):
        with pytest.raises(ValueError, match=naming(path, *values)):
            observe(other, corpora.batches(other, data), observer(other), checkpoint=path, progress=False)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=naming(path, "checksum")):
        observe(model, corpora.batches(model, texts), Residual(model), checkpoint=path, progress=False)
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match=naming(path, "checkpoint")):
        observe(model, corpora.batches(model, texts), Residual(model), checkpoint=path, progress=False)
    path.unlink()
    with (
        model.hooks(fwd_hooks=hooks.scale_bias(model, "ln", 0.0)),
        pytest.raises(ValueError, match=naming("checkpoint", "hooks")),
    ):
        observe(model, corpora.batches(model, texts), Residual(model), checkpoint=path, progress=False)


@pytest.mark.e2e
def test_all_reduce_over_processes(tmp_path):
    """Two gloo processes combine sums, largest and smallest values, and the places of the largest."""
    code = """
import json, sys, torch
from interp.passes.observers import Observer
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
o = Observer()
for name in ("sum", "max", "min"):
    o.add_state(name, (2,), name)
    o.add(name, torch.tensor([1.0, -5.0]) * (rank + 1))
o.add_state("largest", (2, 1, 3), "largest")
o.add("largest", torch.tensor([[[-5.0, 1.0, 0.5]], [[3.0, 1.0, 5.0]]]) + torch.tensor([[[-rank]], [[10 * rank]]]))
o.commit()
o.all_reduce()
print(json.dumps({k: v.tolist() for k, v in o.state.items()}))
"""
    begun = [Script(code, rank=rank, store=str(tmp_path / "store")) for rank in range(2)]
    outputs = [json.loads(one.end()[0].splitlines()[-1]) for one in begun]
    largest = [[[-6.0, -5.0, 1.0]], [[13.0, 3.0, 1.0]]]
    expected = {"sum": [3.0, -15.0], "max": [2.0, -5.0], "min": [1.0, -10.0], "largest": largest}
    assert outputs == [expected] * 2


@pytest.mark.e2e
def test_a_killed_run_resumes(hf_directory, tmp_path, texts):
    """SIGKILL in the middle of a command, then the same command again."""
    corpus = tmp_path / "c.txt"
    corpus.write_text("\n".join(texts * 40))
    out = tmp_path / "out"
    arguments = ["frequency", "--model", str(hf_directory("gpt2")), "--corpus", str(corpus), "--batch-size", "8"]
    checkpoint = out / ".frequency" / "pass-1.safetensors"
    Command([*arguments, "--out", out], prepare=often).when(checkpoint).send(signal.SIGKILL).end(-signal.SIGKILL)
    assert not (out / "frequency").exists()
    assert main([*arguments, "--out", str(out)]) == 0
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    assert not checkpoint.exists()
    for table in ("kl", "probabilities", "types", "curve"):
        name = f"frequency/{table}.parquet"
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_fingerprint_tells_numbers_apart():
    """Scale, sign, shape and the places of infinities count; the last digits do not."""
    x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def alike(one, other):
        with contextlib.suppress(ValueError):
            check_same("", {"x": fingerprint(one)}, {"x": fingerprint(other)}, rel_tol=1e-5)
            return True
        return False

    infinite = x.clone()
    infinite[0, 3] = -torch.inf
    moved = x.clone()
    moved[0, 4] = -torch.inf
    for other in (2 * x, -x, x.reshape(1000, 3), x.roll(1), infinite, x + 1e-4, torch.zeros(3, 1000)):
        assert not alike(x, other)
    assert not alike(infinite, moved)
    assert alike(infinite, infinite.clone())
    for seed in range(50):
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert alike(x, x * (1 + 1e-11 * noise))


def test_other_scales_and_scores_are_another_run(load_toy, texts, tmp_path):
    """What is not in the weights counts too: the requested λ, and the config."""
    model = load_toy("gpt2")
    options = {"unigram": np.arange(1, 68), "progress": False, "directory": tmp_path}
    study(model, texts, scales=(0, 0.5, 1), **options)
    with pytest.raises(ValueError, match=naming(tmp_path, "observer 0.variants.1.name", "'ln × 0.5'", "'ln × 0.3'")):
        study(model, texts, scales=(0, 0.3, 1), **options)
    model.blocks[1].attn.attn_scale *= 2
    with pytest.raises(ValueError, match=naming(tmp_path, "config")):
        study(model, texts, scales=(0, 0.5, 1), **options)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(("make", "options"), [(toy_decoder, {}), (toy_bridge, {}), (toy_encoder, {"mask_rate": 0.5})])
def test_every_weight_of_a_pass_must_be_finite(make, options, value):
    model = make()
    batches = corpora.batches(model, ["w1 w2 w3 w4 w5 w6 w7"] * 9, layout="texts", batch_size=9, **options)
    plain_attention = [(hook_name(model, "pattern", layer), lambda pattern, hook: None) for layer in (0, 1)]
    residual = Residual(model, layer=model.cfg.n_layers - 1)
    with model.hooks(fwd_hooks=plain_attention):
        observe(model, batches, residual, progress=False)
    for name, parameter in model.named_parameters():
        before = parameter.detach().clone()
        parameter.data[len(parameter) // 2 :] = value
        again = Residual(model, layer=model.cfg.n_layers - 1)
        with contextlib.suppress(ValueError), model.hooks(fwd_hooks=plain_attention):
            observe(model, batches, again, progress=False)
        if not again.is_empty:
            torch.testing.assert_close(again.state, residual.state, rtol=0, atol=0, msg=f"{name} took part")
        parameter.data.copy_(before)

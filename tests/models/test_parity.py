"""What is compared with transformers at loading: wrong windows, rotations and buffers are told from drift."""

from functools import partial

import pytest
import torch
import transformers
from naming import naming
from toys import SIZES

import interp
from interp.models.loading import assembly
from interp.models.loading.assembly import WronglyConverted
from interp.models.loading.drafts import Bridged, Hooked
from interp.models.loading.pretrained import Stored
from interp.models.loading.spread import Placement
from interp.models.loading.streaming import sampled
from interp.models.sites import view
from interp.testing import randomise

LONG = SIZES | {"max_position_embeddings": 600, "num_key_value_heads": 2, "num_hidden_layers": 4}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
GEMMA = LONG | {
    "hidden_size": 20,
    "head_dim": 4,
    "query_pre_attn_scalar": 4,
    "sliding_window": 100,
    "layer_types": LAYERS,
}
MODELS = {
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig(**LONG, sliding_window=100)),
    "gemma": (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(**GEMMA)),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The directory of a model with a context of 600 in a type, made once."""
    made = {}

    def directory(kind, dtype=torch.float32):
        if (kind, dtype) not in made:
            cls, config = MODELS[kind]
            torch.manual_seed(0)
            model = cls(config)
            randomise(model)
            made[kind, dtype] = tmp_path_factory.mktemp(kind)
            model.to(dtype).save_pretrained(made[kind, dtype])
        return made[kind, dtype]

    return directory


@pytest.fixture
def after(monkeypatch):
    """Runs something after a method, with the object, the arguments and the result of the method."""

    def change(cls, name, edit):
        method = getattr(cls, name)

        def changed(self, *arguments):
            result = method(self, *arguments)
            return edit(self, arguments, result)

        monkeypatch.setattr(cls, name, changed)

    return change


def refused(directory, backend, *values, **options):
    with pytest.raises(WronglyConverted, match=naming(directory, *values)):
        interp.load(directory, backend=backend, **options)


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_a_window_of_another_width(backend, saved, after):
    def double(draft, arguments, result):
        if backend == "hooked":
            draft.model.blocks[0].attn.cfg.window_size = 200
        else:
            view(draft.model).wrapped.config.sliding_window = 200

    after(Hooked if backend == "hooked" else Bridged, "__init__", double)
    value = "model.layers.0" if backend == "hooked" else "sliding_window"
    refused(saved("mistral"), backend, value)


def stretched(position_embeddings, after, factor):
    """The rotations of positions that advance more slowly after one of them."""
    cos, sin = position_embeddings
    position = torch.arange(cos.shape[1])
    slow = torch.where(position > after, after + (position - after) // factor, position)
    return cos[:, slow], sin[:, slow]


@pytest.mark.parametrize(("layer", "start"), [(0, 300), (2, 60)])
def test_a_rotation_that_is_scaled_differently(layer, start, saved, monkeypatch):
    """Far beyond the 32 positions of the rows on which all blocks are compared; Gemma's layers rotate in two ways."""
    right = Bridged.output

    def wrong(self, block, batch, arguments, named):
        if block == f"model.layers.{layer}":
            named = named | {"position_embeddings": stretched(named["position_embeddings"], start, 4)}
        return right(self, block, batch, arguments, named)

    monkeypatch.setattr(Bridged, "output", wrong)
    refused(saved("gemma"), "bridge", f"model.layers.{layer}", "position")


def test_a_buffer_of_another_value(saved, after):
    """Gemma's embed_scale as rounded to bfloat16: every block is right on what it is given."""

    def rounded(stored, arguments, buffers):
        return buffers | {"model.embed_tokens.embed_scale": torch.tensor(20**0.5).bfloat16().float()}

    after(Stored, "buffers", rounded)
    refused(saved("gemma"), "bridge", "log-probabilities")


@pytest.mark.parametrize("kind", list(MODELS))
def test_drift_is_not_refused(kind, saved, after):
    """Every weight is rounded anew in the last bit of float32, in each block that is compared."""

    def drifted(draft, arguments, output):
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
        return output * (1 + torch.finfo(torch.float32).eps * noise)

    after(Bridged, "output", drifted)
    interp.load(saved(kind), backend="bridge")


def test_one_block_of_each_kind(saved):
    model = transformers.AutoModelForCausalLM.from_pretrained(saved("gemma")).eval()
    ran = []
    with torch.no_grad(), sampled(model, torch.float32, lambda name, *_: ran.append(name)):
        model.base_model(torch.zeros(1, 512, dtype=torch.long))
    assert ran == ["model.layers.0", "model.layers.2"]
    assert not any("forward" in vars(module) for module in model.modules())


def test_only_one_token_is_wrong_in_half_precision(saved, after):
    """Its log-probability is 1 nat off, and the root mean square of all differences stays small."""

    def edited(placement, arguments, result):
        with torch.no_grad():
            view(arguments[0]).wrapped.lm_head.weight.data[5].mul_(1.5)

    expected = interp.load(saved("mistral"), backend="bridge", dtype="bfloat16")
    after(Placement, "finish", edited)
    refused(saved("mistral"), "bridge", "log-probabilities", dtype="bfloat16")
    assert expected.W_U.dtype == torch.bfloat16


@pytest.mark.parametrize("rounding", [0.02, 0.3])
def test_the_bound_in_half_precision(rounding):
    """However much transformers' own model is changed by rounding, a token that is 1.07 nats off is refused."""
    generator = torch.Generator().manual_seed(0)
    exact, own, ours = (torch.randn(64, 500, generator=generator) for _ in range(3))
    exact = 3 * exact
    own = exact + rounding * own
    ours = own + min(rounding, 0.05) * ours
    check = partial(assembly._check_parity, "toy", "log-probabilities", dtype=torch.bfloat16)
    check(*(logits.log_softmax(-1) for logits in (ours, exact, own)))
    ours[3, 7] += 1.07 if own[3, 7] < ours[3, 7] else -1.07
    with pytest.raises(WronglyConverted, match=naming("toy", "log-probabilities")):
        check(*(logits.log_softmax(-1) for logits in (ours, exact, own)))


@pytest.mark.parametrize(("kind", "backend"), [("mistral", "hooked"), ("mistral", "bridge"), ("gemma", "bridge")])
def test_stored_in_bfloat16(kind, backend, saved):
    directory = saved(kind, torch.bfloat16)
    tokens = torch.randint(67, (2, 200), generator=torch.Generator().manual_seed(0))
    plain = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        found, expected = interp.load(directory, backend=backend)(tokens), plain(tokens).logits
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1), atol=1e-4, rtol=0)

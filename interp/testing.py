"""Tools to test your own recipes and observers: toy models, and checks that every recipe and observer must pass.

    from interp.testing import assert_recipe, toy_decoder

    def test_my_recipe():
        model = toy_decoder()
        assert_recipe(model, my_recipe(model), lambda edited: edited.ln_final.b.mul_(0.5))

All weights of a toy model are random, biases included, because a bias of zero would hide mistakes.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import tokenizers
import torch
import transformers
from jaxtyping import Float
from torch import Tensor

from interp.corpora.batching import Batch, batches
from interp.corpora.sources import Source
from interp.models.identity import Origin, set_origin, weight_hash
from interp.models.loading.loader import load, quiet
from interp.models.loading.miniature import miniature
from interp.models.loading.pretrained import model_class
from interp.models.running import Hooks, hooks_of_others, resolved
from interp.models.sites import Model, Recipe, check_model, hook_name, is_encoder, view
from interp.passes.observers import Observer
from interp.passes.reading import forward, observe, part_of
from interp.support.choices import Backend

if TYPE_CHECKING:
    from transformer_lens import HookedEncoder, HookedTransformer
    from transformer_lens.model_bridge import TransformerBridge
else:
    HookedEncoder = HookedTransformer = TransformerBridge = Any

__all__ = ["WORDS", "assert_observer_merges", "assert_recipe", "assert_recipe_exact", "randomise"]
__all__ += ["toy_bridge", "toy_decoder", "toy_encoder", "toy_like", "toy_tokenizer"]
__dir__ = __all__.copy

WORDS = tuple(f"w{i}" for i in range(60))
"""The words that a toy model knows. Its texts consist of these, separated by spaces."""
_SPECIAL = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
    "bos_token": "<s>", "eos_token": "</s>",
}  # fmt: skip
_SIZES: dict[str, Any] = {"n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4}
_LENGTHS = (12, 7, 4)
_PARTS = 3
_OF_FLOAT32 = 1e-2  # error of a finite difference of float32 numbers, as a share of the derivative


def toy_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of whole words: `WORDS`, the special tokens of BERT, and `<s>` and `</s>`.

    Examples:
        >>> toy_tokenizer()("w0 w1").input_ids  # the special tokens come first
        [7, 8]
    """
    vocabulary = {word: number for number, word in enumerate([*_SPECIAL.values(), *WORDS])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    backend.normalizer = tokenizers.normalizers.Lowercase()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **_SPECIAL)


@torch.no_grad()
def randomise(model: torch.nn.Module, *, seed: int = 0) -> None:
    """Add noise from N(0, .3²) to every parameter in place, including the biases and scales of norms.

    Examples:
        >>> norm = torch.nn.LayerNorm(3)
        >>> randomise(norm)
        >>> bool(norm.bias.any())  # zero when it was made
        True
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def toy_decoder(*, seed: int = 0, dtype: torch.dtype | None = None, **config: Any) -> HookedTransformer:
    """Make a small random GPT-2 with a tokenizer: 2 blocks, 4 heads, d_model 16, context 24, vocabulary 67.

    It is a `TransformerBridge` if TransformerLens has no `HookedTransformer` (version 4 and later).

    Args:
        seed: seed for the weights.
        dtype: as in `interp.load`.
        config: other sizes and settings, by the names of `transformers.GPT2Config`. Unknown names raise TypeError.

    Examples:
        >>> model = toy_decoder()
        >>> tuple(model("w1 w2 w3", prepend_bos=False).shape)
        (1, 3, 67)
    """
    sizes = _SIZES | config
    return cast("HookedTransformer", _loaded(transformers.GPT2LMHeadModel, transformers.GPT2Config, sizes, seed, dtype))


def toy_encoder(*, seed: int = 0, dtype: torch.dtype | None = None, **config: Any) -> HookedEncoder:
    """Make a small random BERT with a tokenizer, as large as `toy_decoder`.

    Args:
        seed: seed for the weights.
        dtype: as in `interp.load`.
        config: other sizes and settings, by the names of `transformers.BertConfig`. Unknown names raise TypeError.

    Examples:
        >>> toy_encoder().cfg.d_model
        16
    """
    sizes = {
        "max_position_embeddings": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64,
    }  # fmt: skip
    sizes.update(config)
    return cast("HookedEncoder", _loaded(transformers.BertForMaskedLM, transformers.BertConfig, sizes, seed, dtype))


def toy_bridge(
    config: transformers.PreTrainedConfig | None = None, *, seed: int = 0, dtype: torch.dtype | None = None
) -> TransformerBridge:
    """Make a small random model of any architecture in a `TransformerBridge`, with a tokenizer.

    Args:
        config: the config of a small language model of transformers with a vocabulary of 67. Default: that of
            `toy_decoder`.
        seed: seed for the weights.
        dtype: as in `interp.load`.

    Raises ValueError if TransformerLens has no adapter for the architecture.

    Examples:
        >>> import transformers
        >>> sizes = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        >>> model = toy_bridge(transformers.Qwen3Config(vocab_size=67, head_dim=4, num_key_value_heads=2, **sizes))
        >>> type(model).__name__, model.cfg.d_model
        ('TransformerBridge', 16)
    """
    config = transformers.GPT2Config(vocab_size=67, **_SIZES) if config is None else config
    cls: Any = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    return cast("TransformerBridge", _saved(lambda: cls.from_config(config), seed, dtype, "bridge"))


def toy_like(config: transformers.PreTrainedConfig, *, backend: Backend | None = None) -> Model:
    """Make a small random model of the same kind as the model with a config, of which the same questions can be asked
    (`interp.analyses.registry.left_out`).

    Args:
        config: the config of a language model of transformers.
        backend: as in `interp.load`.

    Raises ValueError if a model of this kind cannot be loaded.

    Examples:
        >>> import transformers
        >>> toy_like(transformers.LlamaConfig()).cfg.d_model
        32
    """
    return _saved(lambda: model_class(small := miniature(config))(small), 0, None, backend)


def _loaded(cls: Any, config_of: Any, sizes: dict[str, Any], seed: int, dtype: torch.dtype | None) -> Model:
    if unknown := [name for name in sizes if not hasattr(config_of(), name)]:
        raise TypeError(f"{config_of.__name__} has no {unknown[0]}; expected settings such as {', '.join(sizes)}")
    sizes.setdefault("vocab_size", 67)
    return _saved(lambda: cls(config_of(**sizes)), seed, dtype, None)


def _saved(make: Callable[[], Any], seed: int, dtype: torch.dtype | None, backend: Backend | None) -> Model:
    """A transformers model with random weights, saved to a directory and loaded from there."""
    tokenizer = toy_tokenizer()
    with quiet(), torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as directory:
        torch.manual_seed(seed)
        model = make()
        randomise(model, seed=seed)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        loaded = load(directory, device="cpu", dtype=dtype, backend=backend)
    _read_words(loaded.tokenizer)
    set_origin(loaded, Origin(f"toy {model.config.model_type}", None, None))
    return loaded


def _read_words(tokenizer: Any) -> None:
    """Let a tokenizer read words as `toy_tokenizer` does, which the classes of some architectures (Qwen2) undo."""
    toy, backend = toy_tokenizer().backend_tokenizer, tokenizer.backend_tokenizer
    for part in ("model", "normalizer", "pre_tokenizer", "decoder"):
        setattr(backend, part, getattr(toy, part))


def assert_recipe(model: Model, recipe: Recipe, edited: Callable[[Any], object], *, atol: float = 1e-5) -> None:
    """Check that a recipe has the same effect as an edit of the parameters.

    It must give the same log-probabilities as a copy of the model that `edited` has changed, also when it is combined
    with another recipe, for rows in a batch and on their own, and next to padding. It must leave no hooks behind and
    must not change weights.

    Args:
        recipe: a recipe made for this model.
        edited: a function that makes the same change to a copy of the model, in place.
        atol: the largest allowed difference of log-probabilities, in nats.

    Raises AssertionError that says what differs and by how much, and if the recipe changes nothing.

    Examples:
        >>> from interp.hooks import scale_bias
        >>> model = toy_decoder()
        >>> assert_recipe(model, scale_bias(model, "ln", 0.5), lambda copy: copy.ln_final.b.mul_(0.5))
    """
    check_model(model)
    hooks = hooks_of_others(model)
    weights = weight_hash(model)
    changed = view(model).copied()
    with torch.no_grad():
        edited(changed)
    if weight_hash(model) != weights:
        raise AssertionError("the edit changed the model itself; change only the copy that is passed to `edited`")
    rows = _rows(model)
    together = Batch.of(rows)
    single_rows = [Batch.of([row]) for row in rows]

    expected = _log_probs(changed, together)
    observed = _log_probs(model, together, recipe)
    if hooks_of_others(model) != hooks:
        raise AssertionError("the recipe left hooks on the model; return all hooks and set none yourself")
    if weight_hash(model) != weights:
        raise AssertionError("the recipe changed the model's weights; change activations, and nothing in place")
    without = _log_probs(model, together)
    for edit_name, changes in (("edit of the parameters", expected - without), ("recipe", observed - without)):
        if (largest := float(changes.abs().max())) <= atol:
            by = f": no log-probability by more than {largest:.1e}" if largest else ""
            raise AssertionError(f"the {edit_name} changes nothing{by}")
    _assert_close(observed, expected, atol, "the recipe differs from the edited parameters")
    scaling: Recipe = [(hook_name(model, "embed"), lambda resid, hook: 1.5 * resid)]
    composed = _log_probs(model, together, recipe + scaling), _log_probs(changed, together, scaling)
    _assert_close(*composed, atol, "with another recipe (1.5 × the embeddings) it differs from the edited parameters")
    separate = torch.cat([_log_probs(model, row_batch, recipe) for row_batch in single_rows])
    _assert_close(observed, separate, atol, "rows in a batch with padding differ from the same rows alone")


def assert_recipe_exact(recipe: Callable[[Any], Recipe], model: Model, *, atol: float = 1e-6) -> None:
    """Check that a recipe is a pure function of activations and parameters, wherever TransformerLens takes hooks.

    | what | must equal |
    |---|---|
    | two threads that run the model at once, each with its own tokens, and wait for each other at every hook | each \
alone |
    | the gradient with respect to all parameters, along a random direction | the central finite difference |
    | a recipe made before the parameters were edited in place | one made afterwards |
    | `torch.inference_mode()` | `torch.no_grad()` |
    | a row of one token in a batch of longer rows | the row alone |

    All of this happens in copies of the model in float64.

    Args:
        recipe: model → the recipe for this model.
        atol: the largest allowed difference of log-probabilities, in nats; and of the derivative, as a share of it.

    Raises AssertionError that says what differs and by how much.

    Examples:
        >>> from interp.hooks import scale_bias
        >>> assert_recipe_exact(lambda model: scale_bias(model, "ln", 0.5), toy_decoder())
    """
    check_model(model)
    for check in (_check_threads, _check_gradient, _check_edited, _check_inference_mode, _check_one_token):
        copy = view(model).copied()
        view(copy).to(torch.float64)
        check(copy, recipe, atol)


def _rows(model: Model, *, seed: int = 0) -> list[list[int]]:
    """Rows of random tokens, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [min(length, model.cfg.n_ctx) for length in _LENGTHS]
    return [torch.randint(model.cfg.d_vocab, (length,), generator=generator).tolist() for length in lengths]


def _check_threads(model: Model, recipe: Callable[[Any], Recipe], atol: float) -> None:
    hooks = recipe(model)
    batches_of_threads = [Batch.of(_rows(model, seed=seed)) for seed in range(2)]
    separate = [_log_probs(model, batch, hooks) for batch in batches_of_threads]
    barrier = threading.Barrier(2, timeout=60)

    def wait(activation: Tensor, hook: Any) -> None:
        barrier.wait()

    both = [*hooks, *((point, wait) for point, _ in hooks)]
    with model.hooks(fwd_hooks=list(resolved(model, both))), ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda batch: _log_probs_now(model, batch), batches_of_threads))
    for ours, expected in zip(together, separate, strict=True):
        _assert_close(ours, expected, atol, "in two threads it differs from one")


def _check_gradient(model: Model, recipe: Callable[[Any], Recipe], atol: float) -> None:
    """Llama's norms compute in float32 whatever its type, so the limit is wider if the model itself misses it."""
    plain, own_error = _gradient(model, [])
    share = atol if own_error <= atol * max(1, abs(plain)) else _OF_FLOAT32
    gradient, error = _gradient(model, recipe(model))
    if not error <= share * max(1, abs(gradient)):
        differs = f"its gradient along a random direction is {gradient:.9g}, and {error:.1e} from the finite difference"
        raise AssertionError(f"{differs}; compute with tensors that have not been detached")


def _gradient(model: Model, hooks: Recipe) -> tuple[float, float]:
    """The derivative of a loss with respect to all parameters along a random direction, and how far it is from the
    central difference over four points."""
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    padding = {module.padding_idx for module in embeddings}  # torch computes no gradient for these rows
    rows = [[token for token in row if token not in padding] for row in _rows(model)]
    batch = Batch.of(rows).to(model.W_U.device)
    step = 2e-3
    generator = torch.Generator().manual_seed(1)
    parameters = [parameter.requires_grad_() for parameter in model.parameters() if parameter.numel()]
    normal = [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in parameters]
    length = torch.stack([part.square().sum() for part in normal]).sum().sqrt()
    direction = [(part / length).to(weight.device) for part, weight in zip(normal, parameters, strict=True)]

    def loss() -> Tensor:
        log_p = batch.select(forward(model, batch)).log_softmax(-1)
        return (log_p * torch.linspace(-1, 1, log_p.shape[1]).to(log_p)).sum()

    def at(distance: float) -> float:
        with torch.no_grad(), _moved(parameters, direction, distance):
            return float(loss())

    with model.hooks(fwd_hooks=list(resolved(model, hooks))):
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(), parameters, allow_unused=True)
        difference = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    products = ((g * along).sum() for g, along in zip(gradients, direction, strict=True) if g is not None)
    derivative = float(sum(products))
    return derivative, abs(derivative - difference)


@contextmanager
def _moved(parameters: list[Tensor], direction: list[Tensor], distance: float) -> Iterator[None]:
    """A context in which parameters are further along a direction."""
    before = [parameter.clone() for parameter in parameters]
    try:
        for parameter, along in zip(parameters, direction, strict=True):
            parameter.add_(distance * along)
        yield
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)


def _check_edited(model: Model, recipe: Callable[[Any], Recipe], atol: float) -> None:
    before = recipe(model)
    batch = Batch.of(_rows(model))
    _log_probs(model, batch, before)  # what a hook keeps from its first call is stale afterwards
    randomise(model, seed=2)
    ours, expected = _log_probs(model, batch, before), _log_probs(model, batch, recipe(model))
    _assert_close(ours, expected, atol, "after parameters were edited, it differs from a recipe made afterwards")


def _check_inference_mode(model: Model, recipe: Callable[[Any], Recipe], atol: float) -> None:
    hooks = recipe(model)
    batch = Batch.of(_rows(model))
    with torch.inference_mode():
        ours = _log_probs(model, batch, hooks)
    _assert_close(ours, _log_probs(model, batch, hooks), atol, "in torch.inference_mode() it differs")


def _check_one_token(model: Model, recipe: Callable[[Any], Recipe], atol: float) -> None:
    hooks = recipe(model)
    rows = [[3], *_rows(model)]
    separate = _log_probs(model, Batch.of(rows[:1]), hooks)
    _assert_close(_log_probs(model, Batch.of(rows), hooks)[:1], separate, atol, "a row of one token differs in a batch")


def _log_probs(model: Model, batch: Batch, recipe: Hooks = ()) -> Float[Tensor, "token d_vocab"]:
    """Log-probabilities with a recipe at the positions that are not padding, row by row."""
    with model.hooks(fwd_hooks=list(resolved(model, recipe))):
        return _log_probs_now(model, batch)


@torch.no_grad()
def _log_probs_now(model: Model, batch: Batch) -> Float[Tensor, "token d_vocab"]:
    logits = forward(model, batch.to(model.W_U.device))
    return batch.select(logits.cpu()).double().log_softmax(-1)


def _assert_close(observed: Tensor, expected: Tensor, atol: float, problem: str) -> None:
    differences = (observed - expected).abs().nan_to_num(torch.inf)
    if float(differences.max()) > atol:
        place, token = divmod(int(differences.argmax()), differences.shape[1])
        printed_values = f"{observed[place, token]:.6g}, expected {expected[place, token]:.6g}, for token {token}"
        raise AssertionError(
            f"{problem} by {float(differences.max()):.1e} in a log-probability ({printed_values}); allowed {atol:.0e}"
        )


def assert_observer_merges(
    make: Callable[[Any], Observer],
    model: Model,
    texts: Source,
    *,
    others: Sequence[Callable[[Any], Observer]] = (),
    rtol: float = 1e-5,
) -> None:
    """Check that the result of an observer does not depend on how a corpus is divided into batches or processes, and
    that its options tell it from others.

    The result must be the same for one batch, for batches of one row, and for three parts that are merged. For an
    encoder, half of the tokens are masked.

    Args:
        make: model → a new observer, with the same options every time.
        texts: three or more texts of different lengths, so that rows of a batch are padded.
        others: model → a new observer of the same class, each with another value of one argument. If it reads something
            else, its options have to differ, because equal observers are filled once (`interp.passes.shared`).
        rtol: the largest allowed difference in a state, as a share of the largest number in it.

    Raises AssertionError that says which state differs and by how much, if options omit an argument, and if nothing is
    observed. Raises ValueError for fewer texts, or texts of equal length.

    Examples:
        >>> from interp.analyses.attention.patterns import AttentionByClass
        >>> from interp.corpora import token_classes
        >>> make = lambda model: AttentionByClass(model, token_classes(model, {"first": [7, 8]}))
        >>> assert_observer_merges(make, toy_decoder(), ["w1 w2 w0", "w4 w5", "w6 w7 w8"])
    """
    settings: dict[str, Any] = {"layout": "texts", "mask_rate": 0.5 if is_encoder(model) else None}
    rows = batches(model, texts, batch_size=1, **settings)
    all_at_once = make(model)
    single = make(model)
    lengths = [batch.tokens.shape[1] for batch in rows]
    if len(lengths) < _PARTS or len(set(lengths)) == 1:
        raise ValueError(f"expected {_PARTS} or more texts of different lengths, found rows of {lengths} tokens")
    observe(model, batches(model, texts, batch_size=64, **settings), all_at_once, progress=False)
    if all_at_once.is_empty:
        raise AssertionError("the observer observed nothing; hooks(batch) must return hooks that call add")
    observe(model, rows, single, progress=False)
    _assert_same_states(single, all_at_once, rtol, "batches of one row differ from one batch of all")
    for number, make_other in enumerate(others):
        different = make_other(model)
        observe(model, batches(model, texts, batch_size=64, **settings), different, progress=False)
        if different.options == all_at_once.options:
            problem = f"its options, {all_at_once.options}, are those of the observer others[{number}]"
            _assert_same_states(
                different, all_at_once, 0.0, f"{problem}, which reads something else; add the argument to options"
            )
    merged = make(model)
    for index in range(_PARTS):
        part = make(model)
        observe(model, part_of(rows, index, _PARTS), part, progress=False)
        try:
            merged.merge(part)
        except ValueError as error:
            raise AssertionError(f"two observers made in the same way do not merge: {error}") from error
    _assert_same_states(merged, single, rtol, f"{_PARTS} merged parts differ from the whole")


def _assert_same_states(observed: Observer, reference: Observer, rtol: float, problem: str) -> None:
    shapes = [
        {name: tuple(value.shape) for name, value in observer.state.items()} for observer in (observed, reference)
    ]
    if shapes[0] != shapes[1]:
        raise AssertionError(f"{problem}: states {shapes[0]} and {shapes[1]}")
    for name, value in observed.state.items():
        expected = reference.state[name]
        differences = (value - expected).abs()[value != expected].nan_to_num(torch.inf)
        allowed = rtol * float(expected[expected.isfinite()].abs().max()) if expected.isfinite().any() else 0.0
        if differences.numel() and float(differences.max()) > allowed:
            reduction = f"reduced by {observed.reductions[name]}"
            raise AssertionError(
                f"{problem}: state {name!r}, {reduction}, by {float(differences.max()):.3g} (allowed {allowed:.1g})"
            )

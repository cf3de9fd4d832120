"""Loading models with raw weights, checked against transformers."""

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, get_args

import tokenizers
import torch
import transformers
from einops import rearrange

from interp.checks import check_choice, check_seed
from interp.declare import Backend
from interp.models.identity import Origin, origin, set_origin
from interp.models.pretrained import HOOKED, MASKED, SEQ2SEQ, context_of, place, read, read_config, why_not_converted
from interp.models.running import find_device
from interp.models.sites import Model, check_model, view
from interp.models.verify import verify_head, verify_neurons, verify_scores, verify_values
from interp.models.views import Tokens
from interp.paths import model_directory, printable

__all__ = ["PARITY_TOLERANCE", "load", "quiet", "untrained"]

PARITY_TOLERANCE = 1e-4
"""Largest difference of log-probabilities from transformers with which a model is loaded."""

_FIRST_SD = 0.02


def load(
    name_or_path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    checkpoint: int | None = None,
    backend: Backend | None = None,
) -> Model:
    """Load a language model with raw (unfolded, uncentred) weights and check it against transformers.

    Weights are read from safetensors only, no pickle is opened and no remote code is run. The model is checked in
    float32: the largest difference of log-softmax from the transformers model on random tokens (padded too for BERT)
    must stay below 1e-4. Matrices of a hooked model are laid out in memory so that TransformerLens does not copy them
    at each call. Both models are in memory during the check.

    Args:
        name_or_path: a bundled model (`interp.paths.bundled_models()`), a local Hugging Face directory, a hub name
            (`"EleutherAI/pythia-70m"`) or one of TransformerLens' short names (`"gpt2-medium"`, `"pythia-70m"`).
        device: where to put it; CUDA if there is one, else the CPU.
        dtype: of the returned model, as torch has it or by its name; float32.
        revision: a branch, tag or commit of a hub repository.
        checkpoint: a training step of a model that has them (Pythia: revision `step{checkpoint}`; the Stanford
            CRFM GPT-2s: `checkpoint-{checkpoint}`).
        backend: `"hooked"` for TransformerLens' own implementation (`HookedTransformer`, BERT `HookedEncoder`),
            `"bridge"` for the model of transformers in a `TransformerBridge`. By default hooked, where TransformerLens
            has one that converts this model rightly, else bridge.

    Raises:
        FileNotFoundError: no such directory, no config.json or no safetensors weights in it.
        ValueError: unsupported architecture, option or device, incomplete or non-finite weights, a failed parity
            check, an unknown backend or one that cannot have this model.

    Examples:
        >>> model = load("tiny-gpt2")
        >>> model.cfg.n_layers, model.cfg.d_model
        (6, 192)
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(f"a model is a name or a path, found {type(name_or_path).__name__}; give a string")
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype, dtype)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating-point type such as 'bfloat16' or torch.bfloat16, found {dtype!r}")
    if backend is not None:
        check_choice("backend", backend, get_args(Backend))
    name = str(name_or_path)
    device = find_device(device)
    directory = model_directory(name)
    if directory is None:
        source, revision = _on_hub(name, revision, checkpoint)
    elif revision is None and checkpoint is None:
        source = str(directory)
    else:
        raise ValueError(f"{name} is a local directory: revision and checkpoint are for hub names; leave them out")
    with quiet():
        model = _loaded(name, source, revision, backend)
    if directory is None and (cached := place(source, revision)):
        revision = cached.name
    view(model).to(dtype or torch.float32, device)
    model.eval()
    set_origin(model, Origin(printable(name), revision, directory))
    return model


def _loaded(name: str, source: str, revision: str | None, backend: Backend | None) -> Model:
    """A checked model, of the first backend that can have it."""
    config = read_config(source, revision)
    why_not_hooked = why_not_converted(source, config)
    if why_not_hooked and backend == "hooked":
        raise ValueError(why_not_hooked)
    if backend == "bridge" or why_not_hooked:
        return _checked(name, *read(source, revision, config, "bridge"), _bridged)
    try:
        return _checked(name, *read(source, revision, config, "hooked"), _hooked)
    except WronglyConverted:
        if backend == "hooked":
            raise
    return _checked(name, *read(source, revision, config, "bridge"), _bridged)


class WronglyConverted(ValueError):
    """TransformerLens cannot convert a model as it is configured."""


def untrained(model: Model, *, seed: int = 0) -> Model:
    """A copy of a model as it might have been before training: the control for what the architecture alone can do.

    Matrices are drawn from N(0, .02²), as GPT-2's and BERT's first weights are; biases are 0, the scales of norms 1.
    One seed gives other matrices to a hooked model than to a bridge, whose parameters have other names.

    Raises TypeError for what is no model, ValueError for a seed outside 0 … 2**63 − 1.

    Examples:
        >>> fresh = untrained(load("tiny-gpt2"))
        >>> bool(fresh.ln_final.b.any())
        False
    """
    check_model(model)
    seed = check_seed(seed)
    fresh = view(model).copied()
    fresh.reset_hooks()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(fresh.named_parameters()):
            drawn = _FIRST_SD * torch.randn(parameter.shape, generator=generator)
            first = view(fresh).first_value(name)
            parameter.copy_({"ones": torch.ones(()), "zeros": torch.zeros(()), "drawn": drawn}[first])
    set_origin(fresh, Origin(f"{origin(model).name} untrained", None, None))
    return fresh


def _on_hub(name: str, revision: str | None, checkpoint: int | None) -> tuple[str, str | None]:
    """The hub's own name of a model, and the revision of a checkpoint."""
    from transformer_lens.supported_models import MODEL_ALIASES

    aliases = {alias.lower(): official for official, names in MODEL_ALIASES.items() for alias in names}
    source = aliases.get(name.lower(), name)
    if checkpoint is None:
        return source, revision
    if revision is not None:
        raise ValueError(f"both revision={revision!r} and checkpoint={checkpoint} were given; give one of them")
    if source.startswith("stanford-crfm/"):
        return source, f"checkpoint-{checkpoint}"
    if "pythia" in source:
        return source, f"step{checkpoint}"
    raise ValueError(f"{source} has no numbered checkpoints known here; give the hub branch as revision=")


@contextmanager
def quiet() -> Iterator[None]:
    """Loading without the libraries' chatter; what matters is checked and raised."""
    levels = {logger: logger.level for logger in (logging.getLogger(), logging.getLogger("transformers"))}
    progress_bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            for logger in levels:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        if progress_bars:
            transformers.utils.logging.enable_progress_bar()


@torch.no_grad()
def _checked(
    name: str, hf_model: Any, tokenizer: Any, config: Any, make: Callable[[Any, Any, Any, str], Model]
) -> Model:
    """A model of TransformerLens from one of transformers, with the same log-softmax on random tokens, for an encoder
    on padded rows too."""
    length = min(context_of(config) or 64, 64)
    tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    if config.model_type in MASKED:
        mask[1, length // 2 :] = 0
    batch = Tokens(tokens, mask, tokens, mask) if config.is_encoder_decoder else Tokens(tokens, mask)
    decoder = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
    output = hf_model(tokens, attention_mask=mask, **decoder)
    expected = (output.logits if "logits" in output else output.prediction_logits).log_softmax(-1)
    with tempfile.TemporaryDirectory(prefix="model-") as neutral:
        try:
            model = make(hf_model, tokenizer, config, neutral)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            what = f"{name} cannot be converted by TransformerLens as it is configured"
            raise WronglyConverted(f"{what}: {reason}") from error
    del hf_model
    found = view(model).run(batch, None).log_softmax(-1)
    apart = (found - expected)[mask.bool()].abs().max().item()
    if not apart < PARITY_TOLERANCE:
        what = f"log-probabilities differ from transformers by {apart:.1e} (allowed {PARITY_TOLERANCE:.0e})"
        how = "TransformerLens does not support this model as it is configured"
        raise WronglyConverted(f"{name} was converted wrongly: {what}; {how}")
    for verify in (verify_head, verify_scores, verify_neurons, verify_values):
        with suppress(ValueError):  # said where it is asked for
            verify(model)
    return model


def _hooked(hf_model: Any, tokenizer: Any, config: Any, neutral: str) -> Model:
    """A `HookedTransformer` or `HookedEncoder` with the weights of a transformers model, nothing folded or centred.

    TransformerLens reads the config and the tokenizer again by their name (without its revision), so both go to a
    directory of their own.
    """
    from transformer_lens import HookedEncoder, HookedTransformer, loading_from_pretrained as tl_loading

    config.architectures = [HOOKED[config.model_type]]
    if config.model_type == "gpt2":
        config.n_ctx = config.n_positions
    config.save_pretrained(neutral)
    tl_config = tl_loading.get_pretrained_model_config(_Path(neutral), hf_cfg=config.to_dict(), device="cpu")
    state = tl_loading.get_pretrained_state_dict(neutral, tl_config, hf_model=hf_model)
    if (positions := context_of(config)) is not None:
        tl_config.n_ctx = min(tl_config.n_ctx, positions)  # of Mistral it assumes 2,048
    tl_config.tokenizer_name = None
    tl_config.model_name = config.model_type
    if config.model_type == "bert":
        encoder = HookedEncoder(tl_config, tokenizer, move_to_device=False)
        encoder.load_state_dict(state, strict=False)
        _lay_out(encoder)
        return encoder
    tokenizer = _read_again(tokenizer, neutral)
    model = HookedTransformer(tl_config, tokenizer, default_padding_side="right" if tokenizer else None)
    if model.tokenizer is not None:
        model.tokenizer.name_or_path = config.model_type  # in which TransformerLens looks for "gemma", too
    model.load_and_process_state_dict(
        state, fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    _lay_out(model)
    return model


def _bridged(hf_model: Any, tokenizer: Any, config: Any, neutral: str) -> Model:
    """A `TransformerBridge` around a transformers model, which is changed in place."""
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
    from transformer_lens.model_bridge import TransformerBridge

    if (kind := type(hf_model).__name__) not in SUPPORTED_ARCHITECTURES:
        raise ValueError(f"TransformerLens {version('transformer-lens')} has no adapter for {kind}")
    config.architectures = hf_model.config.architectures = [kind]
    config.save_pretrained(neutral)
    hf_model.set_attn_implementation("eager")  # what shows its attention
    read_again = _read_again(tokenizer or _stand_in(), neutral)
    model = TransformerBridge.boot_transformers(neutral, hf_model=hf_model, tokenizer=read_again, device="cpu")
    model.cfg.model_name = config.model_type
    model.cfg.n_ctx = context_of(config) or model.cfg.n_ctx
    if tokenizer is None or config.model_type in MASKED | SEQ2SEQ:
        model.tokenizer = tokenizer
    else:
        model.tokenizer.padding_side = "right"
        model.tokenizer.name_or_path = config.model_type
    return model


def _read_again(tokenizer: Any, directory: str) -> Any:
    """A tokenizer from a directory of its own, where TransformerLens finds its files."""
    if tokenizer is None:
        return None
    tokenizer.save_pretrained(directory)
    return transformers.AutoTokenizer.from_pretrained(directory)


def _stand_in() -> Any:
    """A tokenizer for the bridge of a model that has none, which it would look for on the hub."""
    vocabulary = {"<|endoftext|>": 0, "a": 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


class _Path(str):
    """A path in which TransformerLens does not look for the names of models ("llama", "gemma"), of which any folder
    may have one in its name."""

    def lower(self) -> str:
        return ""

    def __contains__(self, part: object) -> bool:
        return False


def _lay_out(model: Model) -> None:
    """Store each matrix in the memory order in which TransformerLens multiplies it, so no call copies it.

    Shapes and values stay as they are; only the strides change. And GPT-2's GELU, which TransformerLens writes out in
    eight operations, becomes torch's own of the same formula.
    """
    from transformer_lens.utilities.activation_functions import gelu_new

    model.unembed.W_U.data = model.W_U.data.mT.contiguous().mT
    for block in model.blocks:
        if getattr(getattr(block, "mlp", None), "act_fn", None) is gelu_new:
            block.mlp.act_fn = partial(torch.nn.functional.gelu, approximate="tanh")
        for name, parameter in block.named_parameters():
            if name.endswith(("W_Q", "W_K", "W_V")) or (model.cfg.gated_mlp and name.startswith("mlp.W_")):
                parameter.data = parameter.data.mT.contiguous().mT
            elif name.endswith("W_O"):
                laid_out = rearrange(parameter.data, "head d_head d_model -> d_model head d_head").contiguous()
                parameter.data = rearrange(laid_out, "d_model head d_head -> head d_head d_model")

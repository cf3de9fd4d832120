"""Loading models with raw weights, checked against transformers."""

import copy
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers
from einops import rearrange

from interp.checks import check_seed
from interp.models.identity import Origin, origin, set_origin
from interp.models.pretrained import ARCHITECTURES, place, read
from interp.models.running import find_device, running
from interp.models.sites import Model, check_model, is_encoder
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
) -> Model:
    """Load a language model with raw (unfolded, uncentred) weights and check it against transformers.

    Causal models come as `HookedTransformer`, BERT as `HookedEncoder`. Weights are read from safetensors only,
    no pickle is opened and no remote code is run. The conversion is checked in float32: the largest difference
    of log-softmax from the transformers model on random tokens (padded too for BERT) must stay below 1e-4.
    Matrices are laid out in memory so that TransformerLens does not copy them at each call. Both models are in
    memory during the check.

    Args:
        name_or_path: a bundled model (`interp.paths.bundled_models()`), a local Hugging Face directory, a hub name
            (`"EleutherAI/pythia-70m"`) or one of TransformerLens' short names (`"gpt2-medium"`, `"pythia-70m"`).
        device: where to put it; CUDA if there is one, else the CPU.
        dtype: of the returned model, as torch has it or by its name; float32.
        revision: a branch, tag or commit of a hub repository.
        checkpoint: a training step of a model that has them (Pythia: revision `step{checkpoint}`; the Stanford
            CRFM GPT-2s: `checkpoint-{checkpoint}`).

    Raises:
        FileNotFoundError: no such directory, no config.json or no safetensors weights in it.
        ValueError: unsupported architecture, option or device, incomplete or non-finite weights, a failed parity
            check.

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
        hf_model, tokenizer, config = read(source, revision)
        try:
            model = _convert(hf_model, tokenizer, config)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise ValueError(f"{name} cannot be converted by TransformerLens as it is configured: {reason}") from error
        _check_parity(model, hf_model, name)
    if directory is None and (cached := place(source, revision)):
        revision = cached.name
    del hf_model
    _lay_out(model)
    model.to(dtype or torch.float32, print_details=False)
    model.to(device, print_details=False)
    model.cfg.device = str(model.W_U.device)  # TransformerLens forgets which GPU, and moves activations to the first
    model.eval()
    set_origin(model, Origin(printable(name), revision, directory))
    return model


def untrained(model: Model, *, seed: int = 0) -> Model:
    """A copy of a model as it might have been before training: the control for what the architecture alone can do.

    Matrices are drawn from N(0, .02²), as GPT-2's and BERT's first weights are; biases are 0, the scales of norms 1.

    Raises TypeError for what is no model, ValueError for a seed outside 0 … 2**63 − 1.

    Examples:
        >>> fresh = untrained(load("tiny-gpt2"))
        >>> bool(fresh.ln_final.b.any())
        False
    """
    check_model(model)
    seed = check_seed(seed)
    fresh = copy.deepcopy(model)
    fresh.reset_hooks()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(fresh.named_parameters()):
            leaf = name.rpartition(".")[2].lstrip("_")
            drawn = _FIRST_SD * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.ones(()) if leaf == "w" else torch.zeros(()) if leaf.startswith("b") else drawn)
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


def _convert(hf_model: Any, tokenizer: Any, config: Any) -> Model:
    """The TransformerLens model with the weights of a transformers model, nothing folded or centred.

    TransformerLens reads the config and the tokenizer again by their name (without its revision), so both go to a
    directory of their own.
    """
    from transformer_lens import HookedEncoder, HookedTransformer, loading_from_pretrained as tl_loading

    config.architectures = [ARCHITECTURES[config.model_type]]
    if config.model_type == "gpt2":
        config.n_ctx = config.n_positions
    with tempfile.TemporaryDirectory(prefix="model-") as neutral:
        config.save_pretrained(neutral)
        tl_config = tl_loading.get_pretrained_model_config(_Path(neutral), hf_cfg=config.to_dict(), device="cpu")
        state = tl_loading.get_pretrained_state_dict(neutral, tl_config, hf_model=hf_model)
        if (positions := getattr(config, "max_position_embeddings", None)) is not None:
            tl_config.n_ctx = min(tl_config.n_ctx, positions)  # of Mistral it assumes 2,048
        tl_config.tokenizer_name = None
        tl_config.model_name = config.model_type
        if config.model_type == "bert":
            encoder = HookedEncoder(tl_config, tokenizer, move_to_device=False)
            encoder.load_state_dict(state, strict=False)
            return encoder
        if tokenizer is not None:
            tokenizer.save_pretrained(neutral)
            tokenizer = transformers.AutoTokenizer.from_pretrained(neutral)
        model = HookedTransformer(tl_config, tokenizer, default_padding_side="right" if tokenizer else None)
    if model.tokenizer is not None:
        model.tokenizer.name_or_path = config.model_type  # in which TransformerLens looks for "gemma", too
    model.load_and_process_state_dict(
        state, fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    return model


class _Path(str):
    """A path in which TransformerLens does not look for the names of models ("llama", "gemma"), of which any folder
    may have one in its name."""

    def lower(self) -> str:
        return ""

    def __contains__(self, part: object) -> bool:
        return False


@torch.no_grad()
def _check_parity(model: Model, hf_model: Any, name: str) -> None:
    """Compare log-softmax with transformers on random tokens; for BERT on padded rows too."""
    length = min(model.cfg.n_ctx, 64)
    tokens = torch.randint(model.cfg.d_vocab, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    name_of_mask, name_of_logits = "attention_mask", "logits"
    if is_encoder(model):
        mask[1, length // 2 :] = 0
        name_of_mask, name_of_logits = "one_zero_attention_mask", "prediction_logits"
    with running(model):
        ours = model(tokens, **{name_of_mask: mask})
    theirs = getattr(hf_model(tokens, attention_mask=mask), name_of_logits)
    error = (ours.log_softmax(-1) - theirs.log_softmax(-1))[mask.bool()].abs().max().item()
    if not error < PARITY_TOLERANCE:
        what = f"log-probabilities differ from transformers by {error:.1e} (allowed {PARITY_TOLERANCE:.0e})"
        how = "TransformerLens does not support this model as it is configured"
        raise ValueError(f"{name} was converted wrongly: {what}; {how}")


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

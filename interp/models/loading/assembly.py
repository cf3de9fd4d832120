"""Builds a TransformerLens model from transformers' weights one block at a time, checking each against transformers.

Weights stay mapped in their files until it is their block's turn. Then transformers' block and TransformerLens' block
run in float32 on the same input. If they agree, the block gets its own memory, in the requested type and on the
requested device. So memory never holds more than the model itself and one block in float32.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interp.models.beginning import remember_beginning
from interp.models.loading.drafts import Bridged, Draft, Hooked
from interp.models.loading.mapped import MappedFiles
from interp.models.loading.pretrained import MASKED, Stored, check_finite, context_of, headless, set_buffers
from interp.models.loading.spread import DeviceMap, Placement, placed
from interp.models.loading.streaming import blocks_of, sampled, streamed, wide_type
from interp.models.sites import Model, view
from interp.models.verify import verify_all
from interp.models.views import Tokens

__all__ = ["PARITY_TOLERANCE", "WronglyConverted", "assembled", "output", "trial"]
__dir__ = __all__.copy

PARITY_TOLERANCE = 1e-4
"""The largest difference of log-probabilities from transformers that is accepted in float32."""

_SIZES: dict[str, Callable[[Tensor], float]] = {
    "at most": lambda differences: float(differences.abs().max()),
    "a root mean square of": lambda differences: float(differences.square().mean().sqrt()),
}
_OF_HALF = {torch.float16: (0.25, 0.03), torch.bfloat16: (1.0, 0.25)}
_ROUNDINGS = 3.0
"""In a less precise type, the accepted differences from transformers in that type are the smaller of two numbers, for
each of `_SIZES`: those above, and this multiple of what transformers' own differences from float32 are.

Right conversions reach 0.40 nats and a root mean square of 0.05 in bfloat16 (0.09 and 0.01 in float16), and 1.9 times
transformers' own differences. These alone are no bound on wrong numbers: 1.6 nats for SmolLM2-135M in bfloat16, and
4.0 nats for a mixture of experts in which rounding changes the choice of experts."""
_OF_BLOCK = 1e-4, 5e-4
"""The largest accepted errors of a block in float32, relative to what the block adds: at the positions of a short row
and at the last position of a long one. Between them it grows evenly, as the rounding of rotations does."""
_LENGTH, _LONG = 32, 512
_UNSUPPORTED = "TransformerLens does not support this model as it is configured"


class WronglyConverted(ValueError):
    """TransformerLens cannot convert a model as it is configured."""


@torch.no_grad()
def assembled(
    name: str, stored: Stored, dtype: torch.dtype, where: torch.device | DeviceMap
) -> tuple[Model, dict[str, float]]:
    """Make a model in the requested type and on the requested devices, checked block by block and then end to end; and
    the largest difference from transformers, by what differs.

    Raises WronglyConverted if it differs from transformers, and the errors of `Stored.checked`.
    """
    source = stored.checked()
    buffers = source.named_buffers(remove_duplicate=False)
    set_buffers(source, {name: buffer.clone() for name, buffer in buffers})  # some bridges write to them
    tokenizer = stored.tokenizer()
    batch = trial(stored.config, _LENGTH)
    rounded = _in_type(stored, dtype, batch) if dtype.itemsize < torch.float32.itemsize else None
    if (wide := wide_type(source)) != source.dtype:
        set_buffers(source, stored.buffers(wide))
    with tempfile.TemporaryDirectory(prefix="model-") as neutral:
        make = Hooked if stored.backend == "hooked" else Bridged
        try:
            draft: Draft = make(source, tokenizer, stored.config, neutral)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            label = f"{name} cannot be converted by TransformerLens as it is configured"
            raise WronglyConverted(f"{label}: {reason}") from error
        del source
        placement = placed(draft.reference, where, dtype)
        assembly = _Assembly(name, stored, draft, dtype, placement)
        assembly.check_positions(trial(stored.config, _LONG))
        expected = assembly.run(batch)
    model = draft.model
    remember_beginning(model.tokenizer, tokenizer, stored.source)
    del assembly, draft  # together with what was read from the files
    placement.finish(model, dtype, stored.buffers(dtype) if stored.backend == "bridge" else {})
    has_head = view(model).why_no_head is None
    real = batch.mask.bool()
    try:
        outputs = view(model).run(batch.to(model.W_U.device), None if has_head else model.cfg.n_layers).float().cpu()
    except (RuntimeError, ValueError) as error:
        raise WronglyConverted(f"{name} cannot run in TransformerLens: {error}") from error
    outputs = outputs.log_softmax(-1) if has_head else outputs
    label = "log-probabilities" if has_head else "the last hidden states"
    difference = _check_parity(
        name, label, outputs[real], expected[real], None if rounded is None else rounded[real], dtype
    )
    verify_all(model)
    return model, {label: difference}


def _check_parity(
    name: str, label: str, outputs: Tensor, exact: Tensor, rounded: Tensor | None, dtype: torch.dtype
) -> float:
    """The largest difference of outputs (`label`) from those of transformers in float32, or in a less precise type from
    those of transformers in that type (`rounded`). Raises WronglyConverted if it is too large."""
    reference = exact if rounded is None else rounded
    for number, (measure, size) in enumerate(_SIZES.items()):
        difference = size(outputs - reference)
        allowed = PARITY_TOLERANCE
        if rounded is not None:
            allowed = min(_OF_HALF[dtype][number], max(torch.finfo(dtype).eps, _ROUNDINGS * size(reference - exact)))
        if not difference < allowed:
            label = f"{label} differ from transformers by {measure} {difference:.1e} (allowed {allowed:.0e})"
            raise WronglyConverted(f"{name} was converted wrongly: {label}; {_UNSUPPORTED}")
    return float((outputs - reference).abs().max())


def _in_type(stored: Stored, dtype: torch.dtype, batch: Tokens) -> Tensor:
    """What transformers' own model gives in a type (see `output`)."""
    model = stored.mapped()
    set_buffers(model, stored.buffers(dtype))
    files = MappedFiles(model, stored.files)
    with streamed(model, dtype, lambda block: files.release()):
        return output(model, stored.config, batch)


def _read(model: Any, batch: Tokens) -> Any:
    """The output of a transformers model for a batch."""
    batch = batch.to(model.device)
    inputs = {"decoder_input_ids": batch.tokens} if model.config.is_encoder_decoder else {}
    return model(batch.tokens, attention_mask=batch.mask, use_cache=False, **inputs)


def output(model: Any, config: Any, batch: Tokens) -> Tensor:
    """Compute the log-probabilities that a transformers model gives, or its last hidden states if it has no head."""
    if headless(config):
        hidden: Tensor = _read(model.base_model, batch).last_hidden_state
        return hidden.float().cpu()
    outputs = _read(model, batch)
    logits: Tensor = outputs.logits if "logits" in outputs else outputs.prediction_logits
    return logits.float().cpu().log_softmax(-1)


def trial(config: Any, length: int) -> Tokens:
    """Draw a row of random tokens to compare models on, as far as the context reaches; for BERT also one that is
    padded."""
    length = min(context_of(config) or length, length)
    rows = 1 + (config.model_type in MASKED)
    tokens = torch.randint(config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    if config.model_type in MASKED:
        mask[1:, length // 2 :] = 0
    return Tokens(tokens, mask, tokens, mask) if config.is_encoder_decoder else Tokens(tokens, mask)


class _Assembly:
    """A forward pass of transformers' model in float32, during which the blocks of a draft are checked and settled."""

    def __init__(self, name: str, stored: Stored, draft: Draft, dtype: torch.dtype, placement: Placement) -> None:
        self.name = name
        self.stored = stored
        self.draft = draft
        self.where = (dtype, placement)
        self.blocks = blocks_of(draft.reference)
        self.files = MappedFiles(draft.reference, stored.files)

    def check_positions(self, batch: Tokens) -> None:
        """Check one block of each kind (window, rotation, mask) on long rows, as it is and with its patterns read; and
        for a bridge also the settings from which its model makes masks and rotations."""
        reference, wrapped = self.draft.reference, view(self.draft.model).wrapped
        if wrapped is not None:
            settings = wrapped.config.to_dict()
            expected = reference.config.to_dict()
            for name, value in expected.items():
                if repr(settings.get(name)) != repr(value):
                    problem = f"it has another {name} than in transformers"
                    raise WronglyConverted(f"{self.name} was converted wrongly: {problem}; {_UNSUPPORTED}")
        watch = partial(self.compare, batch, [nullcontext, self.draft.read_patterns])
        with sampled(reference, wide_type(reference), watch):
            _read(reference.base_model, batch)

    def run(self, batch: Tokens) -> Tensor:
        """Compute the output of transformers' model, in float32."""
        draft = self.draft
        watch = partial(self.compare, batch, [nullcontext])
        with streamed(draft.reference, wide_type(draft.reference), self.settle, watch):
            expected = output(draft.reference, self.stored.config, batch)
        in_blocks = tuple(f"{block}." for block in self.blocks)
        for name, parameter in draft.reference.named_parameters():
            if not name.startswith(in_blocks):
                check_finite(self.stored.source, name, parameter)
        for part in draft.parts:
            self.settle(part)
        return expected

    def compare(
        self,
        batch: Tokens,
        ways: Sequence[Callable[[], AbstractContextManager[None]]],
        block: str,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        expected: Tensor,
    ) -> None:
        """Check a block, in each of several contexts, on the input that transformers' block was given."""
        for name, parameter in self.blocks[block].named_parameters():
            check_finite(self.stored.source, f"{block}.{name}", parameter)
        try:
            outputs = []
            for way in ways:
                with way():
                    outputs.append(self.draft.output(block, batch, arguments, named))
        except Exception as error:
            raise WronglyConverted(f"{self.name}: {block} cannot run in TransformerLens: {error}") from error
        x = arguments[0] if arguments else named["hidden_states"]
        size = (expected - x).norm(dim=-1) + 0.01 * expected.norm(dim=-1)
        errors = ((torch.stack(outputs) - expected).norm(dim=-1) / size).cpu()
        first, last = _OF_BLOCK
        beyond = (torch.arange(errors.shape[-1]) - _LENGTH).clamp(min=0) / (_LONG - _LENGTH)
        allowed = (first + (last - first) * beyond).expand_as(errors)[:, batch.mask.bool()].flatten()
        errors = errors[:, batch.mask.bool()].flatten()
        worst = int((errors / allowed).argmax())  # the first NaN if there is one
        if not errors[worst] < allowed[worst]:
            positions = batch.mask.nonzero()[:, 1]
            problem = f"{block} differs from transformers by {errors[worst]:.1e} of what it adds"
            problem += f" at position {positions[worst % len(positions)]} (allowed {allowed[worst]:.0e})"
            raise WronglyConverted(f"{self.name} was converted wrongly: {problem}; {_UNSUPPORTED}")

    def settle(self, part: str) -> None:
        """Give a part its final weights, and release what was read from the files."""
        self.draft.settle(part, *self.where)
        self.files.release()

"""Batches for a model: text → rows of token ids → batches, in constant memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
import xxhash
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from interp.corpora.frames import frame, left_out_bos, settled_bos, tokenizer_of
from interp.corpora.sentences import (
    Cut,
    Row,
    marked,
    masked_positions,
    numbered,
    packed_rows,
    padded,
    text_rows,
    together,
)
from interp.corpora.sources import Corpus, Source, load
from interp.corpora.tokens import Counted, tokens_of, unknown_id
from interp.corpora.unigrams import tokenizer_hash
from interp.models.footprint import TOKENS_PER_ROW, default_rows, room_for_batches, weights_of, widths
from interp.models.sites import Model, check_model, is_encoder
from interp.support.checks import check_choice, check_mask_rate, check_seed, check_token_ids, refuse, whole_number
from interp.support.choices import Bos, Layout
from interp.support.words import argument

__all__ = ["MASK_RATE", "Batch", "Batches", "Text", "as_batches", "batches", "check_batches", "check_ids"]
__all__ += ["predicted_batches", "sample_positions"]
__dir__ = __all__.copy

_WINDOW = 1_000
MASK_RATE = 0.12
"""The share of tokens that an encoder reads as `[MASK]`, as in Kobayashi et al. 2023."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs that a model reads at once, and the positions that are evaluated.

    `tokens` are the inputs. `mask` is 1 for real tokens and 0 for (right) padding. `read` marks the positions whose
    predictions count, and `targets` has the true token for each prediction, or −1 where there is none. `n_texts` is the
    number of texts that end in this batch (for progress bars). `source` and `source_mask` are read by the encoder of an
    encoder-decoder, whose decoder then reads `tokens`. `stretches` says which stretch of the corpus each row belongs to
    (see `interp.passes.groups`); without it there are no intervals. `rows` are the numbers of the rows in the corpus;
    without them no token can be shown in its context.
    """

    tokens: Int[Tensor, "batch pos"]
    mask: Int[Tensor, "batch pos"]
    read: Bool[Tensor, "batch pos"]
    targets: Int[Tensor, "batch pos"]
    n_texts: int = 0
    source: Int[Tensor, "batch source"] | None = None
    source_mask: Int[Tensor, "batch source"] | None = None
    stretches: Int[Tensor, " batch"] | None = None
    rows: Int[Tensor, " batch"] | None = None
    shared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Values that the observers of a batch compute once and share."""

    @classmethod
    def of(cls, rows: Iterable[Any], pad_id: int = 0, *, n_texts: int = 0) -> "Batch":
        """Make a batch of rows of token ids, padded on the right. Every token is read, and its target is the next token
        of its row."""
        tokens, mask = padded(rows, pad_id)
        follows = torch.nn.functional.pad(mask[:, 1:], (0, 1)).bool()
        return cls(tokens, mask, mask.bool(), tokens.roll(-1, 1).where(follows, -1), n_texts)

    def masked(self, chosen: Bool[Tensor, "batch pos"], mask_id: int | None) -> "Batch":
        """Return the same rows with some tokens masked. Only these are read, and each is its own target."""
        tokens = self.tokens if mask_id is None else self.tokens.masked_fill(chosen, mask_id)
        return replace(self, tokens=tokens, read=chosen, targets=self.tokens.where(chosen, -1))

    @cached_property
    def padded(self) -> bool:
        return not bool(self.mask.all())

    @cached_property
    def reads_all(self) -> bool:
        return bool(self.read.all())

    @cached_property
    def n_read(self) -> int:
        return int(self.read.sum())

    @property
    def read_targets(self) -> Int[Tensor, " n_read"]:
        return self.targets[self.read]

    def select(self, activation: Shaped[Tensor, "batch pos *rest"]) -> Shaped[Tensor, "n_read *rest"]:
        """Return an activation `[batch, pos, …]` at the positions that are read: `[n_read, …]`.

        Inside `observe`, the prediction head may see only those positions, as `[1, n_read, …]`. This is accepted too.
        """
        if activation.shape[:2] == self.read.shape:
            return activation.flatten(0, 1) if self.reads_all else activation[self.read]
        if activation.shape[:2] == (1, self.n_read):
            return activation[0]
        shape = tuple(self.read.shape)
        raise ValueError(f"expected an activation [batch, pos, …] = {shape}, found {tuple(activation.shape)}")

    def part(self, rows: slice | Int[Tensor, " row"]) -> "Batch":
        """Return some rows of the batch."""
        names = ("tokens", "mask", "read", "targets", "source", "source_mask", "stretches", "rows")
        return self._changed(names, lambda tensor: tensor[rows])

    def to(self, device: torch.device) -> "Batch":
        names = ("tokens", "mask", "read", "targets", "source", "source_mask")
        return self._changed(names, lambda tensor: tensor.to(device))

    def _changed(self, names: Sequence[str], change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {}
        for name in names:
            tensor = getattr(self, name)
            if tensor is not None:
                changed[name] = change(tensor)
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Batches:
    """A stream of batches, made by `batches`, that can be read again and gives the same batches each time.

    `settings` has everything that decides which tokens are read at which positions. It becomes part of the provenance,
    and a checkpoint with other settings is refused.
    """

    settings: dict[str, Any]
    n_texts: int | None
    read: Callable[[], Iterator[Batch]] = field(repr=False)
    corpus: Corpus | None = None
    tokenizer: Any = field(default=None, repr=False)
    counted: Callable[[], Counted] = field(default=Counted, repr=False)
    rows: Callable[[], Iterator[Row]] | None = field(default=None, repr=False)
    """The rows of the corpus in order, whatever batches they are read in; None if unknown."""
    left_out_bos: int | None = None
    """The id of the BOS that the tokenizer has and that `bos="auto"` left out."""
    seen: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a pass has found out about the text, for the provenance."""

    @property
    def about(self) -> dict[str, Any]:
        """The settings; what was read of the source; as `unknown_share`, the share of the text's tokens that the
        tokenizer does not know; as `special_tokens`, how often each special token is written out in it; and what was
        seen, such as the `tokens_left_out` that did not fill a last row and the share of `repeated_texts`. If the text
        has not been read to its end, this reads it."""
        counted = self.counted()
        entries = dict(self.settings)
        if self.corpus is not None:
            entries.update(self.corpus.about)
            if self.rows is not None and "repeated_texts" not in self.seen:
                deque(self.rows(), maxlen=0)  # whoever merges parts of a run has not read the text
        entries["unknown_share"] = counted.share
        if counted.special:
            entries["special_tokens"] = dict(counted.special)
        entries.update(self.seen)
        return entries

    def __iter__(self) -> Iterator[Batch]:
        return self.read()


Text: TypeAlias = Source | Batches | Int[Tensor, "rows pos"]
"""What every analysis reads: anything that `batches` takes, or batches that it made."""


def batches(
    model: Model,
    corpus: Source | Int[Tensor, "rows pos"],
    *,
    column: str | None = None,
    limit: int | None = None,
    separator: str = "",
    layout: Layout | None = None,
    context: int | None = None,
    batch_size: int | None = None,
    bos: Bos = "auto",
    eos: bool = False,
    mask_rate: float | int | None = None,
    seed: int = 0,
) -> Batches:
    """Cut a corpus into batches for a model.

    `"packed"` joins all texts into one stream and cuts it into full rows of `context` tokens; an incomplete last row is
    left out. `"texts"` puts one text per row, padded on the right, and continues a text that is longer than a row in
    the next row. Rows are sorted by length within windows of 1,000. Every row of an encoder is `[CLS] … [SEP]`. For
    causal models each real position is read, and its target is the next token of the row. Two predictions are not
    read: at a beginning-of-sequence token that stands in the middle of a text, because a row begins there, and in
    `"texts"` at the last position of a text, after which none of its tokens comes. For encoders with a `mask_rate`, the
    masked positions are read.

    Args:
        corpus: anything `load` takes, or token ids `[rows, pos]`, which are read as they are and must not contain
            padding.
        column: the field or column of the texts; see `load`, also for the next two.
        limit: read only the first texts.
        separator: a string put after each text.
        layout: `"packed"` or `"texts"`. Default: `"packed"` for causal models and `"texts"` for encoders.
        context: tokens per row, at most the model's context. Default: the model's context, but at most 1,024.
        batch_size: rows per batch. Default: as many as have at most 4,096 tokens, padding included, and 2²⁶ logits
            (but one full row at least), or fewer if their forward pass does not fit in half of the machine's memory
            after subtracting the weights.
        bos: where a causal model reads a beginning-of-sequence token: at the start of each row (`"rows"`), before each
            text (`"texts"`), both (True) or nowhere (False). `"auto"` is `"rows"` if the tokenizer itself puts one
            before a text, as those of Llama and Gemma do, `"texts"` if tools/train.py trained the model in this way,
            and else False. A text that begins with the token already is not given another one.
        eos: put the end-of-sequence token after each text (causal models).
        mask_rate: the share of an encoder's tokens to replace by `[MASK]`, each drawn independently (Kobayashi et
            al. 2023 replace 12 %, all of them by `[MASK]`). None masks nothing.
        seed: the seed for masking. What is masked depends on the row, not on the batch size.

    Raises:
        ValueError: settings are impossible; `column`, `limit` or `separator` are given with token ids; all token ids
            are unknown; or, while reading, the corpus is shorter than one row or the tokenizer knows none of its
            tokens.

    Warns if more than 5 % of the tokens are unknown, and of special tokens that are written out in the text.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> text = batches(toy_decoder(), ["w1 w2 w3"] * 20, context=12)
        >>> [tuple(batch.tokens.shape) for batch in text]
        [(5, 12)]
    """
    check_model(model)
    encoder = is_encoder(model)
    token_ids = corpus if isinstance(corpus, Tensor) else None
    if token_ids is not None:
        of_texts = column is not None or limit is not None or bool(separator)
        _check_ids_settings(token_ids, context, bos not in (False, "auto") or eos, of_texts)
        context = token_ids.shape[1]
    context = min(model.cfg.n_ctx, TOKENS_PER_ROW) if context is None else context
    layout = layout or ("texts" if encoder else "packed")
    _check_settings(model, layout, context, batch_size, bos, eos, mask_rate)
    device = model.W_U.device
    special_ids = {name: getattr(model.tokenizer, f"{name}_token_id", None) for name in ("pad", "cls", "sep", "mask")}
    pad_id = special_ids["pad"] if special_ids["pad"] is not None and special_ids["pad"] < model.cfg.d_vocab else 0
    special = [token_id for token_id in special_ids.values() if token_id is not None]

    settings: dict[str, Any] = {
        "layout": layout, "context": int(context), "batch_size": batch_size,
        "tokens_per_batch": _most_tokens(model, context) if batch_size is None else None,
        "bos": False if token_ids is not None else settled_bos(model, bos), "eos": eos,
        "mask_rate": mask_rate and float(mask_rate), "seed": check_seed(seed),
    }  # fmt: skip
    if token_ids is not None:
        stream = _rows_of_ids(model, token_ids)
    else:
        source = load(corpus, column=column, limit=limit, separator=separator)
        stream = _rows_of_text(model, source, layout, context, bos=bos, eos=eos)
    settings.update(stream.settings)

    def read() -> Iterator[Batch]:
        empty = True
        rows = _by_length(stream.rows()) if layout == "texts" else stream.rows()
        for group in _grouped(rows, batch_size, settings["tokens_per_batch"]):
            empty = False
            batch = _batch_of(group, pad_id, layout)
            if encoder:
                rate = mask_rate or 0.0
                batch = batch.masked(masked_positions(group, rate, special, seed), special_ids["mask"])
            check_token_ids(int(batch.tokens.max()), model.cfg.d_vocab, f"{settings['corpus']} has")
            yield batch.to(device)
        if empty:
            shorter = f"shorter rows ({argument('context')}) or one text per row ({argument('layout', 'texts')})"
            too_short = f"shorter than one row of {context:,} tokens; give more text, {shorter}"
            raise ValueError(f"the corpus is {too_short if layout == 'packed' else 'empty: no text in it has a token'}")

    return Batches(settings, read=read, rows=stream.rows, **stream.of_whom)


def _most_tokens(model: Model, context: int) -> int:
    """How many tokens a batch has at most, padding included."""
    room = room_for_batches(weights_of(model))
    return context * default_rows(widths(model), context, itemsize=model.W_U.dtype.itemsize, room=room)


def _batch_of(group: Sequence[Row], pad_id: int, layout: Layout) -> Batch:
    batch = Batch.of([row.ids for row in group], pad_id, n_texts=sum(row.n_texts for row in group))
    batch.read[torch.tensor([row.resumed for row in group]), 0] = False
    if layout == "texts":
        ends = torch.tensor([row.ends_text for row in group])
        batch.read.logical_and_((batch.targets >= 0) | ~ends[:, None])
    stretches, rows = torch.tensor([(row.stretch, row.number) for row in group]).unbind(1)
    return replace(batch, stretches=stretches, rows=rows)


class _Rows(NamedTuple):
    """The rows that batches are made of, and what is known about their source."""

    rows: Callable[[], Iterator[Row]]
    settings: dict[str, Any]
    of_whom: dict[str, Any]


def _rows_of_ids(model: Model, token_ids: Int[Tensor, "rows pos"]) -> _Rows:
    check_ids(model, token_ids)
    ids = token_ids.detach().cpu().numpy().copy()  # the caller may change its own
    counted = Counted(ids.size, int((ids == unknown_id(model.tokenizer)).sum()))
    counted.checked(model.tokenizer, "these token ids")
    fingerprint = xxhash.xxh3_128(ids.tobytes()).hexdigest()
    largest = int(ids.max())
    settings = {"corpus": "tokens", "fingerprint": fingerprint, "largest_id": largest}
    seen: dict[str, Any] = {}

    def rows() -> Iterator[Row]:
        return numbered(Cut(row, [len(row)], is_new=is_new) for row, is_new in marked(ids.tolist(), seen))

    return _Rows(rows, settings, {"n_texts": len(ids), "counted": lambda: counted, "seen": seen})


def _rows_of_text(model: Model, source: Corpus, layout: Layout, context: int, *, bos: Bos, eos: bool) -> _Rows:
    tokens = tokens_of(source, tokenizer_of(model))
    settings = {
        "corpus": source.name, "fingerprint": source.fingerprint, "limit": source.limit,
        "separator": source.separator, "tokenizer": tokenizer_hash(model.tokenizer),
    }  # fmt: skip
    n_texts = source.n_texts if source.limit is None else min(source.limit, source.n_texts or source.limit)
    fields = {"n_texts": n_texts, "corpus": source, "tokenizer": model.tokenizer, "counted": tokens.counted}
    fields["left_out_bos"] = left_out_bos(model, bos)
    around = frame(model, bos, eos)
    seen: dict[str, Any] = {}
    fields["seen"] = seen
    cut = text_rows if layout == "texts" else packed_rows
    return _Rows(lambda: numbered(cut(tokens, context, around, seen)), settings, fields)


def sample_positions(prepared: Batches, share: float | int, *, seed: int = 0) -> Batches:
    """Make the same batches with only a random share of the positions read, for work that is expensive per position.

    The model still sees the whole rows, but its prediction head runs only at the chosen positions.

    Raises ValueError for a share outside 0 … 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie above 0 and be at most 1, found {share}")
    seed = check_seed(seed)

    def read() -> Iterator[Batch]:
        rng = np.random.default_rng(seed)
        for batch in prepared:
            chosen = torch.from_numpy(rng.random(batch.read.shape) < share).to(batch.read.device)
            yield replace(batch, read=batch.read & chosen)

    return replace(prepared, settings=dict(prepared.settings, share=float(share), share_seed=seed), read=read)


def as_batches(model: Model, data: Any, **settings: Any) -> Batches:
    """Return batches as they are, or `batches(model, data, **settings)` for anything else. A setting of None, an empty
    separator and `bos="auto"` are left open.

    Raises ValueError for batches that were made with other settings or for another model, and if settings of texts
    (column, limit, separator) are given with batches.
    """
    check_model(model)
    chosen = {key: value for key, value in settings.items() if value not in (None, "", "auto")}
    if isinstance(data, Batches):
        if of_texts := [key for key in ("column", "limit", "separator") if key in chosen]:
            raise ValueError(f"these batches have their texts; give {', '.join(of_texts)} to interp.corpora.batches")
        if different := {key: value for key, value in chosen.items() if data.settings.get(key) != value}:
            remedy = "set them in interp.corpora.batches"
            raise ValueError(
                f"these batches were made with other settings than those given here ({different}); {remedy}"
            )
        check_batches(model, data)
        return data
    return batches(model, data, **chosen)


def predicted_batches(model: Model, data: Any, **settings: Any) -> Batches:
    """Make batches like `as_batches`, whose positions are predicted: all positions of a causal model, masked positions
    of an encoder.

    Raises ValueError for batches of an encoder that mask nothing.
    """
    if is_encoder(model) and not isinstance(data, Batches) and settings.get("mask_rate") is None:
        settings["mask_rate"] = MASK_RATE
    prepared = as_batches(model, data, **settings)
    if is_encoder(model) and prepared.settings.get("mask_rate") is None:
        remedy = f"make the batches with a mask_rate (the paper: {MASK_RATE})"
        raise ValueError(f"an encoder predicts only masked tokens; {remedy}")
    return prepared


def check_batches(model: Model, prepared: Batches) -> None:
    """Raise ValueError for batches made for another kind of model, and TypeError for anything but batches."""
    if not isinstance(prepared, Batches):
        raise TypeError(f"expected batches, found {type(prepared).__name__}; make them with interp.corpora.batches")
    settings, tokenizer = prepared.settings, prepared.tokenizer
    largest, context = settings.get("largest_id", 0), settings.get("context", 0)
    alike = None in (tokenizer, model.tokenizer) or tokenizer is model.tokenizer
    problems = {
        "tokenised otherwise": not alike and settings["tokenizer"] != tokenizer_hash(model.tokenizer),
        f"with token id {largest}, of a larger vocabulary": largest >= model.cfg.d_vocab,
        f"in rows of {context}, longer than its context": context > model.cfg.n_ctx,
        "masked, for an encoder": settings.get("mask_rate") is not None and not is_encoder(model),
    }
    remedy = "make them with this model: interp.corpora.batches(model, …)"
    for problem, applies in problems.items():
        if applies:
            raise ValueError(f"these batches were made for another model ({problem}); {remedy}")


def _check_settings(
    model: Model, layout: str, context: int, batch_size: int | None, bos: Bos, eos: bool, mask_rate: float | None
) -> None:
    check_choice("layout", layout, get_args(Layout))
    whole_number(context, "context")
    whole_number(1 if batch_size is None else batch_size, "batch_size")
    encoder = is_encoder(model)
    n_ctx = model.cfg.n_ctx
    masks = mask_rate is not None
    least = 3 if encoder else 2 + bool(settled_bos(model, bos)) + eos
    problems = {
        f"context must be {least} … {n_ctx} tokens for this model, found {context}; choose one within this range": not (
            least <= context <= n_ctx
        ),
        f"batch_size must be at least 1 row, found {batch_size}": batch_size is not None and batch_size < 1,
        "an encoder's rows are always [CLS] … [SEP]; bos and eos are for causal models": encoder
        and (bos not in (False, "auto") or eos),
        "mask_rate is for encoders (BERT); a causal model reads every position": masks and not encoder,
    }
    refuse(problems)
    check_mask_rate(mask_rate)
    if masks and tokenizer_of(model).mask_token_id is None:
        raise ValueError("this encoder's tokenizer has no [MASK] token, so nothing can be masked")


def _check_ids_settings(ids: Tensor, context: int | None, framed: bool, of_texts: bool) -> None:
    """Raise ValueError for anything but token ids, and for settings that do not apply to them."""
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise ValueError(f"token ids must be whole numbers [rows, pos], found {ids.dtype} {tuple(ids.shape)}")
    as_they_are = "token ids are read as they are"
    width = ids.shape[1]
    problems = {
        f"{as_they_are}; add bos and eos to them yourself": framed,
        f"these token ids have rows of {width}, found context={context}; leave context out": context
        not in (None, width),
        f"{as_they_are}; leave out column, limit and separator, which are for texts": of_texts,
    }
    refuse(problems)


def check_ids(model: Model, ids: Int[Tensor, "*rows pos"]) -> None:
    """Raise ValueError for token ids without an embedding in the model."""
    smallest = int(ids.min())
    largest = int(ids.max())
    expected = f"0 … {model.cfg.d_vocab - 1}"
    if smallest < 0 or largest >= model.cfg.d_vocab:
        raise ValueError(f"token ids must lie in {expected} for this model, found {smallest} … {largest}")


def _by_length(rows: Iterator[Row]) -> Iterator[Row]:
    """Rows ordered by length within windows."""
    while window := list(islice(rows, _WINDOW)):
        yield from sorted(window, key=lambda row: len(row.ids))


def _grouped(rows: Iterator[Row], batch_size: int | None, most_tokens: int) -> Iterator[list[Row]]:
    """Rows grouped into batches of this size, or else of at most so many tokens."""
    if batch_size is None:
        yield from together(rows, lambda row: len(row.ids), most_tokens)
    else:
        while group := list(islice(rows, batch_size)):
            yield group

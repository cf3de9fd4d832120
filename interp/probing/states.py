"""Hidden states of minimal pairs: one vector a sentence and layer."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
import xxhash
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from interp.checks import check_token_ids, list_of_strings, warn, whole_number
from interp.corpora import Batch
from interp.corpora.pairs import COLUMNS, check_pairs
from interp.corpora.unknown import Unknown, unknown_id
from interp.disk.files import checksum, replacing
from interp.disk.interrupts import uninterrupted
from interp.models import check_weights, config_hash, weight_hash
from interp.models.running import active_hooks, hooks_of_others, running
from interp.models.sites import Model, Recipe, check_model, hook_name, is_encoder, state_name
from interp.probing.options import Position
from interp.run import distributed
from interp.run.observers import forward

Of = Literal["residual", "neurons", "heads"]
_TOKENS_AT_ONCE = 4_096
_SENTENCES_A_SHARD = 8_192
_RUN = "run"  # whose shard it is, in its metadata
_DONE = "done"  # in a shard that was begun: the rows that have been read


@dataclass(frozen=True, eq=False)
class States:
    """One vector for each sentence of each pair, by state.

    `pairs` is the table they were read from; `states` their numbers (0 the embeddings, L + 1 after block L; block
    numbers for neurons and heads); `width` the length of a vector. `load(state)` gives `[pairs, 2, width]`, good
    before bad.
    """

    pairs: pd.DataFrame
    states: tuple[int, ...]
    width: int
    settings: dict[str, Any]
    _shards: tuple[Path, ...] = field(default=(), repr=False)
    _kept: dict[int, Float[np.ndarray, "pairs 2 width"]] = field(default_factory=dict, repr=False)

    @property
    def tasks(self) -> list[str]:
        """In the order of the pairs."""
        return list(dict.fromkeys(self.pairs["UID"]))

    def load(self, state: int) -> Float[np.ndarray, "pairs 2 width"]:
        """The vectors of one state.

        Raises ValueError for a state that was not collected, a damaged shard, vectors of other pairs than `pairs`, and
        values that are not finite.
        """
        if state not in self.states:
            raise ValueError(f"state {state} was not collected; found {', '.join(map(str, self.states))}")
        vectors = self._kept[state] if self._kept else self._stored(state)
        if len(vectors) != len(self.pairs):
            raise ValueError(
                f"state {state} was collected from {len(vectors)} pairs, the table beside it has {len(self.pairs)}; "
                "collect the pairs that are wanted, or name their tasks"
            )
        check_finite(vectors, state)
        return vectors

    def _stored(self, state: int) -> Float[np.ndarray, "pairs 2 width"]:
        parts = [_tensor(shard, str(state)) for shard in self._shards]
        return np.concatenate(parts).reshape(-1, 2, self.width)


@torch.no_grad()
def collect(
    model: Model,
    pairs: pd.DataFrame,
    *,
    states: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    position: Position | None = None,
    of: Of = "residual",
    bos: bool | None = None,
    directory: str | os.PathLike[str] | None = None,
    memory: float | int = 2e9,
    progress: bool = True,
) -> States:
    """Read one vector a sentence and layer from a model, in one pass, keeping nothing else.

    Args:
        pairs: a table from `interp.corpora.pairs`.
        states: of the residual stream: 0 … n_layers (0: the embeddings); all by default.
        layers: of neurons and heads: block numbers; all by default.
        position: `"eos"`: at an end-of-sequence token that is appended (an encoder's `[SEP]`), the default of causal
            models; `"last"`: at the last token of the sentence; `"mean"` over all its tokens, special ones too;
            `"cls"`: at an encoder's `[CLS]`, its default.
        of: the `"residual"` stream, MLP `"neurons"` after the activation, or the outputs of attention `"heads"` (z,
            all heads of a layer side by side).
        bos: put the beginning-of-sequence token first; by default what TransformerLens knows of the model.
        directory: for safetensors shards; a run that was killed goes on with the shard it was at.
        memory: bytes that may be kept without a directory.

    Raises ValueError for a table without pairs, a sentence longer than the context or without a token, a tokenizer of
    another model, a layer that does not exist, states that are not finite or too large for `memory`, a directory of
    another run, or a directory while hooks are active on the model; TypeError for what is no model, no table, no
    sentence or no whole number.
    """
    check_model(model)
    check_pairs(pairs)
    if position not in (None, *get_args(Position)) or of not in get_args(Of):
        raise ValueError(
            f"unknown position {position!r} or of={of!r}; expected {get_args(Position)} and {get_args(Of)}"
        )
    if directory is not None and active_hooks(model):
        raise ValueError(
            "a directory cannot tell which hooks were active on the model; collect without one, or reset them"
        )
    position = position or ("cls" if is_encoder(model) else "eos")
    names = _names(model, states, layers, of)
    rows = sentence_rows(model, pairs[list(COLUMNS[:2])].to_numpy().ravel().tolist(), position, bos=bos)
    index = {"last": "before last" if is_encoder(model) else "last", "cls": "first"}.get(position, position)
    width = _width(model, of)
    settings = {
        "weight_hash": weight_hash(model), "config_hash": config_hash(model),
        "token_ids": xxhash.xxh3_128(json.dumps(rows).encode()).hexdigest(),
        "pairs": xxhash.xxh3_128("\0".join([*pairs["sentence_good"], *pairs["sentence_bad"]]).encode()).hexdigest(),
        "states": list(names), "position": position, "of": of, "unknown_share": _unknown_share(model, rows),
        "active_hooks": active_hooks(model),
    }  # fmt: skip
    size = 4.0 * len(rows) * width * len(names)
    if directory is None and size > memory:
        raise ValueError(
            f"the states take {size / 1e9:.1f} GB, more than memory={memory / 1e9:.1f} GB; give a directory"
        )
    found = States(pairs.reset_index(drop=True), tuple(names), width, settings)
    with tqdm(total=len(rows), unit="sentence", disable=None if progress else True, desc="collecting") as bar:
        if directory is None:
            vectors = _read(model, rows, names, index, width, bar)
            kept = {state: values.reshape(-1, 2, width) for state, values in vectors.items()}
            return States(found.pairs, found.states, width, settings, _kept=kept)
        root = Path(directory)
        run = _claim(root, settings)
        starts = range(0, len(rows), _SENTENCES_A_SHARD)
        parts = {root / f"states-{i:05d}.safetensors": rows[s : s + _SENTENCES_A_SHARD] for i, s in enumerate(starts)}
        for number, (shard, part) in enumerate(parts.items()):
            if number in distributed.part() and not _whole(shard, run):
                begun = shard.with_suffix(f".begun{shard.suffix}")
                _save(shard, _read(model, part, names, index, width, bar, begun, run), run)
                begun.unlink(missing_ok=True)
            else:
                bar.update(len(part))
        distributed.meet([shard for shard in parts if not _whole(shard, run)])
    return States(found.pairs, found.states, width, settings, _shards=tuple(parts))


def _claim(root: Path, settings: dict[str, Any]) -> str:
    """Write what this run is, or see that the directory belongs to it; the name that its shards bear."""
    path = root / "states.json"
    described = json.dumps(settings, sort_keys=True)
    if path.is_file():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); remove {root} and run again") from None
        different = [
            f"{key} {known.get(key)!r}, here {settings[key]!r}" for key in settings if known.get(key) != settings[key]
        ]
        if different:
            raise ValueError(
                f"{root} holds states of another run ({'; '.join(different)}); remove it or choose another"
            )
    else:
        root.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(described, encoding="utf-8")
    return checksum(described.encode())


def _save(shard: Path, vectors: Mapping[Any, np.ndarray], run: str) -> None:
    named = {str(name): values for name, values in vectors.items()}
    with replacing(shard) as temporary:
        save_file(
            {name: torch.from_numpy(values) for name, values in named.items()},
            temporary,
            {name: checksum(values.tobytes()) for name, values in named.items()} | {_RUN: run},
        )


def _tensor(shard: Path, name: str) -> np.ndarray:
    """What `_save` wrote. Raises ValueError where it is damaged."""
    with safe_open(shard, "pt") as file:
        values = file.get_tensor(name).numpy()
        known = (file.metadata() or {}).get(name)
    if checksum(values.tobytes()) != known:
        raise ValueError(f"{shard} is damaged (checksum of state {name}); delete it to collect it again")
    return values


def _whole(shard: Path, run: str) -> bool:
    """Whether a shard is there. Raises ValueError for one of another run, or what is no shard."""
    if not os.path.lexists(shard):
        return False
    try:
        with safe_open(shard, "pt") as file:
            known = (file.metadata() or {}).get(_RUN)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{shard} holds no states, or is damaged ({error}); delete it to collect it again") from None
    if known != run:
        raise ValueError(f"{shard} belongs to another run (other weights, sentences or options); remove {shard.parent}")
    return True


def _names(model: Model, states: Sequence[int] | None, layers: Sequence[int] | None, of: Of) -> dict[int, str]:
    """Hook points by state, or by layer for neurons and heads."""
    n_layers = model.cfg.n_layers
    what, given, other = ("state", states, layers) if of == "residual" else ("layer", layers, states)
    if other is not None:
        raise ValueError(f"of={of!r} is read at {what}s; give {what}s= and leave the other out")
    if of == "residual":
        every = {state: state_name(model, state) for state in range(n_layers + 1)}
    else:
        site: Any = {"neurons": "mlp_post", "heads": "z"}[of]
        every = {layer: hook_name(model, site, layer) for layer in range(n_layers)}
    chosen = list(every) if given is None else [whole_number(number, what) for number in given]
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(every):
        raise ValueError(f"{what}s must be different numbers in 0 … {max(every)}, found {chosen}")
    return {number: every[number] for number in chosen}


def _width(model: Model, of: Of) -> int:
    cfg = model.cfg
    return int({"residual": cfg.d_model, "neurons": cfg.d_mlp, "heads": cfg.n_heads * cfg.d_head}[of] or 0)


def sentence_rows(
    model: Model, sentences: Sequence[str], position: Position, *, bos: bool | None = None
) -> list[list[int]]:
    """Token ids of every sentence with the special ones that its states are read with.

    Raises as `collect` does.
    """
    sentences = list_of_strings(sentences, "sentences")
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("this model has no tokenizer, so it cannot read sentences; set model.tokenizer")
    check_weights(model)
    encoder = is_encoder(model)
    if position == "cls" and not encoder:
        raise ValueError("position 'cls' is for encoders; a causal model's first token has seen nothing")
    before, after = ([tokenizer.cls_token_id], [tokenizer.sep_token_id]) if encoder else ([], [])
    if not encoder:
        bos = model.cfg.default_prepend_bos if bos is None else bos
        if bos and tokenizer.bos_token_id is None:
            raise ValueError("this model's tokenizer has no beginning-of-sequence token; give bos=False")
        before = [tokenizer.bos_token_id] if bos else []
        if position == "eos":
            after = [_end(tokenizer)]
    encoded = tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
    rows = [before + ids + after for ids in encoded]
    for sentence, ids, row in zip(sentences, encoded, rows, strict=True):
        if not ids or len(row) > model.cfg.n_ctx:
            raise ValueError(
                f"{sentence[:60]!r} has {len(row)} tokens; expected a word or more and at most {model.cfg.n_ctx}"
            )
    check_token_ids(max(map(max, rows)), model.cfg.d_vocab, "the sentences have")
    return rows


def _unknown_share(model: Model, rows: list[list[int]]) -> float | None:
    """Of the sentences' tokens, special ones aside; raises and warns as `check_known` does."""
    tokenizer = model.tokenizer
    special = {*tokenizer.all_special_ids} - {unknown_id(tokenizer)}
    ids = np.array([token_id for row in rows for token_id in row if token_id not in special])
    return Unknown.of(ids, tokenizer, "the sentences").share


def _end(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is not None:
        return int(tokenizer.eos_token_id)
    for name in ("sep", "bos", "pad"):
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None:
            token = getattr(tokenizer, f"{name}_token")
            warn(f"this tokenizer has no end-of-sequence token; {token} is appended instead")
            return int(token_id)
    raise ValueError("this tokenizer has no token to append; choose position='last' or 'mean'")


def _read(
    model: Model,
    rows: list[list[int]],
    names: dict[int, str],
    index: str,
    width: int,
    bar: Any,
    begun: Path | None = None,
    run: str = "",
) -> dict[int, Float[np.ndarray, "sentences width"]]:
    """The vectors of all rows; Ctrl-C leaves those read so far in `begun`, and the next call goes on from there."""
    found = {state: np.zeros((len(rows), width), dtype=np.float32) for state in names}
    done = np.zeros(len(rows), dtype=bool)
    if begun is not None and _whole(begun, run):
        done = _tensor(begun, _DONE)
        found = {state: _tensor(begun, str(state)) for state in names}
    hooks = hooks_of_others(model)
    try:
        for chosen, batch in batches_of(model, rows):
            if not done[chosen].all():
                lengths = batch.mask.sum(1)
                recipe: Recipe = [
                    (name, _keeper(found[state], chosen, lengths, index, batch)) for state, name in names.items()
                ]
                with running(model, recipe, expected=hooks):
                    forward(model, batch, model.cfg.n_layers)
                done[chosen] = True
            bar.update(len(chosen))
    except KeyboardInterrupt:
        if begun is not None and done.any():
            with uninterrupted():
                _save(begun, found | {_DONE: done}, run)
        raise
    for state, values in found.items():
        check_finite(values, state)
    return found


def check_finite(values: Float[np.ndarray, "..."], state: int) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f"state {state} has NaN or infinite values; check the model's weights and dtype")


def batches_of(model: Model, rows: list[list[int]]) -> Iterator[tuple[list[int], Batch]]:
    """Rows in order of length, in batches that stay small with their right padding, and which rows are in each."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    group: list[int] = []
    for i in order:
        if group and (len(group) + 1) * len(rows[i]) > _TOKENS_AT_ONCE:
            yield group, _batch([rows[j] for j in group], model)
            group = []
        group.append(i)
    if group:
        yield group, _batch([rows[j] for j in group], model)


def _batch(rows: list[list[int]], model: Model) -> Batch:
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.W_U.device)
    lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
    mask = torch.arange(width, device=tokens.device) < lengths[:, None]
    return Batch(tokens, mask.long(), mask, torch.full_like(tokens, -1))


def _keeper(into: np.ndarray, chosen: list[int], lengths: Tensor, index: str, batch: Batch) -> Any:
    def keep(activation: Tensor, hook: object) -> None:
        values = activation.flatten(2)
        if index == "mean":
            values = values.float()
            real = batch.mask.to(values)[..., None]
            picked = (values * real).sum(1) / real.sum(1)
        else:
            where = {"first": 0 * lengths, "eos": lengths - 1, "last": lengths - 1, "before last": lengths - 2}[index]
            picked = values[torch.arange(len(values), device=values.device), where]
        into[chosen] = picked.float().cpu().numpy()

    return keep

"""`interp check`: loads a model, compares it with transformers, and says what can be asked of it."""

import json
import shutil
from pathlib import Path
from typing import Any

from interp.analyses.options import ModelOptions
from interp.cli import flags
from interp.cli.dryrun import budget_of_all
from interp.cli.screen import echo

__all__ = ["check"]


@flags.with_flags(*flags.parameters(ModelOptions))
def check(
    model: flags.ModelArgument,
    *,
    as_json: flags.JsonFlag = False,
    **values: Any,
) -> None:
    """Load a model and say what can be asked of it.

    Compares its predictions with those of transformers. Then lists the questions it can answer, what is left out and
    why, how it reads sentences, and the memory and disk that a report takes. The exit code is 0 if it loads and its
    predictions agree.
    """
    options = flags.read(ModelOptions, values)

    from interp import models
    from interp.analyses.registry import analyses, left_out
    from interp.models.identity import origin
    from interp.models.shapes import shape_with
    from interp.support import memory

    shape = shape_with(model, options)
    loaded = models.load(model, **options)
    absent = left_out(loaded)
    questions = [name for name in analyses() if name not in absent]
    budget = budget_of_all(model, "bundled", options, absent)
    verdict, fits = budget.verdict(budget.run.available)
    disk = budget.numbers.get("states_bytes", 0)
    free = shutil.disk_usage(Path.cwd()).free
    facts: dict[str, Any] = {
        "class": type(loaded).__name__,
        "n_layers": shape.n_layers, "d_model": shape.d_model, "d_vocab": shape.d_vocab,
        "parameters": shape.parameters, "context": loaded.cfg.n_ctx, "parity": dict(origin(loaded).parity),
        "questions": questions, "left_out": absent, "sentences": _sentences(loaded), "special_tokens": _special(loaded),
        "peak_bytes": budget.peak,
    }  # fmt: skip
    facts.update(fits, disk_bytes=disk, free_disk_bytes=free)
    if as_json:
        echo(json.dumps(facts))
        return
    sizes = f"{shape.n_layers} blocks of {shape.d_model:,}, {shape.d_vocab:,} types, rows of up to {loaded.cfg.n_ctx:,}"
    parity = [f"{quantity} differ by at most {error:.1e}" for quantity, error in origin(loaded).parity.items()]
    special = ", ".join(f"{token} {number}" for token, number in facts["special_tokens"].items())
    lines = [
        ("model", f"{type(loaded).__name__}, {shape.parameters:,} parameters, {sizes}"),
        ("transformers", "; ".join(parity)),
        ("questions", ", ".join(questions) or "none"),
    ]
    for part, reason in absent.items():
        lines.append(("left out", f"{part}: {reason}"))
    lines.extend(facts["sentences"].items())
    lines.append(("special", special or "none"))
    lines.append(("memory", f"interp report {verdict}"))
    stored = f"interp report writes {memory.shown(disk)} of hidden states; {memory.shown(free)} is free here"
    lines.append(("disk", stored))
    echo("\n".join([model, *(f"{name:14}{value}" for name, value in lines)]))


def _sentences(model: Any) -> dict[str, str]:
    """How a model reads a sentence, and at which token probes read it."""
    from interp.corpora.positions import frame_of, state_rows
    from interp.models.sites import is_encoder
    from interp.support.choices import Position

    if model.tokenizer is None:
        return {"sentences": "this model has no tokenizer"}
    position: Position = "cls" if is_encoder(model) else "eos"
    try:
        row = state_rows(model, ["The cat sat."], position)[0]
    except ValueError as error:
        return {"sentences": str(error)}
    tokens = frame_of(model, row, position, "auto")
    begins = tokens["begins_with"] or "nothing"
    return {"sentences": f"{begins} before a sentence; probes read it at {tokens['read_at']}"}


def _special(model: Any) -> dict[str, int]:
    """The special tokens of a model's tokenizer, with their ids."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return {}
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens}

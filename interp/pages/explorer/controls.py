"""The controls of each panel, and the answer to their values."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from interp.pages.explorer.attention import attention
from interp.pages.explorer.grammar import grammar
from interp.pages.explorer.predictions import example_token, frequency, probability, scaled_bias
from interp.pages.explorer.subject import Answer, Subject
from interp.support.words import BIAS_MEANING, BIAS_WORD

__all__ = ["Panel", "panels"]

_SENTENCES = ("The boy who lived by the river hurt himself.", "The boy who lived by the river hurt herself.")
_PROMPT = "The boy walked to the"
_TEXT: dict[str, Any] = {"type": "text", "debounce": 0.6, "autoComplete": "off"}
_WEIGHTS = {
    "least_norm": "least_norm (the shortest step)",
    "weighted": "weighted (equally far in every dimension)",
    "top": "top (in a tenth of the dimensions)",
}


@dataclass(frozen=True, eq=False)
class Panel:
    """A panel: its title, the question it answers, what one does in it, the analysis it belongs to, its controls by
    label, and the function of their values that answers it."""

    title: str
    question: str
    hint: str
    analysis: str
    controls: dict[str, Any]
    answer: Callable[..., Answer]

    @property
    def inputs(self) -> list[str]:
        """The names of the controls that have a value."""
        return [control.id for control in self.controls.values() if not isinstance(control, html.Button)]


def panels(subject: Subject) -> dict[str, Panel]:
    """The panels by name; the names of controls begin with that of their panel."""
    return {
        "attention": _attention(subject),
        "frequency": _frequency(subject),
        "probability": _probability(subject),
        "grammar": _grammar(subject),
    }


def _attention(subject: Subject) -> Panel:
    cfg = subject.model.cfg
    number: dict[str, Any] = {"type": "number", "min": 0, "step": 1, "debounce": True}
    states = subject.prepared.outliers["state"]
    layer = min(states[states < cfg.n_layers], default=0)  # the first block that reads outliers
    controls = {
        "Sentence": dcc.Input(id="attention-text", value=_SENTENCES[0].rstrip("."), **_TEXT),
        f"Block, 0 to {cfg.n_layers - 1}": dcc.Input(id="attention-layer", value=layer, max=cfg.n_layers - 1, **number),
        f"Head, 0 to {cfg.n_heads - 1}": dcc.Input(id="attention-head", value=0, max=cfg.n_heads - 1, **number),
        "Query": dcc.Dropdown(id="attention-query", placeholder="last token"),
        "Key": dcc.Dropdown(id="attention-key", placeholder="most attended"),
        "Dimensions to remove": dcc.Input(id="attention-removed", value="", placeholder="such as 48, 12", **_TEXT),
        "": html.Button(id="attention-outliers", className="tool", type="button"),
        "Removed from": dcc.RadioItems(["keys", "queries", "residual"], "keys", id="attention-where", inline=True),
    }
    hint = "Click on a head to choose it, on a cell to choose a query and a key, and on a bar to remove the dimension."
    return Panel("Attention", "Which dimensions make an attention score?", hint, "attention", controls, _attend)


def _frequency(subject: Subject) -> Panel:
    try:
        bias = scaled_bias(subject.model)
    except ValueError:  # the panel says that there is no head
        bias = "ln"
    slider: dict[str, Any] = {"min": 0, "max": 2, "step": 0.05, "marks": {0: "0", 1: "1", 2: "2"}}
    controls = {
        "Text": dcc.Input(id="frequency-text", value=_PROMPT, **_TEXT),
        f"λ, which scales {BIAS_WORD[bias]}": dcc.Slider(id="frequency-scale", value=0, updatemode="mouseup", **slider),
    }
    question = f"What does {BIAS_WORD[bias]} do to frequent words?"
    hint = f"Type the beginning of a text, and scale {BIAS_MEANING[bias]}."
    return Panel("Frequency", question, hint, "frequency", controls, _scale)


def _probability(subject: Subject) -> Panel:
    controls = {
        "Token (␣ is a space)": dcc.Input(id="probability-token", value=example_token(subject), **_TEXT),
        "Factor": dcc.Input(id="probability-ratio", value=2, type="number", min=0, step="any", debounce=True),
        "Weights of the dimensions": dcc.RadioItems(_WEIGHTS, "least_norm", id="probability-weights", inline=True),
    }
    hint = "Choose a token, and the factor by which its probability should change."
    return Panel("Token probability", "How is one token made more probable?", hint, "encoding", controls, _multiply)


def _grammar(subject: Subject) -> Panel:
    controls: dict[str, Any] = {
        "First sentence": dcc.Input(id="grammar-one", value=_SENTENCES[0], **_TEXT),
        "Second sentence": dcc.Input(id="grammar-other", value=_SENTENCES[1], **_TEXT),
    }
    if subject.probes is not None:
        neurons = subject.probes.neurons.query("gate > 0")  # a probe without open gates has no scores
        probes = neurons[["task", "state"]].drop_duplicates().itertuples(index=False)
        options = [{"label": f"{task}, state {state}", "value": f"{state} {task}"} for task, state in probes]
        controls["Probe"] = dcc.Dropdown(options, options[0]["value"] if options else None, id="grammar-probe")
    hint = "Type two sentences, such as one that is grammatical and one that is not."
    return Panel("Grammar", "Which of two sentences is more probable?", hint, "probing", controls, _compare)


def _attend(
    subject: Subject, text: str, layer: int | None, head: int | None, query: int | None, key: int | None, removed: str,
    where: Any,
) -> Answer:  # fmt: skip
    if layer is None or head is None:
        cfg = subject.model.cfg
        raise ValueError(f"expected a block in 0 … {cfg.n_layers - 1} and a head in 0 … {cfg.n_heads - 1}")
    options: dict[str, Any] = {"layer": layer, "head": head, "query": query, "key": key}
    return attention(subject, text or "", **options, removed=_dims(removed), where=where)


def _scale(subject: Subject, text: str, scale: float) -> Answer:
    return frequency(subject, text or "", scale=scale)


def _multiply(subject: Subject, token: str, ratio: float | None, weights: Any) -> Answer:
    is_complete = bool(token) and ratio is not None and ratio > 0
    if subject.prepared.fit is not None and not is_complete:  # without a fit, the panel says why there is none
        raise ValueError("type a token of the vocabulary, and a factor above 0")
    return probability(subject, token or "", ratio=ratio or 0, weights=weights)


def _compare(subject: Subject, first: str, second: str, probe: str | None = None) -> Answer:
    state, _, task = (probe or "").partition(" ")
    return grammar(subject, first or "", second or "", probe_of=(task, int(state)) if probe else None)


def _dims(text: str | None) -> list[int]:
    """The numbers in a list of dimensions."""
    dims = []
    for part in re.findall(r"[^\s,]+", text or ""):
        if not re.fullmatch("[0-9]{1,9}", part):
            raise ValueError(f"{part!r} is not a dimension; write whole numbers with commas between them: 48, 12")
        if int(part) not in dims:
            dims.append(int(part))
    return dims

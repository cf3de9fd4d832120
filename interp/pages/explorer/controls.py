"""The controls of each panel, and the answer to their values."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from interp.analyses.encoding.steering import WEIGHTS
from interp.pages.explorer.attention import attention
from interp.pages.explorer.grammar import grammar
from interp.pages.explorer.predictions import example_token, frequency, probability
from interp.pages.explorer.subject import Answer, Subject

__all__ = ["Panel", "panels"]

_SENTENCES = ("The boy who lived by the river hurt himself.", "The boy who lived by the river hurt herself.")
_PROMPT = "The boy walked to the"


@dataclass(frozen=True, eq=False)
class Panel:
    """A panel: its title, the question it answers, the analysis it belongs to, its controls by label, and the function
    of their values that answers it."""

    title: str
    question: str
    analysis: str
    controls: dict[str, Any]
    answer: Callable[..., Answer]

    @property
    def inputs(self) -> list[str]:
        """The names of the controls that have a value."""
        return [control.id for control in self.controls.values() if not isinstance(control, html.Button)]


def panels(subject: Subject) -> dict[str, Panel]:
    """The panels by name; the names of controls begin with that of their panel."""
    cfg = subject.model.cfg
    layers: dict[str, Any] = {"type": "number", "min": 0, "step": 1, "debounce": True}
    text: dict[str, Any] = {"type": "text", "debounce": 0.6, "autoComplete": "off"}
    scales: dict[str, Any] = {
        "min": 0,
        "max": 2,
        "step": 0.05,
        "marks": {0: "0", 1: "1", 2: "2"},
        "updatemode": "mouseup",
    }
    pattern = {
        "Sentence": dcc.Input(id="attention-text", value=_SENTENCES[0], **text),
        f"Block, 0 to {cfg.n_layers - 1}": dcc.Input(id="attention-layer", value=0, max=cfg.n_layers - 1, **layers),
        f"Head, 0 to {cfg.n_heads - 1}": dcc.Input(id="attention-head", value=0, max=cfg.n_heads - 1, **layers),
        "Query": dcc.Dropdown(id="attention-query", placeholder="the last token"),
        "Key": dcc.Dropdown(id="attention-key", placeholder="the most attended"),
        "Dimensions to remove": dcc.Input(id="attention-removed", value="", placeholder="such as 48, 12", **text),
        "": html.Button("Remove the outliers", id="attention-outliers", className="tool", type="button"),
        "Removed from": dcc.RadioItems(["keys", "queries", "residual"], "keys", id="attention-where", inline=True),
    }
    steering = {
        "Token (␣ is a space)": dcc.Input(id="probability-token", value=example_token(subject), **text),
        "Factor": dcc.Input(id="probability-ratio", value=2, type="number", min=0, step="any", debounce=True),
        "Weights of the dimensions": dcc.RadioItems(list(WEIGHTS), WEIGHTS[0], id="probability-weights", inline=True),
    }
    pair: dict[str, Any] = {
        "First sentence": dcc.Input(id="grammar-one", value=_SENTENCES[0], **text),
        "Second sentence": dcc.Input(id="grammar-other", value=_SENTENCES[1], **text),
    }
    if subject.probes is not None:
        neurons = subject.probes.neurons.query("gate > 0")  # a probe without open gates has no scores
        probes = neurons[["task", "state"]].drop_duplicates().itertuples(index=False)
        options = [{"label": f"{task}, state {state}", "value": f"{state} {task}"} for task, state in probes]
        pair["Probe"] = dcc.Dropdown(options, options[0]["value"] if options else None, id="grammar-probe")
    prompt = {
        "Text": dcc.Input(id="frequency-text", value=_PROMPT, **text),
        "λ": dcc.Slider(id="frequency-scale", value=0, **scales),
    }
    return {
        "attention": Panel("Attention", "Which dimensions make an attention score?", "attention", pattern, _attend),
        "frequency": Panel("Frequency", "What does b_LN or E[h] do to frequent words?", "frequency", prompt, _scale),
        "probability": Panel(
            "Token probability", "How is one token made more probable?", "encoding", steering, _multiply
        ),
        "grammar": Panel("Grammar", "Which of two sentences is more probable?", "probing", pair, _compare),
    }


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
    if not token or ratio is None or not ratio > 0:
        raise ValueError("type a token of the vocabulary, and a factor above 0")
    return probability(subject, token, ratio=ratio, weights=weights)


def _compare(subject: Subject, first: str, second: str, probe: str | None = None) -> Answer:
    state, _, task = (probe or "").partition(" ")
    return grammar(subject, first or "", second or "", probe_of=(task, int(state)) if probe else None)


def _dims(text: str | None) -> list[int]:
    """The numbers in a list of dimensions."""
    parts = re.findall(r"[^\s,]+", text or "")
    if wrong := [part for part in parts if not re.fullmatch("[0-9]{1,9}", part)]:
        raise ValueError(f"{wrong[0]!r} is not a dimension; write whole numbers with commas between them: 48, 12")
    return [int(part) for part in dict.fromkeys(parts)]

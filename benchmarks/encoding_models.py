"""The tables in the docs of token probability in output embeddings, on the bundled models and those in ../shared.

Prints two Markdown tables. Set INTERP_SHARED to use another folder in place of ../shared.

    python benchmarks/encoding_models.py
"""

import json
import os
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from timing import markdown

import interp
from interp import corpora, encoding
from interp.analyses.encoding.options import Weights
from interp.analyses.encoding.steering import steering_direction
from interp.models.head import prediction_head

SHARED = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared"))


def jobs() -> dict[str, tuple[str | Path, Any, dict[str, Any]]]:
    """The model, the text and the options of `interp.corpora.batches` for each row."""
    yelp = (SHARED / "data/yelp/valid.txt").read_text(encoding="utf-8")
    stories = json.loads((SHARED / "data/tinystories/tinystories_1000.json").read_text(encoding="utf-8"))[:200]
    texts = [story if isinstance(story, str) else story["text"] for story in stories]
    return {
        "gpt2-yelp": (SHARED / "models/gpt2-yelp", [yelp], {}),
        "llama-stories260k": (SHARED / "models/llama-stories260k", texts, {"bos": "texts"}),
        "tiny-gpt2": ("tiny-gpt2", "bundled", {"bos": "texts"}),
        "tiny-bert": ("tiny-bert", "bundled", {"mask_rate": 0.12}),
    }


def cosine(a: np.ndarray, b: np.ndarray) -> str:
    return f"{a @ b / np.linalg.norm(a) / np.linalg.norm(b):.2f}"


def main() -> None:
    rows, removed = [], []
    for name, (source, text, options) in jobs().items():
        model = interp.load(source)
        batches = corpora.batches(model, text, **options)
        study = encoding.study(model, batches, weights=get_args(Weights), progress=False)
        fit = encoding.fit(model, batches, progress=False)
        numbers = study.regression.set_index("target")
        r2, fitted = numbers["adj_r2"], numbers.loc["-log alpha"]
        b_ln = prediction_head(model).b_ln
        error = study.steering_error.query("group == 'all'").set_index(["shift", "weights"])["error"]
        ways = [("regression", weights) for weights in get_args(Weights)] + [("constant", ""), ("exact", "")]
        row = {
            "model": name,
            "adjusted R²": f"{r2['-log alpha']:.3f}",
            "unseen types": "{cv_r2:.3f} [{cv_r2_low:.3f}, {cv_r2_high:.3f}]".format(**fitted),
            "shuffled": f"{r2['shuffled']:.3f}",
            "cos(−A, E[h])": cosine(-fit.slope, fit.mean_input),
            "cos(−A, b_LN)": "no b_LN" if b_ln is None else cosine(-fit.slope, b_ln.detach().double().cpu().numpy()),
        }
        for weights in get_args(Weights):
            row[f"mean h·u, {weights}"] = f"{fit.mean_input @ steering_direction(fit, weights):.2f}"
        for shift, weights in ways:
            row[weights or shift] = f"{error[shift, weights]:.2g}"
        rows.append(row)
        curves = study.pruning.query("basis == 'axis' and order in ('spearman', 'random')")
        at_30 = curves[curves["fraction"] == 0.3].set_index("order")["top1_agreement"]
        removable = study.removable.query("basis == 'axis' and order in ('spearman', 'random')").assign(model=name)
        removable["top-1 agreement at 30 %"] = removable["order"].map(at_30)
        removed.append(removable)
    print(markdown(rows), "\n")
    table = pd.concat(removed)[["model", "order", "99%", "95%", "top-1 agreement at 30 %"]]
    print(markdown(table.round(3).astype(str).to_dict("records")))


if __name__ == "__main__":
    main()

"""The table in the docs of KL(u‖q) with and without each bias of the head, for small BERTs and GPT-2s.

    python benchmarks/frequency_models.py [SECOND_BERT]

The models are the bundled ones on the bundled text, gpt2-yelp in ../shared (or INTERP_SHARED) on Yelp reviews and, if
its directory is given, a second BERT, made by `tools/train.py --kind bert --seed 1`. Prints a Markdown table; intervals
are over texts.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from timing import markdown

import interp
from interp import corpora
from interp.analyses.frequency import study
from interp.corpora import unigrams
from interp.corpora.unigrams import Unigrams

SHARED = Path(os.environ.get("INTERP_SHARED", Path(__file__).parents[2] / "shared"))


def rows(name: str, model: str | Path, text: Any, counts: Unigrams | None, **options: Any) -> list[dict[str, str]]:
    """One row for each bias."""
    loaded = interp.load(model)
    effect = study(loaded, corpora.batches(loaded, text, **options), unigram=counts, progress=False)
    spearman = effect.projection.set_index("bias")["spearman"]
    table = []
    for bias, part in effect.kl.groupby("bias", sort=False):
        trained, without = (part.set_index("scale").loc[scale] for scale in (1, 0))
        table.append(
            {
                "model": name,
                "bias": f"b_{bias}",
                "KL(u‖q)": f"{trained['kl_unigram_model']:.3f}",
                "without it": f"{without['kl_unigram_model']:.3f}",
                "ΔKL": "{delta_kl:.3f} [{delta_kl_low:.3f}, {delta_kl_high:.3f}]".format(**without),
                "perplexity": f"{trained['perplexity']:.1f}",
                "without": f"{without['perplexity']:.1f}",
                "Spearman with log u": f"{spearman[bias]:.2f}" if bias in spearman else "",
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("second_bert", nargs="?", type=Path)
    bert = parser.parse_args().second_bert
    yelp = (SHARED / "data/yelp/valid.txt").read_text(encoding="utf-8")
    table = rows("tiny-bert", "tiny-bert", "bundled", None, mask_rate=0.12)
    if bert is not None:
        counts = unigrams.load(bert / "unigram.safetensors")
        table += rows(f"{bert.name}", bert, "bundled", counts, mask_rate=0.12)
    table += rows("tiny-gpt2", "tiny-gpt2", "bundled", None, bos="texts")
    table += rows("gpt2-yelp", SHARED / "models/gpt2-yelp", [yelp], None)
    print(markdown(table))


if __name__ == "__main__":
    main()

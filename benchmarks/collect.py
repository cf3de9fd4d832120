"""Collecting every hidden state at an appended EOS, against the forward pass of transformers on the same batches.

Prints a Markdown table. `python benchmarks/collect.py [--quick]`. The bundled minimal pairs; the same batches, right
padded, for both; transformers runs its trunk without the prediction head.
"""

import argparse
import tempfile

import torch
import transformers
from timing import alternate, markdown, ratio

import interp
from interp import pairs, probing
from interp.paths import BUNDLED
from interp.probing.states import batches_of, sentence_rows


def measure(name: str, config: transformers.PretrainedConfig, n_per_task: int, repeats: int) -> dict[str, str]:
    table = pairs.generate(n_per_task=n_per_task)
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    with tempfile.TemporaryDirectory() as directory:
        hf.save_pretrained(directory)
        transformers.AutoTokenizer.from_pretrained(BUNDLED / "tiny-gpt2").save_pretrained(directory)
        model = interp.load(directory)
    rows = sentence_rows(model, table[["sentence_good", "sentence_bad"]].to_numpy().ravel().tolist(), "eos", bos=False)
    prepared = [batch for _, batch in batches_of(model, rows)]

    @torch.no_grad()
    def plain() -> None:
        for batch in prepared:
            hf.base_model(batch.tokens, attention_mask=batch.mask)

    @torch.no_grad()
    def hooked() -> None:
        for batch in prepared:
            model(batch.tokens, stop_at_layer=model.cfg.n_layers)

    def collected() -> None:
        probing.collect(model, table, bos=False, progress=False)

    seconds = alternate({"collect": collected, "transformers": plain, "HookedTransformer": hooked}, repeats=repeats)
    return {
        "model": name,
        "sentences": f"{len(rows):,}",
        "collect / transformers": ratio(seconds, "collect", "transformers"),
        "collect / HookedTransformer": ratio(seconds, "collect", "HookedTransformer"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sentences and rounds")
    quick = parser.parse_args().quick
    transformers.utils.logging.disable_progress_bar()
    n, repeats = (4, 2) if quick else (10, 5)
    print(f"random weights; {torch.get_num_threads()} threads; torch {torch.__version__}\n")
    small = transformers.GPT2Config(vocab_size=4_096, n_embd=192, n_layer=6, n_head=6)
    large = transformers.GPT2Config()
    rows = [measure("GPT-2, tiny-gpt2's shape", small, 10 * n, repeats), measure("GPT-2, 124M", large, n, repeats)]
    print(markdown(rows))


if __name__ == "__main__":
    main()

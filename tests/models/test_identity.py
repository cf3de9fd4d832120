"""What checkpoints and counts belong to: content, and the versions of the libraries that compute."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import transformers
from naming import naming
from tokenizers import normalizers, pre_tokenizers

import interp
from interp.corpora import unigrams
from interp.corpora.unigrams import Unigrams, tokenizer_hash
from interp.instruments.profile import DimensionProfile
from interp.passes.reading import observe
from interp.results import result


@pytest.fixture
def two(hf_directory, tmp_path):
    """A directory, and one whose tokenizer does not lower-case but has the same tokens and ids."""
    cased = tmp_path / "cased"
    shutil.copytree(hf_directory("gpt2"), cased)
    content = json.loads((cased / "tokenizer.json").read_text())
    content["normalizer"] = None
    (cased / "tokenizer.json").write_text(json.dumps(content))
    return interp.load(hf_directory("gpt2")), interp.load(cased)


def read(model, texts, path, stop=None):
    observer = DimensionProfile(model, interp.corpora.token_classes(model, {"a": [7]}))
    batches = interp.corpora.batches(model, texts, batch_size=1)
    if stop is not None:

        def some():
            for number, batch in enumerate(batches):
                if number == stop:
                    raise KeyboardInterrupt
                yield batch

        read = replace(batches, read=some)
    observe(model, batches if stop is None else read, observer, checkpoint=path, progress=False)
    return observer.table


def test_every_part_of_a_tokenizer_counts(hf_directory):
    make = lambda: transformers.AutoTokenizer.from_pretrained(hf_directory("gpt2"))  # noqa: E731
    same = tokenizer_hash(make())
    assert tokenizer_hash(interp.load(hf_directory("gpt2")).tokenizer) == same
    changed = [make() for _ in range(3)]
    changed[0].backend_tokenizer.normalizer = normalizers.NFKC()
    changed[1].backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    changed[2].add_tokens(["new"])
    assert len({same, *map(tokenizer_hash, changed)}) == 4
    framed = make()
    framed.backend_tokenizer.enable_truncation(3)
    framed.backend_tokenizer.enable_padding()
    assert tokenizer_hash(framed) == same, "rows are framed by interp"


def test_merges_count(tmp_path):
    """Two byte-pair tokenizers with the same vocabulary that merge pairs in different orders."""
    from tokenizers import Tokenizer, models

    vocabulary = {token: i for i, token in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    orders = [[("a", "b"), ("b", "c"), ("ab", "c")], [("b", "c"), ("a", "b"), ("a", "bc")]]
    made = [
        transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, merges)))
        for merges in orders
    ]
    assert tokenizer_hash(made[0]) != tokenizer_hash(made[1])


@pytest.mark.slow
def test_a_pass_does_not_resume_with_another_tokenizer(two, texts, tmp_path):
    """The text is lower-case, so both read the same ids: the tokenizer's behaviour counts, not its output here."""
    lower, cased = two
    texts = [*texts, "W1 w2 W3"]
    for interrupted in (None, 5):
        path = tmp_path / f"{interrupted}.safetensors"
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                read(lower, texts, path, stop=interrupted)
        else:
            read(lower, texts, path)
        with pytest.raises(ValueError, match=naming(path, "batches.tokenizer")):
            read(cased, texts, path)
        np.testing.assert_array_equal(read(lower, texts, path)["mean"], read(lower, texts, tmp_path / "new")["mean"])
        (tmp_path / "new").unlink()


def test_counts_of_another_tokenizer_are_refused(two, texts):
    lower, cased = two
    counts = interp.corpora.count_unigrams(lower, texts)
    with pytest.raises(ValueError, match=naming("counts", "texts", "tokenizer")):
        interp.frequency.study(cased, texts, unigram=counts, progress=False)
    with pytest.raises(ValueError, match=naming("counts", 67, "tokenizers")):
        counts.merge(interp.corpora.count_unigrams(cased, texts))


def test_counts_that_do_not_name_the_whole_tokenizer_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"counts": np.arange(9)}, tmp_path / "old.safetensors", {"vocabulary": "abc", "corpus": "c"})
    with pytest.raises(ValueError, match=naming("old.safetensors", "interp unigrams")):
        unigrams.load(tmp_path / "old.safetensors")


def test_versions_of_a_half_done_pass(load_toy, texts, tmp_path, monkeypatch):
    """Both versions are named; weights, counts and states are identified by content only."""
    model = load_toy("gpt2")
    path = tmp_path / "pass.safetensors"
    read(model, texts, path)
    weights = interp.models.identity.weight_hash(model)
    real = result.version
    for package in ("interp", "transformer-lens", "transformers", "tokenizers"):
        monkeypatch.setattr(result, "version", lambda name, p=package: "0.0.1" if name == p else real(name))
        with pytest.raises(ValueError, match=naming(path, f"versions.{package}", real(package), "0.0.1")):
            read(model, texts, path)
        assert interp.models.identity.weight_hash(model) == weights
    monkeypatch.setattr(result, "version", real)
    read(model, texts, path)


def test_slow_tokenizers_have_an_identity(tmp_path):
    """Slow tokenizers are those written in Python, such as the Japanese ones."""

    class Slow:
        def __init__(self, **options):
            self.init_kwargs = {"name_or_path": "anywhere", "do_lower_case": True} | options

        def get_vocab(self):
            return {"a": 0, "b": 1}

        def get_added_vocab(self):
            return {}

    assert tokenizer_hash(Slow()) == tokenizer_hash(Slow(name_or_path="elsewhere"))
    assert tokenizer_hash(Slow()) != tokenizer_hash(Slow(do_lower_case=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:50% of the tokens")
def test_two_threads_count_with_two_tokenizers(two, texts):
    from concurrent.futures import ThreadPoolExecutor

    upper = [*texts, *(text.upper() for text in texts)] * 20
    alone = [interp.corpora.count_unigrams(model, upper).counts for model in two]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            found = list(pool.map(lambda model: interp.corpora.count_unigrams(model, upper).counts, two))
            assert all((a == b).all() for a, b in zip(found, alone, strict=True))
    assert isinstance(Unigrams(alone[0], "x"), Unigrams)

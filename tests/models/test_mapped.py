"""Parameters that lie in safetensors files are found there, whatever the files call them, and no others are."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import HF_MODELS

from interp.models.loading.mapped import MappedWeights
from interp.models.loading.pretrained import Stored, read_config
from interp.testing import randomise


@pytest.fixture
def directory(tmp_path):
    hf = HF_MODELS["gpt2"]()
    randomise(hf)
    hf.save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


def _mapped(directory):
    stored = Stored(str(directory), None, read_config(str(directory)), "bridge")
    return stored.checked(), stored.files


def test_all_weights_of_several_files_are_mapped_again(directory):
    model, files = _mapped(directory)
    assert len(files) > 1
    again = MappedWeights(model, files).again()
    parameters = dict(model.named_parameters())
    assert again.keys() == parameters.keys()
    for name, weight in again.items():
        assert weight.data_ptr() != parameters[name].data_ptr()
        assert torch.equal(weight, parameters[name])


def test_settled_weights_are_left_out(directory):
    again = MappedWeights(*_mapped(directory)).again(("transformer.h.", "transformer.ln_f."))
    assert again.keys() == {"transformer.wte.weight", "transformer.wpe.weight"}


def test_names_in_the_files_may_lack_the_name_of_the_model(tmp_path):
    hf = HF_MODELS["gpt2"]()
    randomise(hf)
    hf.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    save_file({name.removeprefix("transformer."): weight for name, weight in weights.items()}, path, {"format": "pt"})
    model, files = _mapped(tmp_path)
    assert MappedWeights(model, files).again().keys() == dict(model.named_parameters()).keys()


def test_old_names_of_a_bert(tmp_path):
    hf = HF_MODELS["bert"]()
    randomise(hf)
    hf.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = load_file(path)
    for new, before in old.items():
        weights = {name.replace(new, before): weight for name, weight in weights.items()}
    save_file(weights, path, {"format": "pt"})
    model, files = _mapped(tmp_path)
    again = MappedWeights(model, files).again()
    norms = [name for name in again if "LayerNorm" in name]
    assert norms == [name for name, _ in model.named_parameters() if "LayerNorm" in name]
    assert all(torch.equal(again[name], model.get_parameter(name)) for name in again)


def test_other_numbers_in_memory_are_not_taken_for_those_of_a_file(directory):
    model, files = _mapped(directory)
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    assert MappedWeights(model, files).again() == {}


def test_converted_numbers_are_not_taken_for_those_of_a_file(directory):
    model, files = _mapped(directory)
    assert MappedWeights(model.to(torch.bfloat16), files).again() == {}


def test_a_parameter_that_was_replaced_stays_as_it_is(directory):
    model, files = _mapped(directory)
    model.transformer.wpe.weight.data = model.transformer.wpe.weight.data.clone()
    again = MappedWeights(model, files).again()
    assert again.keys() == dict(model.named_parameters()).keys() - {"transformer.wpe.weight"}

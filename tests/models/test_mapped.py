"""What was read from safetensors files is released, and nothing else."""

import sys

import pytest
import torch
import transformers

from interp.models.loading.mapped import MappedFiles
from interp.models.loading.pretrained import Stored, read_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says where files are mapped")

MATRIX = 2000 * 512 * 4
"""Bytes of the embeddings, which are most of the model."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    config = transformers.GPT2Config(vocab_size=2000, n_positions=24, n_embd=512, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(path, max_shard_size="3MB")
    return path


def _mapped(directory):
    stored = Stored(str(directory), None, read_config(str(directory)), "bridge")
    return stored.checked(), stored.files


def _of_files():
    """The bytes of mapped files that the process has in memory."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssFile"))


def test_what_was_read_is_released_and_can_be_read_again(directory):
    model, files = _mapped(directory)
    assert len(files) > 1
    mapped = MappedFiles(model, files)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    read = _of_files()
    mapped.release()
    assert read - _of_files() > 0.9 * MATRIX
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_another_model_from_the_same_files_keeps_what_was_written_to_it(directory):
    other, _ = _mapped(directory)
    other.transformer.wte.weight.data[0] = 7
    MappedFiles(*_mapped(directory)).release()
    assert (other.transformer.wte.weight[0] == 7).all()


def test_memory_of_its_own_is_left_alone(directory):
    model, files = _mapped(directory)
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    before = model.transformer.wte.weight.detach().clone()
    MappedFiles(model, files).release()
    assert torch.equal(model.transformer.wte.weight, before)


def test_weights_that_are_replaced_leave_nothing_else_to_release(directory):
    model, files = _mapped(directory)
    mapped = MappedFiles(model, files)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    matrices = [torch.full((2000, 512), float(number)) for number in range(20)]  # some of them where the files were
    mapped.release()
    assert all((matrix == number).all() for number, matrix in enumerate(matrices))

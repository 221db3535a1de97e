"""Builds tokenizer.json and tokenizer_config.json from a GGUF file's metadata. Knows no weights.

GGUF names the rule that splits text before merging; it does not hold it. The rules we know are below, and a
file with another one is refused: a near miss would give wrong ids without a word.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from engine.errors import ModelError
from engine.models.gguf import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # kinds of token that are found in text before anything is split
_LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_3_RULES = ("llama-bpe", "llama-v3", "llama3")


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The file's tokenizer; raises ModelError for a kind or a splitting rule that we do not know."""
    kind, rule = file.value("tokenizer.ggml.model"), file.optional("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise ModelError(
            f"the GGUF file's tokenizer is of the kind {kind!r}, only byte-level BPE ('gpt2') is supported; "
            "use the model's Hugging Face directory"
        )
    tokens = file.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in file.optional("tokenizer.ggml.merges", [])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=rule in _LLAMA_3_RULES))
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, tokens, file.value("tokenizer.ggml.token_type"))
    if file.optional("tokenizer.ggml.add_bos_token", rule in _LLAMA_3_RULES):
        bos = file.value("tokenizer.ggml.bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """What tokenizer_config.json would say."""
    tokens = file.value("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.value("llama.context_length"),
        "chat_template": file.optional("tokenizer.chat_template"),
    }
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown")):
        token_id = file.optional(f"tokenizer.ggml.{key}_token_id")
        config[name] = None if token_id is None else tokens[token_id]
    return {key: value for key, value in config.items() if value is not None}


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    if rule in _LLAMA_3_RULES:
        split = pre_tokenizers.Split(Regex(_LLAMA_3_SPLIT), behavior="isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, to_bytes])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match rule:
        case "smollm":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
        case "gpt-2":
            return words
        case _:
            raise ModelError(
                f"the GGUF file splits text by the rule {rule!r}, which is not known here; "
                "use the model's Hugging Face directory"
            )


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind != 1]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in marked if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in marked
            if kind == _USER_DEFINED
        ]
    )

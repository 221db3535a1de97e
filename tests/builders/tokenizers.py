"""Small tokenizers of the two kinds that models use, trained on a few lines in many scripts."""

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = (
    "The quick brown fox jumps over the lazy dog. The capital of France is Paris.",
    "naïve café coöperate Zürich Straße — “quoted”…",
    "漢字仮名交じり文を分割する。中文字符也在这里。한국어도 있습니다.",
    "Привет, мир! Γειά σου Κόσμε. مرحبا بالعالم शांति",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😀😀 👍🏽 e\u0301 \ufffd\ufffd",
    "def f(x):\n    return x ** 2\n\n\t# done\r\n",
)


@cache
def byte_level_tokenizer_json() -> str:
    """A byte-level BPE with merges that split characters, special tokens and an ordinary added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens(
        [AddedToken("<think here>", normalized=False), AddedToken("añadido", normalized=False)]
    )
    return str(tokenizer.to_str())


@cache
def sentencepiece_tokenizer_json() -> str:
    """A Llama-2-like vocabulary: words with U+2581, a few pieces, and a token for each byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁Hello", "▁world", "Hello", "wor", "ld", "漢", "é", "😀", "▁▁"]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": number,
                    "content": pieces[number],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for number in range(3)
            ],
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "byte_fallback": True,
                "vocab": {piece: number for number, piece in enumerate(pieces)},
                "merges": [],
            },
        }
    )

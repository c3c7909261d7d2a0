"""Tiny vocabularies: a byte-level BPE ("gpt2") and a SentencePiece one ("llama"), which spell any text; and
one of a few symbols, so small that all texts of three tokens can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import gguf

N_VOCAB = 320
# fmt: off
MERGES = [
    "Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "Ġ o", "e n", "Ġ c",
    "i t", "i s", "a n", "o r", "e s", "Ġ b", "e d", "Ġ f", "in g", "Ġ p", "o u", "Ġa n", "a l", "a r",
    "Ġt o", "Ġ m", "Ġo f", "Ġ in", "Ġ d", "Ġ h", "Ġan d", "i c", "a s", "l e", "Ġt h", "i on", "o m", "l l",
    "en t", "Ġ n", "Ġ l", "s t", "Ġ re", "v e", "Ġ e", "r o", "l y", "Ġb e", "Ġ g", "Ġ T", "c t", "Ġ S",
    "i d", "o t",
]
# fmt: on


@dataclass(frozen=True)
class Vocabulary:
    model: str  # tokenizer.ggml.model
    pre: str
    tokens: list[str]
    types: list[int]
    eos: int
    mask: int
    ends: tuple[int, ...]  # what llama.cpp takes for the end of a generation
    bos: int | None = None
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores:
            writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges(self.merges)
        if self.bos is not None:
            writer.add_bos_token_id(self.bos)
        writer.add_add_bos_token(self.bos is not None)
        writer.add_eos_token_id(self.eos)


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where it is visible, else a letter from 256 up."""
    letters, spare = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


def byte_level() -> Vocabulary:
    tokens = _byte_letters() + [merge.replace(" ", "") for merge in MERGES]
    specials = ["<|end|>", "<|mask|>", "<|im_start|>", "<|im_end|>"]
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(specials)
    tokens += specials
    while len(tokens) < N_VOCAB:
        tokens.append(f"<|unused{len(tokens)}|>")
        types.append(gguf.TokenType.UNUSED)
    return Vocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        types=[int(kind) for kind in types],
        merges=list(MERGES),
        eos=tokens.index("<|end|>"),
        mask=tokens.index("<|mask|>"),
        ends=(tokens.index("<|end|>"), tokens.index("<|im_end|>")),
    )


def sentence_piece() -> Vocabulary:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [gguf.TokenType.BYTE] * 256
    scores = [0.0] * len(tokens)
    pieces = ["▁", *"etaoinshrdlu", "▁t", "he", "▁a", "in", "re", "on", "▁the", "er", "▁s", "at", "▁w", "en"]
    for rank, piece in enumerate(pieces):
        tokens.append(piece)
        types.append(gguf.TokenType.NORMAL)
        scores.append(-float(rank))
    while len(tokens) < N_VOCAB:
        tokens.append(f"<unused{len(tokens)}>")
        types.append(gguf.TokenType.UNUSED)
        scores.append(0.0)
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=tokens,
        types=[int(kind) for kind in types],
        scores=scores,
        bos=2,
        eos=1,
        mask=4,
        ends=(1,),
    )


def symbols() -> Vocabulary:
    """24 tokens: digits, the minus sign, eight letters, three pairs, and two specials."""
    merges = ["0 7", "1 2", "- 3"]
    pieces = [*"0123456789-abcdfghi", *(merge.replace(" ", "") for merge in merges)]
    tokens = [*pieces, "<|end|>", "<|mask|>"]
    return Vocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        types=[int(gguf.TokenType.NORMAL)] * len(pieces) + [int(gguf.TokenType.CONTROL)] * 2,
        merges=merges,
        eos=tokens.index("<|end|>"),
        mask=tokens.index("<|mask|>"),
        ends=(tokens.index("<|end|>"),),
    )

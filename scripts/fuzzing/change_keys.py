"""Mutations of the metadata: keys, their types and values, arrays, texts, the vocabulary."""

from __future__ import annotations

from random import Random

from gguf import GGUFValueType as Kind

from fuzzing.gguf_parts import Key, Parts
from fuzzing.oddities import (
    ARCHITECTURES,
    BAD_TEXT,
    EDGES,
    FLOATS,
    KNOWN_KEYS,
    NUMBERS,
    any_key,
    arrays,
    full_name,
    number,
)


def remove_key(dice: Random, parts: Parts) -> None:
    parts.keys.remove(any_key(dice, parts))


def remove_many_keys(dice: Random, parts: Parts) -> None:
    share = dice.choice([0.1, 0.5, 0.9, 1.0])
    parts.keys = [key for key in parts.keys if dice.random() >= share]


def retype_key(dice: Random, parts: Parts) -> None:
    """Another type, the value translated as well as it goes."""
    key = any_key(dice, parts)
    key.kind = dice.choice([*NUMBERS, int(Kind.STRING), int(Kind.ARRAY), 13, 2**31])
    if key.kind == Kind.ARRAY:
        key.items = dice.choice([*NUMBERS, int(Kind.STRING), int(Kind.ARRAY)])
    elif isinstance(key.value, list):
        key.value = len(key.value)


def absurd_number(dice: Random, parts: Parts) -> None:
    numbers = [key for key in parts.keys if key.kind in NUMBERS]
    if numbers:
        key = dice.choice(numbers)
        key.value = number(dice, key.value)


def absurd_wide_number(dice: Random, parts: Parts) -> None:
    """The same in 64 bits, so that it does not wrap."""
    numbers = [key for key in parts.keys if key.kind in NUMBERS]
    if numbers:
        key = dice.choice(numbers)
        key.value = number(dice, key.value)
        key.kind = int(
            Kind.FLOAT64 if isinstance(key.value, float) else dice.choice([Kind.UINT64, Kind.INT64])
        )


def number_per_layer(dice: Random, parts: Parts) -> None:
    """A number becomes an array, as llama.cpp takes one for each layer."""
    numbers = [key for key in parts.keys if key.kind in NUMBERS]
    if numbers:
        key = dice.choice(numbers)
        length = dice.choice([0, 1, 2, 4, 5, 6, 512, 513])
        key.items, key.kind = key.kind, int(Kind.ARRAY)
        key.value = [key.value if dice.random() < 0.8 else number(dice, key.value) for _ in range(length)]


def duplicate_key(dice: Random, parts: Parts) -> None:
    key = any_key(dice, parts)
    parts.keys.append(Key(key.name, key.kind, key.value, key.items))


def rename_key(dice: Random, parts: Parts) -> None:
    key = any_key(dice, parts)
    key.name = dice.choice(
        [b"", key.name + b"x", key.name.upper(), b"\xff" + key.name, b"x" * 70000, key.name[:-1]]
    )


def known_key(dice: Random, parts: Parts) -> None:
    """A key some architecture has, added or replaced, with a plausible value or an absurd one."""
    name = full_name(dice, parts, dice.choice(KNOWN_KEYS))
    roll = dice.random()
    if roll < 0.45:
        parts.set(name, Kind.UINT32, dice.choice([0, 1, 2, 3, 4, 8, 16, 32, 64, *EDGES]))
    elif roll < 0.6:
        parts.set(name, Kind.FLOAT32, dice.choice([0.5, 1.0, *FLOATS]))
    elif roll < 0.7:
        parts.set(name, Kind.BOOL, dice.random() < 0.5)
    elif roll < 0.8:
        parts.set(
            name,
            Kind.STRING,
            dice.choice([b"none", b"linear", b"yarn", b"longrope", b"mean", b"gelu", *BAD_TEXT]),
        )
    else:
        length = dice.choice([1, 2, 3, 4, 5, 6, 64])
        parts.set(name, Kind.ARRAY, [dice.choice([0, 1, 2, 4, *EDGES]) for _ in range(length)], Kind.INT32)


def another_architecture(dice: Random, parts: Parts) -> None:
    """Says it is of another architecture, its keys renamed along."""
    old, new = parts.architecture, dice.choice([*ARCHITECTURES, *BAD_TEXT[:6], b"unheard-of"])
    for key in parts.keys:
        if key.name.startswith(old + b"."):
            key.name = new + key.name[len(old) :]
    parts.set(b"general.architecture", Kind.STRING, new)


def array_length(dice: Random, parts: Parts) -> None:
    if not (found := arrays(parts)):
        return
    key = dice.choice(found)
    roll = dice.random()
    if roll < 0.3:
        key.value = key.value[: dice.randrange(len(key.value) + 1)]
    elif roll < 0.5:
        key.value = key.value + key.value[: dice.choice([1, 7, len(key.value)])]
    elif roll < 0.65:
        key.value = []
    else:
        key.count = dice.choice([len(key.value) + 1, max(0, len(key.value) - 1), *EDGES])


def array_items(dice: Random, parts: Parts) -> None:
    """Items out of place, or all of another type."""
    if not (found := arrays(parts)):
        return
    key = dice.choice(found)
    if dice.random() < 0.4:
        key.items = dice.choice([*NUMBERS, int(Kind.STRING), int(Kind.ARRAY), 13])
        return
    for _ in range(dice.choice([1, 1, 3, 50])):
        if key.value:
            at = dice.randrange(len(key.value))
            key.value[at] = dice.choice(BAD_TEXT) if key.items == Kind.STRING else number(dice, key.value[at])


def bad_text(dice: Random, parts: Parts) -> None:
    texts = [key for key in parts.keys if key.kind == Kind.STRING]
    if texts:
        dice.choice(texts).value = dice.choice(BAD_TEXT)


def vocabulary(dice: Random, parts: Parts) -> None:
    """A tokenizer that does not hang together."""
    tokens, model = parts.key(b"tokenizer.ggml.tokens"), parts.key(b"tokenizer.ggml.model")
    change = dice.randrange(8)
    if change == 0 and tokens is not None and tokens.value:
        at = dice.randrange(len(tokens.value))
        tokens.value[at] = tokens.value[dice.randrange(len(tokens.value))]
    elif change == 1 and tokens is not None and tokens.value:
        for _ in range(dice.choice([1, 20, 300])):
            at = dice.randrange(len(tokens.value))
            tokens.value[at] = dice.choice([*BAD_TEXT, b"\xc4\xa0", b"\n", b"<0x41>", f"t{at}".encode()])
    elif change == 2 and model is not None:
        model.value = dice.choice(
            [b"llama", b"gpt2", b"bert", b"t5", b"rwkv", b"plamo2", b"none", b"no_vocab", b"x"]
        )
    elif change == 3:
        names = (
            "default",
            "llama-bpe",
            "qwen2",
            "qwen35",
            "deepseek-v3",
            "gpt-4o",
            "tekken",
            "chameleon",
            "?",
        )
        parts.set(b"tokenizer.ggml.pre", Kind.STRING, dice.choice(names).encode())
    elif change == 4:
        parts.set(
            b"tokenizer.ggml.token_type",
            Kind.ARRAY,
            [dice.choice([0, 1, 2, 3, 4, 5, 6, 99, -1])] * 320,
            Kind.INT32,
        )
    elif change == 5:
        merges = dice.choice([[b"a"], [b""], [b" "], [b"a b c"], [b"nowhere nothing"] * 4, [b"\xff \xfe"]])
        parts.set(b"tokenizer.ggml.merges", Kind.ARRAY, merges, Kind.STRING)
    elif change == 6:
        parts.set(
            b"tokenizer.ggml.scores",
            Kind.ARRAY,
            [dice.choice(FLOATS) for _ in range(dice.choice([0, 5, 320]))],
            Kind.FLOAT32,
        )
    else:
        name = dice.choice(["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "fim_pre"])
        parts.set(
            f"tokenizer.ggml.{name}_token_id".encode(), Kind.UINT32, dice.choice([0, 319, 320, 321, *EDGES])
        )

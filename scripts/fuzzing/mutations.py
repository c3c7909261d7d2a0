"""Everything the fuzzer does to a file, by name: ANY, HEADS_ONLY and BYTES are the table.

A mutation changes a file's `Parts` in place; those of BYTES change the written file instead.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzzing import change_frame, change_heads, change_keys, change_tensors
from fuzzing.gguf_parts import Parts

Change = Callable[[Random, Parts], None]
ByteChange = Callable[[Random, bytes, list[int]], bytes]

HEAD, TARGET = "head", "target"

ANY: dict[str, Change] = {
    "remove key": change_keys.remove_key,
    "remove many keys": change_keys.remove_many_keys,
    "retype key": change_keys.retype_key,
    "absurd number": change_keys.absurd_number,
    "absurd wide number": change_keys.absurd_wide_number,
    "number per layer": change_keys.number_per_layer,
    "duplicate key": change_keys.duplicate_key,
    "rename key": change_keys.rename_key,
    "known key": change_keys.known_key,
    "another architecture": change_keys.another_architecture,
    "array length": change_keys.array_length,
    "array items": change_keys.array_items,
    "bad text": change_keys.bad_text,
    "vocabulary": change_keys.vocabulary,
    "remove tensor": change_tensors.remove_tensor,
    "no tensors": change_tensors.no_tensors,
    "duplicate tensor": change_tensors.duplicate_tensor,
    "rename tensor": change_tensors.rename_tensor,
    "known tensor": change_tensors.known_tensor,
    "swap tensors": change_tensors.swap_tensors,
    "reshape tensor": change_tensors.reshape_tensor,
    "reshape all": change_tensors.reshape_all,
    "retype tensor": change_tensors.retype_tensor,
    "retype all": change_tensors.retype_all,
    "move tensor": change_tensors.move_tensor,
    "bad weights": change_tensors.bad_weights,
    "frame": change_frame.frame,
}
HEADS_ONLY: dict[str, Change] = {
    "taps": change_heads.taps,
    "mask token": change_heads.mask_token,
    "draft table": change_heads.draft_table,
    "fork's format": change_heads.forks_format,
}
BYTES: dict[str, ByteChange] = {
    "cut": change_frame.cut,
    "flip head bits": change_frame.flip_head_bits,
    "flip bits": change_frame.flip_bits,
    "overwrite": change_frame.overwrite,
    "shift": change_frame.shift,
    "not GGUF": change_frame.not_gguf,
}
# How often each is drawn: more often what reaches deep into llama.cpp, less what any reader refuses.
WEIGHTS = {
    "known key": 4,
    "absurd number": 4,
    "another architecture": 3,
    "vocabulary": 3,
    "reshape all": 2,
    "not GGUF": 0.3,
}


def names(role: str) -> list[str]:
    return [*ANY, *(HEADS_ONLY if role == HEAD else ()), *BYTES]


def draw(dice: Random, role: str) -> list[str]:
    """One mutation, sometimes several; what changes the bytes comes last."""
    pool = names(role)
    count = 1 if dice.random() < 0.75 else dice.choice([2, 2, 3, 4])
    drawn = dice.choices(pool, [WEIGHTS.get(name, 1) for name in pool], k=count)
    return sorted(drawn, key=lambda name: name in BYTES)


def mutate(dice: Random, parts: Parts, drawn: list[str]) -> bytes:
    """The file, mutated; `parts` are used up."""
    changes = ANY | HEADS_ONLY
    for name in drawn:
        needs = (
            parts.rows
            if "tensor" in name or name in ("reshape all", "bad weights", "draft table")
            else parts.keys
        )
        if name in changes and needs:
            changes[name](dice, parts)
    data = parts.write()
    for name in drawn:
        if name in BYTES and data:
            data = BYTES[name](dice, data, parts.seams)
    return data

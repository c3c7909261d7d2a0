"""`grammar=` and `json_schema=`: what a caller gives, as one grammar in llama.cpp's notation (GBNF)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from pydflash2.errors import error_from_status
from pydflash2.json_schema import normalised, parsed
from pydflash2.native import drain_log, ffi, lib, string

__all__ = ["JsonSchema", "SchemaModel", "grammar_of"]


@runtime_checkable
class SchemaModel(Protocol):
    """A class that knows its schema, as pydantic's models do."""

    def model_json_schema(self) -> Mapping[str, Any]: ...


JsonSchema = Mapping[str, Any] | str | bool | type[Any] | SchemaModel


def grammar_of(grammar: str | None, json_schema: JsonSchema | None) -> str | None:
    """The grammar that a text must follow, or None where neither argument asks for one.

    json_schema: a dict, JSON text, True (any JSON value), or a class with `model_json_schema()`. Raises
    ValueError, with the place in the schema, where not everything the schema demands can be held to.
    """
    if grammar is not None and json_schema is not None:
        raise ValueError(
            "both grammar and json_schema are given: a text can follow one of them, leave one out"
        )
    if grammar is not None:
        return _grammar_text(grammar)
    if json_schema is not None:
        return _grammar_of_schema(json_schema)
    return None


def _grammar_text(grammar: str) -> str:
    if not isinstance(grammar, str):
        raise TypeError(f"grammar is {type(grammar).__name__}: give its text in GBNF, llama.cpp's notation")
    if not grammar.strip():
        raise ValueError("grammar is empty: give GBNF with a rule named root, or leave it out")
    if "\0" in grammar:  # it would end the text on its way into the core
        line = grammar.count("\n", 0, grammar.index("\0")) + 1
        raise ValueError(f"grammar has a NUL character in line {line}: remove it")
    try:
        grammar.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"grammar has half a surrogate pair at character {error.start}, which no text can hold: remove it"
        ) from None
    return grammar


def _grammar_of_schema(json_schema: JsonSchema) -> str:
    schema: Any = json_schema
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    elif isinstance(schema, str):
        schema = parsed(schema)
    if not isinstance(schema, (Mapping, bool)):
        raise TypeError(
            f"json_schema is {type(json_schema).__name__}: give a dict, JSON text, True, or a class with "
            "model_json_schema(), such as a pydantic model"
        )
    text = normalised(schema).encode()
    capacity = 16384
    while True:
        data = ffi.new("char[]", capacity)
        count = lib.pd2_json_schema_to_grammar(text, data, capacity)
        if count == -(2**31):
            drain_log()
            raise error_from_status(lib.PD2_ERROR_ARGUMENT, string(lib.pd2_last_error()))
        if count >= 0:
            return bytes(ffi.buffer(data, count)).decode()
        capacity = -count

"""`grammar=` and `json_schema=` before a token is made: what is taken, what is refused, in which words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import pydflash2
from gbnf import Grammar
from pydflash2.structured import grammar_of
from tiny.files import TinyFiles
from tiny.native import Native, ffi, lib

JSON = r"""
# a list of numbers
root   ::= ws (list | "null") ws   # with spaces
list   ::= "[" ws (number (ws "," ws number)*)? ws "]"
number ::= "-"? ("0" | [1-9] [0-9]{0,8}) ("." [0-9]+)?
ws     ::= [ \t\n]*
"""


@pytest.fixture(scope="module")
def engine(tiny: TinyFiles) -> Iterator[Native]:
    with Native(tiny.target("qwen3")) as native:
        yield native


def refusal(engine: Native, grammar: str | bytes) -> str | None:
    """Why a grammar is refused, or None."""
    data = grammar.encode() if isinstance(grammar, str) else grammar
    status = lib.pd2_check_grammar(engine.engine, data)
    if status == lib.PD2_OK:
        return None
    assert status == lib.PD2_ERROR_ARGUMENT
    return ffi.string(lib.pd2_last_error()).decode()


# ---- grammars ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "yes" | "no"',
        JSON,
        JSON.replace("\n", "\r\n"),
        'root ::= ("a"*)* "b"',  # a repetition of what may be empty, which the sampler can follow
        'root ::= item{2,5} [^"\\\\] . \nitem ::= "é" | "\\u00e9\\x41" | [a-]',
        'root ::= <[3]> !<[4]> "x"',
        'root ::= ([a-z] [a-z]? [a-z]? ",")* [a-z]',  # ambiguous, but not within a token
        "root ::= " + "(" * 200 + '"a"' + ")" * 200,
        'root ::= "a"{0,2000}',
        "root ::= " + " | ".join(f'"{i}"' for i in range(1500)),
    ],
)
def test_good_grammars_are_taken(engine: Native, grammar: str) -> None:
    assert refusal(engine, grammar) is None


CHAIN = "".join(f"r{i} ::= r{i + 1}{{}}\n" for i in range(3000)) + 'r3000 ::= "a"\n'
TWICE = "".join(f"r{i} ::= r{i + 1} {{0}} | r{i + 1} {{1}}\n" for i in range(60)) + 'r60 ::= "a"\n'

HOSTILE = {
    "empty": ("", "the grammar is empty: it needs at least a rule 'root'"),
    "comment": ("# root\n", "the grammar is empty"),
    "no root": ('Root ::= "a"', "no rule 'root'"),
    "undefined": ('root ::= "a"\n | foo', "line 2, column 2"),
    "undefined rule": ('root ::= "a" foo\n', "rule 'foo', which rule 'root' (line 1) uses, is not defined"),
    "defined twice": (
        'root ::= a\na ::= "b"\na ::= "c"',
        "line 3, column 1 (at 'a ::= \"c\"'): rule 'a' is already",
    ),
    "no arrow": ('root = "a"', "line 1, column 6 (at '= \"a\"'): expecting ::="),
    "open string": ('root ::= "a\n', "line 1, column 10 (at '\"a'): this string is not closed"),
    "open class": ("root ::= [a-\n", "these brackets are not closed"),
    "open group": ('root ::= "x" ("a" | "b"\n', "line 1, column 14"),
    "stray )": ('root ::= "a")', "this ')' closes nothing"),
    "escape": ('root ::= "\\q"', "(at '\\q\"'): unknown escape"),
    "hex": ('root ::= "\\xZZ"', "expecting 2 hex chars"),
    "nothing repeated": ("root ::= * ", "expecting preceding item"),
    "reversed": ('root ::= "a" [z-a]', "rule 'root' (line 1) has a character range that runs backwards"),
    "left recursion": ('root ::= root "a" | "b"', "rule 'root' (line 1) comes back to itself"),
    "hidden recursion": ('root ::= e root "a" | "b"\ne ::= f\nf ::= ""', "comes back to itself"),
    "empty repeated": ('root ::= ("a" | )* "b"', "repetition of something that may be empty"),
    "endless": ('root ::= "a" root', "no text matches rule 'root' (line 1)"),
    "empty text": ('root ::= "" | ""', "only the empty text matches"),
    "no character": ('root ::= "\\x00"', "no text matches"),
    "deep": ("root ::= " + "(" * 500_000, "nested more than 200 deep"),
    "{5,2}": ('root ::= "a"{5,2}', "(at '{5,2}'): this repetition's maximum is less"),
    "{1000000}": ('root ::= "a"{1000000}', "more than 2000 repetitions"),
    "{0,5000}": ('root ::= "a"{0,5000}', "more than 2000 repetitions"),  # llama.cpp would make it any number
    "{2^64}": ('root ::= "a"{18446744073709551616}', "more than 2000 repetitions"),
    "{": ('root ::= "a"{2', "this repetition is not closed"),
    "{}": ('root ::= "a"{}', "a number is missing"),
    "long written out": ('root ::= "' + "a" * 10_000 + '"{0,2000}', "has become longer than"),
    "nested repetitions": ('root ::= ((("a"{0,99}){0,99}){0,99}){0,99}', "repetitions"),
    "huge": ('root ::= "' + "a" * 2_000_000 + '"', "at most 1048576 are taken"),
    "not UTF-8": (b'root ::= "a\xff"', "line 1, column 12: byte 0xFF is not UTF-8"),
    "surrogate": (b'root ::= "\xed\xa0\x80"', "is not UTF-8"),
    "cut UTF-8": (b'root ::= "\xf0\x9f\x98', "is not UTF-8"),
    "token number": ("root ::= <[99999]>", "names token 99999, but the target's are 0 to"),
    "token number 2^64": ("root ::= <[18446744073709551616]>", "no token has such a number"),
    "token name": (
        'root ::= "a" <nosuch>',
        "line 1, column 14 (at '<nosuch>'): the target has no token <nosuch>",
    ),
    "token open": ('root ::= "a" <' + "x" * 100_000, "a token must end in '>'"),
    "chain": ("root ::= r0\n" + CHAIN.format(*[""] * 3000), "starts with rules that start with rules"),
    "2^60 rules": (
        "root ::= r0\n" + TWICE.replace("{0}", "").replace("{1}", ""),
        "can begin in more than 2000 ways",
    ),
    "2^60 starts": (
        "root ::= r0\n" + TWICE.replace("{0}", '"a"').replace("{1}", '"b"'),
        "more than 2000 ways",
    ),
    "alternatives": ("root ::= " + " | ".join(f'"{i}"' for i in range(5000)), "more than 2000 ways"),
    "2^n stacks": ('root ::= "a" root "b" | "a" root "c" | "d"', "too many ways"),
    "2^n paths": ('root ::= (" "+)+ "x"', "too many ways"),
    "2^n paths, two by two": ("root ::= (" + " | ".join(["[a] [b]"] * 6) + ')* "x"', "too many ways"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_with_the_place(
    engine: Native, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    grammar, words = HOSTILE[name]
    reason = refusal(engine, grammar)
    assert reason is not None and words in reason, reason
    assert len(reason) < 400
    assert capfd.readouterr() == ("", "")


def test_a_token_that_ends_the_text_cannot_be_asked_for(engine: Native) -> None:
    end = next(i for i in range(engine.target_info.n_vocab) if lib.pd2_token_is_end(engine.engine, i))
    assert "which ends the text" in (refusal(engine, f'root ::= "a" <[{end}]>') or "")


def test_mutated_grammars_are_taken_or_refused(engine: Native, capfd: pytest.CaptureFixture[str]) -> None:
    seeds = [JSON, *(grammar for grammar, _ in HOSTILE.values() if len(grammar) < 200)]
    pieces = [
        b"(",
        b")",
        b"{9}",
        b"{3,1}",
        b"*",
        b"+?",
        b"|",
        b'"',
        b"[",
        b"]",
        b"\\",
        b"<[1]>",
        b"\n",
        b"::=",
        b"\xff",
        b"root",
    ]
    rng, n_taken = random.Random(1), 0
    for _ in range(2000):
        seed = rng.choice(seeds)
        data = bytearray(seed.encode() if isinstance(seed, str) else seed)
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(0, len(data))
            if rng.random() < 0.4:
                del data[at : at + rng.randint(1, 6)]
            else:
                data[at:at] = rng.choice(pieces)
        reason = refusal(engine, bytes(data).replace(b"\0", b""))
        assert reason is None or (len(reason) > 20 and "grammar" in reason)
        n_taken += reason is None
    assert 20 < n_taken < 1900  # else the mutations test one side only
    assert capfd.readouterr() == ("", "")


# ---- schemas: taken ------------------------------------------------------------------------------

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "left": {"$ref": "#/$defs/node"},
                "n": {"type": "integer"},
            },
            "required": ["name"],
        }
    },
    "$ref": "#/$defs/node",
}
NAMES = ("string", "root", "space", "value", "a-kv", "a", ']^-\\"\n')  # that rules of the grammar have, too
# schema, documents it must let through, documents it must not
SCHEMAS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "any": (True, [None, 1, "a", {"b": [1.5, {}]}], []),
    "empty": ({}, [[], "é"], []),
    "types": ({"type": ["integer", "null"]}, [3, None, -7], ["3", 1.5, True]),
    "object": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
            "required": ["a"],
        },
        [{"a": 1}, {"a": 2, "b": True}],
        [{}, {"b": True}, {"a": "1"}, {"a": 1, "c": 1}],
    ),
    "no properties": ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
    "required alone": ({"required": ["x"]}, [{"x": 1}], [{}]),
    "map": ({"additionalProperties": {"type": "integer"}}, [{}, {"k": 1, "l": 2}], [{"k": "1"}]),
    "array": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        [[1], [1, 2, 3]],
        [[], [1, 2, 3, 4], ["a"]],
    ),
    "tuple": (
        {"prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
        [["a", None]],
        [["a"], [None, "a"]],
    ),
    "no items": ({"type": "array", "items": False}, [[]], [[1]]),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "éé€"], ["a", "abcd"]),
    "dates": (
        {"type": "string", "format": "date-time"},
        ["2024-02-29T12:00:00Z"],
        ["2024-13-01T12:00:00Z", "noon"],
    ),
    "uuid": ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
    "pattern": ({"pattern": r"^(\d{3}-)?[^a-c]+\.x*é*$"}, ["123-d.xx", "z.éé"], ["a.", "dxx", "d.y"]),
    "pattern of signs": (
        {"pattern": r"^[\w.+-]+@[a-z]*\/(?:a|b)?.\s$"},
        ["a.b+c@x/a! "],
        ["@x/a! ", "a@X/a! "],
    ),
    "bounds": ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12.5}, [-3, 0, 12], [-4, 13, 1.5]),
    "above": ({"type": "integer", "exclusiveMinimum": 41, "minimum": 3}, [42, 100, 999999], [41, 7, -50]),
    "below": ({"type": "integer", "maximum": -10}, [-10, -11, -100], [-9, 0, 10]),
    "enum": (
        {"enum": ["a", 1, None, {"b": [True]}, 'q"\\\n']},
        ["a", 1, None, {"b": [True]}, 'q"\\\n'],
        ["b", True],
    ),
    "enum of a type": ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
    "const": ({"const": "é😀"}, ["é😀"], ["e"]),
    "any of": ({"anyOf": [{"type": "integer"}, {"const": "none"}]}, [4, "none"], ["some"]),
    "all of": (
        {
            "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {"b": {"type": "null"}},
            "required": ["b"],
            "$defs": {"base": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        },
        [{"a": 1, "b": None}],
        [{"a": 1}, {"b": None}],
    ),
    "recursive": (TREE, [{"name": "x", "left": {"name": "y", "n": 4}}], [{"left": {"name": "x"}}]),
    "root refers to itself": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        [{}, {"next": {"next": {}}}],
        [{"next": 1}],
    ),
    "two refs that look alike": (
        {
            "properties": {"p": {"$ref": "#/$defs/a_b"}, "q": {"$ref": "#/$defs/a-b"}},
            "required": ["p", "q"],
            "$defs": {"a_b": {"type": "integer"}, "a-b": {"type": "string"}},
        },
        [{"p": 1, "q": "s"}],
        [{"p": 1, "q": 1}, {"p": "s", "q": "s"}],
    ),
    "pointers": (
        {
            "properties": {"p": {"$ref": "#/$defs/a~1b%20~0"}},
            "required": ["p"],
            "$defs": {"a/b ~": {"type": "null"}},
        },
        [{"p": None}],
        [{"p": 1}],
    ),
    "names of rules": (
        {"properties": {name: {"type": "integer"} for name in NAMES}, "required": ["a"]},
        [{name: i for i, name in enumerate(NAMES)}],
        [{"a": "x"}],
    ),
    "annotations": (
        {"title": "T", "description": "d", "default": 3, "type": "integer", "x-own": 1},
        [1],
        ["1"],
    ),
}


def in_order(schema: Any, document: Any) -> str:
    """The document's text with the required properties first, as the grammar has them."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if isinstance(document, dict) and properties and "allOf" not in schema:
        required = set(schema.get("required", []))
        place = {name: (name not in required, i) for i, name in enumerate(properties)}
        document = dict(sorted(document.items(), key=lambda item: place.get(item[0], (True, 99))))
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))  # constants have no spaces


@pytest.mark.parametrize("name", SCHEMAS)
def test_documents_match_and_what_is_generated_is_valid(
    engine: Native, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    schema, good, bad = SCHEMAS[name]
    gbnf = grammar_of(None, schema)
    assert gbnf is not None and refusal(engine, gbnf) is None
    grammar = Grammar(gbnf)
    validator = jsonschema.Draft202012Validator(schema)
    for document in good:
        assert validator.is_valid(document)
        assert grammar.matches(in_order(schema, document)), document
    for document in bad:
        assert not grammar.matches(in_order(schema, document)), document
    rng = random.Random(name)
    for _ in range(60):
        text = grammar.draw(rng)
        validator.validate(json.loads(text))
    assert capfd.readouterr() == ("", "")


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.choice(
        ["integer", "string", "number", "boolean", "null", "enum"]
        + ["object", "array", "anyOf"] * (depth > 0)
    )
    if kind == "integer":
        low, high = sorted(rng.choice([-1, 1]) * rng.randint(0, 10 ** rng.randint(1, 6)) for _ in range(2))
        bounds = {"minimum": low, "maximum": high}
        return {"type": kind, **{key: bounds[key] for key in bounds if rng.random() < 0.5}}
    if kind == "string":
        least = rng.randint(0, 5)
        return rng.choice(
            [
                {"type": kind},
                {"type": kind, "minLength": least, "maxLength": least + rng.randint(0, 5)},
                {"type": kind, "pattern": rng.choice([r"^[^\d]*$", r"^.{2,4}$", r"^(a|b\?)+x{0,3}$"])},
            ]
        )
    if kind == "enum":
        return {"enum": rng.sample(["a", "b\n", 1, 2.5, None, True, [1, "x"], {"k": "é"}], rng.randint(1, 4))}
    if kind == "anyOf":
        return {kind: [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "array":
        least = rng.randint(0, 2)
        return {
            "type": kind,
            "items": random_schema(rng, depth - 1),
            "minItems": least,
            "maxItems": least + rng.randint(0, 3),
        }
    if kind == "object":
        names = rng.sample(["a", "b", "a-b", "é", "kv", "item", "value", 'q"'], rng.randint(0, 5))
        return {
            "type": kind,
            "properties": {name: random_schema(rng, depth - 1) for name in names},
            "required": [name for name in names if rng.random() < 0.5],
            "additionalProperties": rng.random() < 0.5,
        }
    return {"type": kind}


def test_random_schemas_generate_valid_documents(engine: Native, capfd: pytest.CaptureFixture[str]) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        schema = random_schema(rng, 3)
        gbnf = grammar_of(None, schema)
        assert gbnf is not None and refusal(engine, gbnf) is None, schema
        grammar, validator = Grammar(gbnf), jsonschema.Draft202012Validator(schema)
        for _ in range(10):
            text = grammar.draw(rng)
            assert validator.is_valid(json.loads(text)), (seed, schema, text)
    assert capfd.readouterr() == ("", "")


def test_a_class_with_model_json_schema_gives_its_schema() -> None:
    class Answer:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:  # as pydantic's models have
            return {
                "properties": {"yes": {"title": "Yes", "type": "boolean"}},
                "required": ["yes"],
                "type": "object",
            }

    gbnf = grammar_of(None, Answer)
    assert (
        gbnf
        == grammar_of(None, json.dumps(Answer.model_json_schema()))
        == grammar_of(None, Answer.model_json_schema())
    )
    assert Grammar(gbnf or "").matches('{"yes": true}')


def test_properties_keep_their_order() -> None:
    gbnf = grammar_of(None, {"properties": {"z": {}, "a": {}}, "required": ["a", "z"]})
    assert Grammar(gbnf or "").matches('{"z": 1, "a": 2}')
    assert not Grammar(gbnf or "").matches('{"a": 2, "z": 1}')


def test_nothing_asked_for_and_both_asked_for() -> None:
    assert grammar_of(None, None) is None
    assert grammar_of(JSON, None) == JSON
    with pytest.raises(ValueError, match="both grammar and json_schema"):
        grammar_of(JSON, {})


@pytest.mark.parametrize(
    ("grammar", "error", "words"),
    [
        (3, TypeError, "grammar is int"),
        (b"root", TypeError, "grammar is bytes"),
        ("\n", ValueError, "grammar is empty"),
        ('root ::= "a"\nx ::= "\0"', ValueError, "NUL character in line 2"),
        ('root ::= "\ud800"', ValueError, "half a surrogate pair at character 10"),
    ],
)
def test_grammars_that_are_no_text(grammar: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        grammar_of(grammar, None)


# ---- schemas: refused ----------------------------------------------------------------------------


def nested(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: dict[str, tuple[Any, str]] = {
    "text": ("{", "json_schema is no JSON: Expecting property name"),
    "NaN": ('{"const": NaN}', "NaN, which JSON does not know"),
    "deep text": ("[" * 200_000, "nested more than 64 levels"),
    "deep": (nested(300), "nested more than 64 deep; refer to shared parts"),
    "false": (False, "at #: false allows no value"),
    "false inside": ({"properties": {"a": False}}, "at #/properties/a: false"),
    "no schema": ({"items": 3}, "at #/items: a schema is a dict or a bool, not int"),
    "type": (
        {"properties": {"a": {"type": "strin"}}},
        "at #/properties/a: type is 'strin'; possible are object",
    ),
    "wrong keyword": (
        {"type": "integer", "maxLength": 3},
        "maxLength says nothing about a value of type integer",
    ),
    "no type": ({"minimum": 3}, "at #: it has no type"),
    "not": ({"items": {"not": {}}}, "at #/items: not can't be held to"),
    "if": ({"if": {}, "then": {}}, "if can't be held to"),
    "patternProperties": ({"type": "object", "patternProperties": {}}, "patternProperties can't be held to"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems can't be held to"),
    "number bounds": ({"type": "number", "minimum": 0}, "minimum holds for type integer only"),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "multipleOf can't be held to"),
    "bounds crossed": (
        {"type": "integer", "minimum": 3, "exclusiveMaximum": 3.5, "maximum": 2},
        "no integer lies",
    ),
    "bound": ({"type": "integer", "minimum": "3"}, "minimum is '3', not a number"),
    "huge bound": ({"type": "integer", "minimum": 10**30}, "a grammar counts to"),
    "lengths crossed": (
        {"type": "string", "minLength": 3, "maxLength": 2},
        "minLength 3 is more than maxLength 2",
    ),
    "long": ({"type": "string", "maxLength": 5000}, "maxLength is 5000; a grammar counts to 2000"),
    "count": ({"type": "array", "minItems": -1}, "minItems is -1, not a whole number"),
    "format": ({"type": "string", "format": "email"}, "format 'email' has no grammar; give a pattern"),
    "two of a string": ({"pattern": "^a$", "minLength": 1}, "can't be held to together"),
    "pattern type": ({"pattern": 3}, "pattern is 3, not a text"),
    "pattern ends": ({"pattern": "ab"}, "pattern 'ab' must begin with ^"),
    "pattern broken": ({"pattern": "^(a$"}, "is no regular expression"),
    "pattern look": (
        {"properties": {"p": {"pattern": "^(?=a)b$"}}},
        "at #/properties/p: pattern '^(?=a)b$' has '?=a",
    ),
    "pattern back": ({"pattern": r"^(a)\1$"}, r"can't be said in a grammar"),
    "pattern quote": ({"pattern": '^a"$'}, "which JSON writes as an escape"),
    "remote": ({"$ref": "https://example.com/s.json"}, "leads out of this document"),
    "anchor": ({"$ref": "#name"}, "leads out of this document"),
    "nowhere": (
        {"items": {"$ref": "#/$defs/x"}},
        "at #/items: $ref #/$defs/x leads nowhere: there is no '$defs'",
    ),
    "itself": ({"$ref": "#"}, "comes back to itself"),
    "itself in three": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        },
        "comes back to itself",
    ),
    "endless value": ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text matches"),
    "ref beside": ({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": {}}}, "type beside $ref"),
    "anyOf beside": ({"anyOf": [{}], "required": ["a"]}, "required beside anyOf"),
    "anyOf empty": ({"anyOf": []}, "anyOf is not a list with at least one entry"),
    "allOf": ({"allOf": [{"type": "string"}, {"minLength": 3}]}, "at #/allOf/0: allOf can join objects"),
    "allOf twice": (
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {}}}]},
        "'a' is described twice",
    ),
    "enum type": ({"type": "string", "enum": [1, 2]}, "no value of enum is of type string"),
    "enum long": ({"enum": list(range(5000))}, "at most 1000"),
    "enum value": ({"enum": [{1, 2}]}, "at #/enum: set is no JSON value"),
    "inf": ({"const": float("inf")}, "at #/const: inf is no JSON number"),
    "surrogate": ({"const": "\ud800"}, "half a surrogate pair"),
    "required": ({"required": "a"}, "required is not a list"),
    "required and closed": ({"required": ["a"], "additionalProperties": False}, "at #/properties/a: false"),
    "many properties": ({"properties": {str(i): {} for i in range(1000)}}, "at most 200"),
    "long name": ({"properties": {"é" * 100_000: {}}}, "shorten or rename it"),
    "key": ({1: 2}, "the key 1 is no text"),
    "tuple": ({"prefixItems": [{}], "minItems": 2}, "prefixItems has 1 schemas"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_schemas_name_the_place(engine: Native, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    schema, words = REFUSED[name]
    try:
        gbnf = grammar_of(None, schema)
    except ValueError as error:
        reason = str(error)
    else:  # only the rules show that no document ever ends
        reason = refusal(engine, gbnf or "") or ""
    assert words in reason, reason
    assert len(reason) < 500
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("schema", [3, [1], object(), b"{}", "[1]", "3"])
def test_what_is_no_schema_at_all(schema: Any) -> None:
    with pytest.raises(TypeError, match="give a dict, JSON text, True, or a class with model_json_schema"):
        grammar_of(None, schema)


def test_the_core_refuses_what_it_would_leave_out(capfd: pytest.CaptureFixture[str]) -> None:
    """llama.cpp prints a warning and takes any string instead."""
    for text, words in (
        (b'{"type": "string", "pattern": "ab"}', "pattern ab is not supported (not anchored"),
        (b'{"items": {"$ref": "x.json"}}', "JSON schema error at #/items: unsupported $ref x.json"),
        (b"{", "the JSON schema cannot be made into a grammar"),
        (b"[" * 100_000, "nested more than 256 levels deep"),
    ):
        assert lib.pd2_json_schema_to_grammar(text, ffi.NULL, 0) == -(2**31)
        assert words in ffi.string(lib.pd2_last_error()).decode()
    assert capfd.readouterr() == ("", "")


# ---- generated -------------------------------------------------------------------------------------

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z_]{1,12}$"},
        "kind": {"enum": ["class", "def"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "lines"],
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generated_texts_are_documents_of_the_schema(
    temperature: float, capfd: pytest.CaptureFixture[str]
) -> None:
    with pydflash2.load(n_threads=1) as engine:
        n_accepted = 0
        for seed in range(5):
            result = engine.generate(
                "record = ",
                json_schema=RECORD,
                temperature=temperature,
                seed=seed,
                max_tokens=200,
                max_draft_tokens=7,
            )
            assert result.finish_reason == "stop"
            jsonschema.validate(json.loads(result.text), RECORD)
            n_accepted += result.stats.accepted
        assert n_accepted > 0
        if temperature == 0:
            plain = engine.generate("record = ", json_schema=RECORD, speculate=False, max_tokens=200)
            assert plain.text == result.text
        with pytest.raises(ValueError, match=r"rule 'root' \(line 1\) comes back to itself"):
            engine.generate("a", grammar='root ::= root "a" | "b"')
        assert engine.generate("a", grammar='root ::= "yes"').text == "yes"
    assert capfd.readouterr() == ("", "")

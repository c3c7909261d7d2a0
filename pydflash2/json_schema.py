"""JSON schemas in the form that llama.cpp turns into a grammar faithfully.

llama.cpp's translation passes over what it does not know and takes some keywords for others. Here a schema
is rewritten so that every text the grammar allows is valid, and refused, with the place, where that can't be
done: nothing a schema demands is left out in silence. The other way round there are valid documents that are
not generated: an object has the properties it lists, in their order, and no others; a tuple has exactly its
items; `oneOf` is taken for `anyOf`, so its alternatives should exclude each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NoReturn
from urllib.parse import unquote

from pydflash2.json_pattern import translated

__all__ = ["normalised", "parsed"]

_MAX_DEPTH = 64  # of schemas in schemas; the translation recurses
_MAX_SCHEMAS = 5000  # written out
_MAX_PROPERTIES = 200  # of an object: its rules grow with their square
_MAX_NAME = 500  # characters of a property's name
_MAX_COUNT = 2000  # what llama.cpp's grammars can count to
_MAX_ENUM = 1000  # values, each of which is tried for every token
_MAX_BOUND = 10**15 - 1  # the grammar writes integers of up to 16 digits

# Keywords that say nothing about what is valid, or only something about others that stand beside them.
_ANNOTATIONS = {
    "$anchor", "$comment", "$defs", "$id", "$schema", "$vocabulary", "contentEncoding", "contentMediaType",
    "contentSchema", "default", "definitions", "deprecated", "description", "discriminator", "example",
    "examples", "externalDocs", "readOnly", "title", "writeOnly", "xml",
}  # fmt: skip
_OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"},
    "boolean": set(),
    "null": set(),
}
_COMBINING = {"$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type"}
# Keywords that forbid something which no grammar of llama.cpp's translation forbids.
_IMPOSSIBLE = {
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas",
    "else", "if", "maxContains", "maxProperties", "minContains", "minProperties", "not", "patternProperties",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
_FORMATS = {"date", "time", "date-time", "uuid"}
_NUMBER_FORMATS = {"int32", "int64", "float", "double"}  # OpenAPI's, which name a size and no syntax

_TEST: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, (list, tuple)),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (
        not isinstance(value, bool)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "number": lambda value: not isinstance(value, bool) and isinstance(value, (int, float)),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def parsed(text: str) -> Any:
    """The schema that a JSON text holds."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"json_schema has {constant}, which JSON does not know")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"json_schema is no JSON: {error}; give the text of a schema, or a dict") from None
    except RecursionError:
        raise ValueError(f"json_schema is nested more than {_MAX_DEPTH} levels deep") from None


def normalised(schema: Mapping[str, Any] | bool) -> str:
    """The JSON text of an equivalent or stricter schema, every part of which the translation understands."""
    document = _Document(schema)
    try:
        text = json.dumps(document.root(), ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "json_schema has half a surrogate pair in a text: JSON documents can't hold it"
        ) from None
    return text


class _Document:
    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        self._schema = schema
        self._names: dict[str, str] = {}  # of definitions, by $ref
        self._definitions: dict[str, Any] = {}
        self._n_schemas = 0
        self._prefix = "part"
        while _mentions(schema, self._prefix):  # rules of the grammar go by such names too
            self._prefix += "x"

    def root(self) -> dict[str, Any]:
        made = self._node(self._schema, "#", 0, frozenset())
        return {"$defs": self._definitions, **made} if self._definitions else made

    # ---- one schema ----

    def _node(self, schema: Any, at: str, depth: int, open_refs: frozenset[str]) -> dict[str, Any]:
        """open_refs: references that lead here without a step into a value."""
        self._n_schemas += 1
        if depth > _MAX_DEPTH:
            _refuse(at, f"schemas are nested more than {_MAX_DEPTH} deep; refer to shared parts with $ref")
        if self._n_schemas > _MAX_SCHEMAS:
            _refuse(at, f"there are more than {_MAX_SCHEMAS} schemas in it; make it smaller")
        if schema is True:
            return {}
        if schema is False:
            _refuse(at, "false allows no value, so that nothing could be generated; leave it out")
        if not isinstance(schema, Mapping):
            _refuse(at, f"a schema is a dict or a bool, not {type(schema).__name__}")
        for key in schema:
            if not isinstance(key, str):
                _refuse(at, f"the key {key!r} is no text")
            if key in _IMPOSSIBLE and not (key.startswith("min") and schema[key] == 0):
                _refuse(
                    at, f"{key} can't be held to by a grammar; leave it out and check the text afterwards"
                )

        demands = [key for key in schema if key in _COMBINING or any(key in of for of in _OF_TYPE.values())]
        if "$ref" in schema:
            self._alone(demands, {"$ref"}, at)
            return self._reference(schema["$ref"], at, depth, open_refs)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                self._alone(demands, {key}, at)
                parts = _list(schema, key, at)
                return {
                    "anyOf": [
                        self._node(part, f"{at}/{key}/{i}", depth + 1, open_refs)
                        for i, part in enumerate(parts)
                    ]
                }
        if "allOf" in schema:
            return self._all_of(schema, demands, at, depth, open_refs)
        if "const" in schema or "enum" in schema:
            return self._values(schema, demands, at)
        types = self._types(schema, at)
        made = [self._of_type(kind, schema, at, depth) for kind in types]
        return {} if not made else made[0] if len(made) == 1 else {"anyOf": made}

    @staticmethod
    def _alone(demands: list[str], with_: set[str], at: str) -> None:
        others = [key for key in demands if key not in with_]
        if others:
            _refuse(at, f"{others[0]} beside {min(with_)} can't be held to; write one schema for both")

    def _types(self, schema: Mapping[str, Any], at: str) -> list[str]:
        """The types a value may have; empty: any."""
        given = schema.get("type")
        if given is None:
            implied = [kind for kind in ("object", "array", "string") if _OF_TYPE[kind] & set(schema)]
            if len(implied) == 1:
                return implied
            if implied or _OF_TYPE["number"] & set(schema):
                _refuse(at, "it has no type; add one")
            return []
        types = list(given) if isinstance(given, (list, tuple)) else [given]
        if not types:
            _refuse(at, "type is an empty list")
        for kind in types:
            if not isinstance(kind, str) or kind not in _OF_TYPE:
                _refuse(at, f"type is {kind!r}; possible are {', '.join(_OF_TYPE)}")
        of_these = set().union(*(_OF_TYPE[kind] for kind in types))
        for key in schema:
            if key not in of_these and key not in _ANNOTATIONS and any(key in of for of in _OF_TYPE.values()):
                _refuse(
                    at, f"{key} says nothing about a value of type {' or '.join(types)}; correct one of them"
                )
        return types

    def _of_type(self, kind: str, schema: Mapping[str, Any], at: str, depth: int) -> dict[str, Any]:
        if kind == "object":
            return self._object(schema, at, depth)
        if kind == "array":
            return self._array(schema, at, depth)
        if kind == "string":
            return _string(schema, at)
        if kind in ("integer", "number"):
            return _number(kind, schema, at)
        return {"type": kind}

    # ---- references and combinations ----

    def _reference(self, ref: Any, at: str, depth: int, open_refs: frozenset[str]) -> dict[str, Any]:
        if not isinstance(ref, str):
            _refuse(at, f"$ref is {ref!r}, not a text")
        if ref in open_refs:
            _refuse(at, f"$ref {ref} comes back to itself with no value in between; leave one of them out")
        if ref not in self._names:
            self._names[ref] = name = f"{self._prefix}{len(self._names)}"
            target = self._resolved(ref, at)
            self._definitions[name] = self._node(target, ref, depth + 1, open_refs | {ref})
        return {"$ref": f"#/$defs/{self._names[ref]}"}

    def _resolved(self, ref: str, at: str) -> Any:
        if ref != "#" and not ref.startswith("#/"):
            _refuse(
                at,
                f"$ref {ref} leads out of this document; copy what it names into $defs (nothing is fetched)",
            )
        target: Any = self._schema
        for step in ref.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, (list, tuple)) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                _refuse(at, f"$ref {ref} leads nowhere: there is no {key!r}")
        return target

    def _all_of(
        self, schema: Mapping[str, Any], demands: list[str], at: str, depth: int, open_refs: frozenset[str]
    ) -> dict[str, Any]:
        parts = [(part, f"{at}/allOf/{i}") for i, part in enumerate(_list(schema, "allOf", at))]
        rest = {key: schema[key] for key in demands if key != "allOf"}
        if len(parts) == 1 and not rest:
            return self._node(*parts[0], depth + 1, open_refs)
        if rest:
            parts.append((rest, at))
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part, place in parts:  # objects that add properties to one another
            seen: set[str] = set()
            while isinstance(part, Mapping) and set(part) - _ANNOTATIONS == {"$ref"}:
                ref = part["$ref"]
                if not isinstance(ref, str) or ref in seen:
                    _refuse(place, f"$ref {ref} leads nowhere")
                seen.add(ref)
                part, place = self._resolved(ref, place), ref
            keys = set(part) - _ANNOTATIONS if isinstance(part, Mapping) else {"?"}
            own = part.get("properties", {}) if isinstance(part, Mapping) else None
            if (
                not keys <= {"type", "properties", "required"}
                or part.get("type", "object") != "object"
                or not isinstance(own, Mapping)
                or not isinstance(part.get("required", []), (list, tuple))
            ):
                _refuse(
                    place,
                    "allOf can join objects that have properties and required, no others; write one schema",
                )
            for name in own:
                if name in properties:
                    _refuse(place, f"the property {name!r} is described twice in an allOf; describe it once")
            properties.update(own)
            required.extend(part.get("required", []))
        return self._object({"properties": properties, "required": required}, at, depth)

    def _values(self, schema: Mapping[str, Any], demands: list[str], at: str) -> dict[str, Any]:
        key = "const" if "const" in schema else "enum"
        values = [schema["const"]] if key == "const" else _list(schema, "enum", at)
        self._alone(demands, {"const", "enum", "type"}, at)
        if key == "const" and "enum" in schema:
            values = [value for value in values if value in _list(schema, "enum", at)]
        types = self._types({"type": schema.get("type")}, at)
        fitting = [value for value in values if not types or any(_TEST[kind](value) for kind in types)]
        if not fitting:
            _refuse(at, f"no value of {key} is of type {' or '.join(types)}")
        if len(fitting) > _MAX_ENUM:
            _refuse(at, f"enum has {len(fitting)} values; at most {_MAX_ENUM} can be tried for every token")
        for value in fitting:
            _check_value(value, f"{at}/{key}", 0)
        return {"enum": fitting}

    # ---- types ----

    def _object(self, schema: Mapping[str, Any], at: str, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            _refuse(at, f"properties is {type(properties).__name__}, not a dict")
        required = schema.get("required", [])
        if not isinstance(required, (list, tuple)) or not all(isinstance(name, str) for name in required):
            _refuse(at, "required is not a list of names")
        more = schema.get("additionalProperties", True)
        properties = {**properties, **{name: more for name in required if name not in properties}}
        if len(properties) > _MAX_PROPERTIES:
            _refuse(at, f"there are {len(properties)} properties; at most {_MAX_PROPERTIES} can be followed")
        if not properties:
            if more is False:
                return {"type": "object", "properties": {}}
            return {
                "type": "object",
                "additionalProperties": self._node(more, f"{at}/additionalProperties", depth + 1, frozenset())
                or True,
            }
        for name in properties:
            if not isinstance(name, str) or len(name) > _MAX_NAME or name == "*":
                _refuse(at, f"a property can't be called {str(name)[:40]!r}; shorten or rename it")
        return {
            "type": "object",
            "properties": {
                name: self._node(part, f"{at}/properties/{name}", depth + 1, frozenset())
                for name, part in properties.items()
            },
            "required": list(required),
            "additionalProperties": False,
        }

    def _array(self, schema: Mapping[str, Any], at: str, depth: int) -> dict[str, Any]:
        if schema.get("uniqueItems"):
            _refuse(
                at, "uniqueItems can't be held to by a grammar; leave it out and check the text afterwards"
            )
        least = _count(schema, "minItems", at) or 0
        most = _count(schema, "maxItems", at)
        _check_order(least, most, "minItems", "maxItems", at)
        items = schema.get("items", True)
        tuple_ = items if isinstance(items, (list, tuple)) else schema.get("prefixItems")
        if tuple_ is not None:
            if not isinstance(tuple_, (list, tuple)):
                _refuse(at, "prefixItems is not a list of schemas")
            n = len(tuple_)
            if n < least or (most is not None and n > most):
                _refuse(
                    at, f"prefixItems has {n} schemas, which minItems or maxItems does not allow; match them"
                )
            if n:
                key = "prefixItems" if tuple_ is not items else "items"
                return {
                    "type": "array",
                    "prefixItems": [
                        self._node(part, f"{at}/{key}/{i}", depth + 1, frozenset())
                        for i, part in enumerate(tuple_)
                    ],
                }
            items = False
        if items is False:
            if least:
                _refuse(at, "minItems asks for items, which the schema false does not allow")
            items, most = True, 0
        made: dict[str, Any] = {
            "type": "array",
            "items": self._node(items, f"{at}/items", depth + 1, frozenset()),
        }
        return {**made, "minItems": least, **({} if most is None else {"maxItems": most})}


def _string(schema: Mapping[str, Any], at: str) -> dict[str, Any]:
    least, most = _count(schema, "minLength", at), _count(schema, "maxLength", at)
    _check_order(least or 0, most, "minLength", "maxLength", at)
    made = {"type": "string"}
    pattern, format_ = schema.get("pattern"), schema.get("format")
    if (pattern is not None) + (format_ is not None) + (least is not None or most is not None) > 1:
        _refuse(at, "pattern, format and lengths can't be held to together; keep one of them")
    if pattern is not None:
        if not isinstance(pattern, str):
            _refuse(at, f"pattern is {pattern!r}, not a text")
        try:
            return {**made, "pattern": translated(pattern)}
        except ValueError as error:
            _refuse(at, str(error))
    if format_ is not None:
        if format_ not in _FORMATS:
            _refuse(
                at,
                f"format {format_!r} has no grammar; give a pattern instead ({', '.join(_FORMATS)} have one)",
            )
        return {**made, "format": format_}
    lengths = {"minLength": least, "maxLength": most}
    return {**made, **{key: value for key, value in lengths.items() if value is not None}}


def _number(kind: str, schema: Mapping[str, Any], at: str) -> dict[str, Any]:
    format_ = schema.get("format")
    if format_ is not None and format_ not in _NUMBER_FORMATS:
        _refuse(at, f"format {format_!r} says nothing about a number; leave it out")
    step = schema.get("multipleOf")
    bounds = {
        key: schema[key]
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        if schema.get(key) is not None
    }
    if kind == "number" and (bounds or step is not None):
        _refuse(
            at, f"{next(iter(bounds), 'multipleOf')} holds for type integer only; check the number afterwards"
        )
    if step is not None and (isinstance(step, bool) or step != 1):
        _refuse(at, "multipleOf can't be held to by a grammar; leave it out and check the number afterwards")
    exact: dict[str, Fraction] = {}
    for key, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            _refuse(at, f"{key} is {value!r}, not a number")
        if abs(value) > _MAX_BOUND:
            _refuse(at, f"{key} is {value}; a grammar counts to {_MAX_BOUND}, leave it out")
        exact[key] = Fraction(value)
    lower = [math.ceil(exact["minimum"])] if "minimum" in exact else []
    lower += [math.floor(exact["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in exact else []
    upper = [math.floor(exact["maximum"])] if "maximum" in exact else []
    upper += [math.ceil(exact["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in exact else []
    if lower and upper and max(lower) > min(upper):
        _refuse(at, "no integer lies between its bounds")
    if upper and min(upper) < 0 and not lower:
        lower = [-_MAX_BOUND]  # without one the translation lets numbers start with zeros
    return {
        "type": kind,
        **({"minimum": max(lower)} if lower else {}),
        **({"maximum": min(upper)} if upper else {}),
    }


def _count(schema: Mapping[str, Any], key: str, at: str) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if not _TEST["integer"](value) or value < 0:
        _refuse(at, f"{key} is {value!r}, not a whole number")
    if value > _MAX_COUNT:
        _refuse(at, f"{key} is {value}; a grammar counts to {_MAX_COUNT}, leave it out or lower it")
    return int(value)


def _check_order(least: int, most: int | None, lower: str, upper: str, at: str) -> None:
    if most is not None and least > most:
        _refuse(at, f"{lower} {least} is more than {upper} {most}; exchange them")


def _check_value(value: Any, at: str, depth: int) -> None:
    """A constant must be JSON, of a depth that can be written."""
    if depth > _MAX_DEPTH:
        _refuse(at, f"the value is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            _refuse(at, "a key of the value is no text")
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            _check_value(part, at, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        _refuse(at, f"{value} is no JSON number")
    elif not (value is None or isinstance(value, (str, bool, int, float))):
        _refuse(at, f"{type(value).__name__} is no JSON value")


def _list(schema: Mapping[str, Any], key: str, at: str) -> list[Any]:
    value = schema[key]
    if not isinstance(value, (list, tuple)) or not value:
        _refuse(at, f"{key} is not a list with at least one entry")
    return list(value)


def _mentions(schema: Any, name: str) -> bool:
    """Whether a key anywhere in the schema holds `name`."""
    todo, looked_at = [schema], 0
    while todo and looked_at < 100_000:
        part = todo.pop()
        looked_at += 1
        if isinstance(part, Mapping):
            if any(isinstance(key, str) and name in key for key in part):
                return True
            todo.extend(part.values())
        elif isinstance(part, (list, tuple)):
            todo.extend(part)
    return False


def _refuse(at: str, what: str) -> NoReturn:
    what = what if len(what) <= 400 else f"{what[:400]}..."
    advice = "" if "; " in what else "; correct the schema there"
    raise ValueError(f"json_schema, at {at[:200]}: {what}{advice}")

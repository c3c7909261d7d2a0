"""The chat template in a target's GGUF: messages to the text that the target was trained to read."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydflash2.errors import ModelFileError, PyDFlash2Error
from pydflash2.gguf_file import GGUFFile

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}


class ChatTemplate:
    """Renders messages. Templates come with model files from anywhere, so they run in jinja2's sandbox."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """special: texts of the special tokens that the template may name: bos_token, eos_token, ...

        Raises PyDFlash2Error without jinja2, ModelFileError for a template that is none.
        """
        if importlib.util.find_spec("jinja2") is None:
            raise PyDFlash2Error("chat templates need jinja2: pip install jinja2")
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_generation_blocks(), loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = self._strftime_now
        self._special = dict(special)
        self._now: datetime | None = None
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFileError(
                f"the target's chat template can't be read: {error}. Give prompts as text"
            ) from error

    @classmethod
    def of(cls, target: Path) -> ChatTemplate | None:
        """The template of a GGUF file, None where it has none."""
        file = GGUFFile.open(target)
        source = file.text("tokenizer.chat_template")
        return None if not source else cls(source, _special_tokens(file))

    @property
    def bos(self) -> str:
        """Text of the token that begins every text, "" where there is none."""
        return self._special.get("bos_token", "")

    def render(self, messages: Sequence[Message], now: datetime | None = None, **variables: Any) -> str:
        """The conversation, and the beginning of the reply that is to come.

        now: the time a template sees that asks for it; None: the present.
        variables: what else this template knows, such as enable_thinking.

        Raises ValueError for messages that the template refuses.
        """
        import jinja2

        self._now = now
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **self._special, **variables
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError, OverflowError) as error:
            raise ValueError(f"the target's chat template refuses the messages: {error}") from error

    def _strftime_now(self, form: str) -> str:
        return (self._now or datetime.now()).strftime(form)


def _special_tokens(file: GGUFFile) -> dict[str, str]:
    tokens = file.array("tokenizer.ggml.tokens") or []
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = file.integer(f"tokenizer.ggml.{key}_token_id")
        if token is not None and 0 <= token < len(tokens):
            special[f"{name}_token"] = tokens[token].decode("utf-8", "replace")
    return special


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """jinja2's own filter escapes <, > and & for HTML; a prompt wants them as they are."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=indent, **options)


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _generation_blocks() -> Any:
    """{% generation %} ... {% endgeneration %} marks replies for other trainers; here it is what it holds."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation

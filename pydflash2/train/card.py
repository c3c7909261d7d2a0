"""README.md of a trained head, a Hugging Face model card. Converting reads its front matter into the GGUF."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pydflash2
from pydflash2.gguf_file import GGUFFile
from pydflash2.train import shown
from pydflash2.train.figures import Figures
from pydflash2.train.files import write_beside

_TAGS = ("dflash2", "dflash", "speculative-decoding", "draft-model", "gguf")
_TARGETS_TERMS = "terms-of-the-target"


@dataclass(frozen=True)
class Terms:
    """What the user says of the head's licence and origin; nothing is guessed."""

    license: str | None = None  # Hugging Face's identifier, or "other" with the next two
    license_name: str | None = None
    license_link: str | None = None
    base_model: str | None = None  # the target's Hugging Face repository, owner/name

    def __post_init__(self) -> None:
        """ValueError for a name or a link without a licence: nothing would say what it belongs to."""
        if self.license is None and (self.license_name or self.license_link):
            raise ValueError("a licence's name or link needs its identifier: give other where it has none")


@dataclass(frozen=True)
class Card:
    """What the model card tells besides the figures."""

    name: str  # of the head
    target: GGUFFile
    head_file: str  # the head's GGUF beside the card
    n_draft: int  # tokens a round, anchor not counted
    terms: Terms
    picture: str | None = None  # beside the card


def write_card(path: Path, card: Card, figures: Figures) -> None:
    """Before the head is converted, so that the GGUF carries name, licence and origin."""
    lines = [*_front_matter(card), "", *_what(card), "", *_use(card), *_figures(card, figures)]
    for title, record in (("Data", figures.data), ("Settings", figures.settings)):
        if record:
            lines += ["", f"## {title}", "", *_table(("what", ""), shown.rows(record))]
    lines += ["", "## Licence", "", *_licence(card)]
    text = "\n".join(lines) + "\n"
    write_beside(path, lambda file: file.write(text.encode()))


def _front_matter(card: Card) -> Iterator[str]:
    """YAML whose values are JSON: no word can be taken for syntax, a number or a boolean."""
    terms = card.terms
    entries = {
        "model_name": _printable(card.name),
        "license": _printable(terms.license or "other"),
        "license_name": _printable(terms.license_name if terms.license else _TARGETS_TERMS),
        "license_link": _printable(terms.license_link),
        "base_model": _printable(terms.base_model),
        "library_name": "pydflash2",
        "tags": list(_TAGS),
    }
    yield "---"
    for key, value in entries.items():
        if value is not None:
            yield f"{key}: {json.dumps(value, ensure_ascii=False)}"
    yield "---"


def _printable(text: str | None) -> str | None:
    """YAML has no place for the rest, nor has the reader of a card for a line's end."""
    return None if text is None else "".join(letter for letter in text if letter.isprintable())


def _what(card: Card) -> Iterator[str]:
    yield f"# {card.name}"
    yield ""
    yield (
        f"A DFlash 2 head for `{card.target.path.name}`{_named(card.target)}, trained on that model's own "
        f"texts by `pydflash2 train` {pydflash2.__version__}. It proposes up to {card.n_draft} tokens at "
        "once, the model checks them in one pass, and the text is the model's own. It fits no other model; "
        "with a fine-tune of the same model fewer tokens are accepted."
    )


def _named(target: GGUFFile) -> str:
    name = target.text("general.name")
    return f" ({name})" if name else ""


def _use(card: Card) -> Iterator[str]:
    target, head = card.target.path.name, card.head_file
    m, d = shlex.quote(target), shlex.quote(head)
    yield "## Use"
    yield ""
    yield "```sh"
    yield f"pydflash2 doctor {m} {d}     # does the pair fit?"
    yield f'pydflash2 generate -m {m} -d {d} -p "Once upon a time" --stats'
    yield "# the same file in llama.cpp"
    options = f"--spec-type draft-dflash --spec-draft-n-max {card.n_draft}"
    yield f"llama-server -m {m} -md {d} {options}"
    yield "```"
    yield ""
    yield "```python"
    yield "import pydflash2"
    yield ""
    yield f"with pydflash2.load({json.dumps(target)}, head={json.dumps(head)}) as engine:"
    yield '    print(engine.generate("Once upon a time").text)'
    yield "```"
    yield ""
    yield "`config.json` and `model.safetensors` hold the same head in the published layout."


def _figures(card: Card, figures: Figures) -> Iterator[str]:
    if not (figures.measured or figures.held_out or figures.final):
        return
    yield from ("", "## Figures", "")
    yield (
        "Mean acceptance length is 1 + accepted / rounds, by the engine, greedy, on prompts that were never "
        "trained on (and on some that were). Speeds are with automatic width, beside the target alone, on "
        "the machine it was trained on."
    )
    last = [figures.on(on)[-1] for on in ("held out", "training") if figures.on(on)]
    if last:
        latest = Figures(measured=list(reversed(last)))
        yield from ("", *_table(shown.MEASURED, shown.measured(latest)))
    for held in figures.held_out[-1:]:
        rows = [
            ("unary accuracy", held.unary_accuracy),
            ("selector accuracy", held.selector_accuracy),
            ("candidate recall", held.recall),
        ]
        by_position = [(name, shown.shares(shares)) for name, shares in rows if shares]
        yield from ("", *_table(("held-out texts", "by position 1, 2, ..."), by_position))
    if figures.final:
        yield from ("", *_table(("the head that was kept", ""), shown.rows(figures.final)))
    if card.picture is not None:
        yield from ("", f"![curves of the training]({card.picture})")


def _licence(card: Card) -> Iterator[str]:
    terms = card.terms
    if terms.license is not None:
        named = f"{terms.license_name} ({terms.license})" if terms.license_name else terms.license
        yield f"{named}{f': {terms.license_link}' if terms.license_link else ''}"
        yield ""
    target = card.target.text("general.license")
    says = f"its file says `{target}`" if target else "its file doesn't say which"
    yield (
        "The head was made from the target's texts and, where it began with them, from its weights: the "
        f"target's licence applies ({says})."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _cells(head)
    yield _cells(["---"] * len(head))
    for row in rows:
        yield _cells(row)


def _cells(cells: Sequence[str]) -> str:
    plain = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(plain)} |"

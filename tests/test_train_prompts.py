"""Prompts from files: what is read, what is refused, and that nothing held out is trained on."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydflash2
from pydflash2.chat_template import ChatTemplate
from pydflash2.errors import ModelFileError
from pydflash2.train.prompts import Prompts, n_held_out, read_prompts

BOS = 256
TEMPLATE = ChatTemplate(
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>",
    {"bos_token": "<bos>"},
)


def tokenize(text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    """A token a byte, after a beginning token."""
    if parse_special and text.startswith(b"<bos>"):
        return [BOS] * (1 + add_special) + list(text[5:])
    return [BOS] * add_special + list(text)


def text_of(tokens: object) -> str:
    ids = np.asarray(tokens).tolist()
    assert ids[0] == BOS and BOS not in ids[1:]
    return bytes(ids[1:]).decode()


def jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def lines(file: Path) -> list[str]:
    """Every text that begins with a line of a file."""
    text = file.read_text()
    return [text[place:] for place in range(len(text)) if place == 0 or text[place - 1] == "\n"]


def texts(prompts: Prompts) -> list[str]:
    return sorted(text_of(prompt.tokens) for prompt in prompts)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "more" / ".git").mkdir(parents=True)
    for name in range(30):
        lines = (f"{name} {line} is a line of this document" for line in range(40))
        (folder / f"{name:02}.py").write_text("\n\n".join(lines), encoding="utf-8")
    (folder / "more" / "notes.md").write_text("some words\n" * 60, encoding="utf-8")
    (folder / "more" / "copy.py").write_bytes((folder / "00.py").read_bytes())
    (folder / "more" / "picture.png").write_bytes(bytes(range(256)))
    (folder / "more" / "zeros.py").write_bytes(b"some words\0" * 60)
    (folder / "more" / ".hidden.py").write_text("hidden words\n" * 60, encoding="utf-8")
    (folder / "more" / ".git" / "hidden.py").write_text("hidden words\n" * 60, encoding="utf-8")
    (folder / "empty.py").touch()
    return folder


# ---- lists ---------------------------------------------------------------------------------------------


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufefffirst\r\n\n second \nfirst\nthird".encode())
    prompts = read_prompts([file], tokenize, held_out=0)
    assert texts(prompts) == [" second ", "first", "third"]
    assert {prompt.source for prompt in prompts} == {f"prompts.txt:{line}" for line in (1, 3, 5)}
    assert prompts.n_duplicates == 1 and "1 duplicates" in prompts.summary()


def test_every_kind_of_json_line(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    file = jsonl(
        tmp_path / "prompts.jsonl",
        {"prompt": "a prompt"},
        {"text": "a text", "id": 3},
        {"messages": talk},
        {"messages": [*talk, {"role": "user", "content": [{"type": "text", "text": "three"}]}]},
        {"conversations": [{"from": "human", "value": "four"}, {"from": "gpt", "value": "five"}]},
        {"prompt": [{"role": "user", "content": "six"}]},
    )
    assert texts(read_prompts(file, tokenize, TEMPLATE, held_out=0)) == sorted(
        [
            "a prompt",
            "a text",
            "<user>one\n<assistant>",
            "<user>one\n<assistant>two\n<user>three\n<assistant>",
            "<user>four\n<assistant>",
            "<user>six\n<assistant>",
        ]
    )


def test_plain_prompts_can_be_said_by_a_user(tmp_path: Path) -> None:
    (file := tmp_path / "prompts.txt").write_text("hello")
    (prompt,) = read_prompts(file, tokenize, TEMPLATE, as_chat=True)
    assert text_of(prompt.tokens) == "<user>hello\n<assistant>"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 is no JSON"),
        ("3", "line 2: it is 3: give an object"),
        ('{"prompt": ""}', "line 2: it has no text"),
        ('{"messages": ["hello"]}', r'line 2: "messages"\[0\] is'),
        ('{"messages": []}', "line 2: .*no message that asks"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "line 2: .*no message that asks"),
        ('{"prompt": "\\ud800"}', "jsonl:2: it has half a surrogate"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "jsonl:2: it holds messages, but"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, why: str) -> None:
    (file := tmp_path / "prompts.jsonl").write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(ValueError, match=why):
        read_prompts([file], tokenize, held_out=0)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_prompts([tmp_path / "none.txt"], tokenize)
    (bad := tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="UTF-8"):
        read_prompts([bad], tokenize)
    (empty := tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="has no prompts"):
        read_prompts([empty], tokenize)
    with pytest.raises(ValueError, match="no prompts"):
        read_prompts([], tokenize)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="no files of text"):
        read_prompts([tmp_path / "folder"], tokenize)
    (long := tmp_path / "long.txt").write_text("x" * 50)
    with pytest.raises(ValueError, match="no prompts to train with"):
        read_prompts([long], tokenize, longest=20)


# ---- documents -----------------------------------------------------------------------------------------


def test_documents_are_cut_at_lines(documents: Path) -> None:
    prompts = read_prompts([documents], tokenize, n_prompts=200, sizes=(12, 24), size_weights=(1, 3), seed=4)
    assert len(prompts) == 200
    sources = {prompt.source for prompt in prompts}
    assert sources <= {f"{name:02}.py" for name in range(30)} | {"more/notes.md", "more/copy.py"}
    assert len(sources & {"00.py", "more/copy.py"}) <= 1  # the same document
    for prompt in prompts:
        text = text_of(prompt.tokens)
        assert len(prompt.tokens) in (12, 24)
        assert any(line.startswith(text) for line in lines(documents / prompt.source))
    sizes = [len(prompt.tokens) for prompt in prompts]
    assert 0.6 < sizes.count(24) / len(sizes) < 0.9
    assert len({prompt.tokens.tobytes() for prompt in prompts}) == 200
    assert prompts.n_unread == 3  # picture, zeros, empty


def test_long_documents_give_more_prompts(tmp_path: Path) -> None:
    for name, lines in (("a", 30), ("b", 300)):
        text = "".join(f"{name} line {line} is like no other line\n" for line in range(lines))
        (tmp_path / f"{name}.md").write_text(text)
    prompts = read_prompts([tmp_path], tokenize, n_prompts=200, sizes=(24,), held_out=0)
    assert 0.8 < sum(prompt.source == "b.md" for prompt in prompts) / len(prompts) < 0.97
    only = read_prompts([tmp_path], tokenize, n_prompts=20, sizes=(24,), suffixes=[".none", "a.md"])
    assert {prompt.source for prompt in only} == {"a.md", "a.md (end)"}


def test_documents_without_enough_places_give_what_they_have(tmp_path: Path) -> None:
    (file := tmp_path / "only.py").write_text("".join(f"{line}. line\n" for line in range(10)))
    prompts = read_prompts([file], tokenize, n_prompts=100, sizes=(8,), held_out=0)
    assert len(prompts) == 10 and "10 prompts of 100 asked for" in prompts.summary()


@given(st.integers(0, 400), st.sampled_from([0.0, 0.01, 0.05, 0.5]))
def test_a_few_are_held_out(n: int, share: float) -> None:
    held = n_held_out(n, share)
    assert 0 <= held <= max(n / 2, 0)
    assert (held == 0) == (share == 0 or n < 2)
    assert held >= min(4, n // 5) or share == 0  # of 20 or more, 4


# ---- held out ------------------------------------------------------------------------------------------


def held(prompts: Prompts) -> tuple[set[str], set[str]]:
    """Sources that are held out, and those that are trained on."""
    return {p.source for p in prompts if p.held_out}, {p.source for p in prompts if not p.held_out}


@pytest.mark.parametrize("seed", range(5))
def test_held_out_documents_are_not_trained_on(documents: Path, seed: int) -> None:
    prompts = read_prompts([documents], tokenize, n_prompts=120, sizes=(40,), held_out=0.1, seed=seed)
    apart, trained = held(prompts)
    assert apart and trained and not apart & trained
    assert prompts.n_held_out == 12
    ahead = prompts[:30]  # wherever the writing stops
    assert sum(prompt.held_out for prompt in ahead) == 3


def test_lines_are_held_out(tmp_path: Path) -> None:
    (file := tmp_path / "prompts.txt").write_text("".join(f"prompt {n}\n" for n in range(100)))
    prompts = read_prompts([file], tokenize, n_prompts=60)
    apart, trained = held(prompts)
    assert (len(apart), len(trained)) == (4, 56) and not apart & trained


def test_held_out_files_of_the_user(documents: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    for name in ("01.py", "02.py"):
        (apart / name).write_bytes((documents / name).read_bytes())  # the same text in both
    prompts = read_prompts([documents], tokenize, n_prompts=100, held_out_paths=[apart], sizes=(32,))
    outside, trained = held(prompts)
    assert outside == {"01.py", "02.py"} and not outside & trained
    assert prompts.n_held_out == 5
    listed = jsonl(tmp_path / "held.jsonl", *({"prompt": f"held {n}"} for n in range(3)))
    prompts = read_prompts([documents], tokenize, n_prompts=60, held_out_paths=[listed])
    assert sum(prompt.source.startswith("held.jsonl") for prompt in prompts if prompt.held_out) == 3
    with pytest.raises(ValueError, match="held_out is 0"):
        read_prompts([documents], tokenize, held_out=0, held_out_paths=[apart])


def test_a_document_alone_lends_its_end(tmp_path: Path) -> None:
    (file := tmp_path / "book.md").write_text("".join(f"line {line:04} of it\n" for line in range(1000)))
    prompts = read_prompts([file], tokenize, n_prompts=200, sizes=(16,), held_out=0.1)
    assert held(prompts) == ({"book.md (end)"}, {"book.md"})
    number = {True: [], False: []}
    for prompt in prompts:
        number[prompt.held_out].append(int(text_of(prompt.tokens)[5:9]))
    assert max(number[False]) < min(number[True])


def test_the_same_seed_gives_the_same_prompts(documents: Path) -> None:
    digests = [read_prompts([documents], tokenize, n_prompts=50, seed=seed).digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


# ---- chat templates ------------------------------------------------------------------------------------


def test_templates_have_what_models_use() -> None:
    template = ChatTemplate(
        "{%- for m in messages %}\n"
        "    {%- if m.role == 'tool' %}{% continue %}{% endif %}\n"
        "    {%- generation %}{{ m.content | tojson }}{% endgeneration %}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ eos_token }}{{ strftime_now('%Y') }}{{ style }}{% endif %}",
        {"eos_token": "<eos>"},
    )
    messages = [{"role": "user", "content": "<ü>"}, {"role": "tool", "content": "x"}]
    assert template.render(messages, datetime(2031, 2, 3), style="!") == '"<ü>"<eos>2031!'


def test_templates_can_refuse_and_do_no_harm() -> None:
    refusing = ChatTemplate("{{ raise_exception('only one turn') }}", {})
    with pytest.raises(ValueError, match="only one turn"):
        refusing.render([])
    escaping = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(ValueError, match="unsafe"):
        escaping.render([])
    with pytest.raises(ModelFileError, match="chat template"):
        ChatTemplate("{% if %}", {})


def test_dates_in_templates_do_not_change_with_the_day(tmp_path: Path) -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}", {})
    records = ({"messages": [{"role": "user", "content": f"{n}"}]} for n in range(20))
    file = jsonl(tmp_path / "prompts.jsonl", *records)
    once, again = (read_prompts([file], tokenize, template, seed=1) for _ in range(2))
    assert once.digest() == again.digest()
    assert len({text[:10] for text in texts(once)}) > 10


def test_the_demo_target_reads_prompts(documents: Path) -> None:
    with pydflash2.load(head=None) as engine:
        prompts = read_prompts([documents], engine._native.tokenize, n_prompts=40, sizes=(8, 16))
    assert {len(prompt.tokens) for prompt in prompts} == {8, 16}

"""Lookup drafters: against a model in Python, against llama.cpp's own, and what must hold of any draft.

tests/native/lookup.cpp reads a script of texts and prints drafts.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(os.environ.get("PYDFLASH2_TEST_BUILD", Path(__file__).parent.parent / "build" / "tests"))
LOOKUP = FOLDER / "lookup"

pytestmark = pytest.mark.skipif(
    not LOOKUP.exists(),
    reason=f"no {LOOKUP}: cmake -S . -B build/tests -DPYDFLASH2_BUILD_TESTS=ON, then build lookup",
)

LONGEST_MATCH, MOST_PLACES = 64, 32  # of csrc/speculation/lookup.cpp
NAMES = ("map-k4v", "mod")


class Lookup(NamedTuple):
    match_length: int
    hits: int
    tokens: list[int]


NOTHING = Lookup(0, 0, [])


def line(command: str, *arguments: object) -> str:
    return " ".join(map(str, (command, *arguments)))


def run(script: list[str]) -> list[Lookup]:
    """What the script's drafts are."""
    done = subprocess.run([LOOKUP], input="\n".join(script), capture_output=True, text=True, timeout=600)
    if done.returncode == 1 and "no drafter llama" in done.stderr:
        pytest.skip("the program was built from a llama.cpp folder without ngram-map.cpp and ngram-mod.cpp")
    assert done.returncode == 0, done.stderr
    answers = [list(map(int, answer.split())) for answer in done.stdout.splitlines()]
    return [Lookup(answer[0], answer[1], answer[2:]) for answer in answers]


def draft_at_once(name: str, text: list[int], key: int, most: int) -> Lookup:
    return run([line("new", name, key, most), line("add", *text), line("draft", most)])[0]


# ---- a model -----------------------------------------------------------------------------------------------


def places_of(text: list[int], key: list[int]) -> list[int]:
    """Where the key stands with a token after it, latest first."""
    n = len(key)
    return [place for place in reversed(range(len(text) - n)) if text[place : place + n] == key]


def match_length(text: list[int], place: int, n: int) -> int:
    length = n
    while length < LONGEST_MATCH and place + n > length and text[place + n - length - 1] == text[-length - 1]:
        length += 1
    return length


def model_mod(text: list[int], n: int, most: int) -> Lookup:
    places = places_of(text, text[-n:])
    if len(text) <= n or not places:
        return NOTHING
    window = text[-n:]
    while len(window) < n + most:
        window.append(text[places_of(text, window[-n:])[0] + n])
    return Lookup(match_length(text, places[0], n), 1, window[n:])


def model_value(text: list[int], n: int, most: int) -> tuple[list[int], list[int]]:
    """What `most` tokens after the text's last n are agreed on, and the places that agree."""
    places = places_of(text, text[-n:])[:MOST_PLACES] if len(text) > n else []
    draft: list[int] = []
    while places and len(draft) < most:
        ahead = n + len(draft)
        voters = [place for place in places if place + ahead < len(text)] or [places[-1]]
        votes = Counter((text + draft)[place + ahead] for place in voters)
        token, count = votes.most_common(1)[0]
        if count < 2 * (len(voters) - count):
            break
        places = [p for p in places if p not in voters or (text + draft)[p + ahead] == token]
        draft.append(token)
    return draft, places


class ModelMap:
    def __init__(self, n: int, most: int) -> None:
        self.n, self.most = n, most
        self.begin()

    def begin(self) -> None:
        self.limits: dict[tuple[int, ...], int] = {}
        self.value: tuple[int, ...] | None = None

    def draft(self, text: list[int], most: int) -> Lookup:
        draft, places = model_value(text, self.n, self.most)
        self.value = tuple(text[-self.n :] + draft)
        draft = draft[: min(most, self.limits.get(self.value, self.most))]
        if not draft:
            self.value = None
            return NOTHING
        longest = max(match_length(text, place, self.n) for place in places)
        return Lookup(longest, len(places), draft)

    def accepted(self, n_drafted: int, n_accepted: int) -> None:
        if self.value is None:
            return
        before = self.limits.get(self.value, self.most)
        stood = n_accepted == n_drafted
        self.limits[self.value] = max(before, 2 * n_accepted) if stood else max(n_accepted, 1)


TOKENS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(TOKENS, max_size=30)),
    st.tuples(st.just("repeat"), st.integers(0, 60), st.integers(1, 40)),
    st.tuples(st.just("cut"), st.integers(0, 40)),
    st.tuples(st.just("begin"), st.integers(0, 60), st.lists(TOKENS, max_size=30)),
    st.tuples(st.just("accept"), st.integers(0, 12)),
)


@given(steps=st.lists(STEPS, max_size=25), n=st.integers(1, 5), most=st.integers(1, 12), data=st.data())
def test_a_changing_text_is_drafted_for_as_the_model_says(
    steps: list[Any], n: int, most: int, data: st.DataObject
) -> None:
    """The model looks at each text afresh: what begin() keeps and a cut takes back makes no difference."""
    text: list[int] = []
    model = ModelMap(n, most)
    scripts = {name: [line("new", name, n, most)] for name in NAMES}
    expected: dict[str, list[Lookup]] = {name: [] for name in NAMES}
    for what, *arguments in steps:
        command = ""
        match what, arguments:
            case "add", [more]:
                text, command = text + more, line("add", *more)
            case "repeat", [back, length]:
                more = text[len(text) - min(back, len(text)) :][:length]
                text, command = text + more, line("add", *more)
            case "cut", [fewer]:
                text = text[: max(len(text) - fewer, 0)]
                command = line("cut", len(text))
            case "begin", [kept, more]:
                text = text[:kept] + more
                command = line("begin", *text)
                model.begin()
            case "accept", [n_accepted]:
                if not expected["map-k4v"] or not expected["map-k4v"][-1].tokens:
                    continue
                n_drafted = len(expected["map-k4v"][-1].tokens)
                n_accepted = min(n_accepted, n_drafted)
                model.accepted(n_drafted, n_accepted)
                command = line("accepted", n_drafted, n_accepted)
        wanted = data.draw(st.sampled_from((most, most + 3, 2, 0)))
        for script in scripts.values():
            script += [command, line("draft", wanted)]
        expected["map-k4v"].append(model.draft(text, wanted))
        expected["mod"].append(model_mod(text, n, min(wanted, most)) if wanted else NOTHING)
    for name in NAMES:
        assert run(scripts[name]) == expected[name]


# ---- texts of some length ----------------------------------------------------------------------------------


def text_with_repeats(seed: int, alphabet: int, length: int, changed: float = 0.02) -> list[int]:
    """Half new tokens, half copies of 20 to 150 tokens from before with some of them changed."""
    draw = random.Random(seed)
    text: list[int] = []
    while len(text) < length:
        n = draw.randint(20, 150)
        start = draw.randrange(max(len(text) - n, 1))
        copy = text[start : start + n] if draw.random() < 0.5 else []
        copy = copy or [draw.randrange(alphabet) for _ in range(n)]
        text += [draw.randrange(alphabet) if draw.random() < changed else token for token in copy]
    return text[:length]


TEXTS = [(seed, alphabet) for seed in range(3) for alphabet in (2, 3, 5, 12, 50)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seed", "alphabet"), TEXTS)
def test_every_draft_followed_its_key_before(name: str, seed: int, alphabet: int) -> None:
    key, most = 12, 48
    text = text_with_repeats(seed, alphabet, 1500)
    ends = range(20, len(text), 7)
    script = [line("new", name, key, most)]
    for end, before in zip(ends, [0, *ends], strict=False):
        script += [line("add", *text[before:end]), line("draft", most)]
    drafts = run(script)
    assert sum(map(bool, drafts)) > 20
    for end, lookup in zip(ends, drafts, strict=True):
        assert len(lookup.tokens) <= most
        assert (lookup == NOTHING) == (not lookup.tokens)
        if name == "map-k4v" and lookup.tokens:
            agreeing = model_value(text[:end], key, most)[1]
            assert lookup.hits == len(agreeing)
            assert text[end - key : end] == text[agreeing[0] : agreeing[0] + key]
        known, read = text[:end], text[:end] + lookup.tokens
        grams = {tuple(known[i : i + key + 1]) for i in range(end - key)} if name == "mod" else set()
        for t in range(len(lookup.tokens) if name == "mod" else 0):
            assert tuple(read[end + t - key : end + t + 1]) in grams


@pytest.mark.parametrize("name", NAMES)
def test_repetition_is_continued_past_the_end(name: str) -> None:
    text = [9, 8, 7, 6] + 6 * [1, 2, 3]
    assert draft_at_once(name, text, 4, 10).tokens == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_short_or_new_texts(name: str) -> None:
    for text in ([], [1], [1, 1], list(range(100))):
        assert draft_at_once(name, text, 3, 8) == NOTHING


def test_values_are_drafted_as_far_as_they_agree() -> None:
    key, common = [1, 2, 3, 4], [5, 6, 7]
    values = [[*key, *common, 20, 21], [*key, *common, 30, 31], [*key, *common, 20, 21]]
    two = [*values[0], *values[1], *key]
    assert draft_at_once("map-k4v", two, 4, 5).tokens == common
    three = [*values[0], *values[1], *values[2], *key]
    assert draft_at_once("map-k4v", three, 4, 5).tokens == [*common, 20, 21]  # twice as often as the other
    assert draft_at_once("mod", two, 4, 5).tokens == [*common, 30, 31]  # what came last


def test_matches_are_measured_backwards() -> None:
    same = list(range(100, 120))
    text = [1, *same, 50, 51, 52, 2, *same]
    for name in NAMES:
        assert draft_at_once(name, text, 12, 3) == Lookup(20, 1, [50, 51, 52])
    long = list(range(100, 200))
    assert draft_at_once("mod", [*long, 1, *long], 12, 1).match_length == LONGEST_MATCH


def test_memory_grows_with_the_text_alone() -> None:
    text = text_with_repeats(1, 50, 3000, changed=1.0)
    for name in NAMES:
        script = [line("new", name, 12, 64), line("begin", *text), "draft 64"]
        for _ in range(20):  # drafts, verdicts and new texts add nothing
            script += ["accepted 64 0", line("begin", *text[:1500]), line("begin", *text), "draft 64"]
        done = subprocess.run(
            [LOOKUP], input="\n".join([*script, "bytes"]), capture_output=True, text=True, check=True
        )
        assert int(done.stdout.splitlines()[-1]) < 40 * len(text) + 8192


# ---- llama.cpp ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "alphabet"), TEXTS)
def test_mod_is_llama_cpps(seed: int, alphabet: int) -> None:
    """Whatever the verdicts: its resets are refilled from the same text."""
    text = text_with_repeats(seed, alphabet, 3000)
    answers = {}
    for name in ("mod", "llama-mod"):
        script = [line("new", name, 12, 64), line("begin", *text[:500])]
        for end in range(500, len(text), 5):
            script += [line("draft", 64), "accepted 64 0", line("add", *text[end : end + 5])]
        answers[name] = run(script)
    collided = [theirs.hits < 0 for theirs in answers["llama-mod"]]
    assert sum(collided) < 0.2 * len(collided)
    compared = 0
    for ours, theirs, skip in zip(answers["mod"], answers["llama-mod"], collided, strict=True):
        if not skip:
            assert ours.tokens == theirs.tokens
            compared += bool(ours.tokens)
    assert compared > 50


def whole_values(text: list[int], n: int, m: int) -> list[tuple[int, ...]] | None:
    """The m tokens after each place of the text's last n, latest first. None: llama.cpp sees others."""
    places = places_of(text, text[-n:])
    if len(text) <= 2 * n + m or not places or len(places) > MOST_PLACES:
        return None
    if places[0] >= len(text) - 1 - n - m or places[-1] == 0:
        return None
    return [tuple(text[place + n : place + n + m]) for place in places]


def test_map_is_llama_cpps_on_a_text_at_once() -> None:
    n, m = 4, 12
    scripts: dict[str, list[str]] = {"map-k4v": [], "llama-map-k4v": []}
    texts = []
    for seed, alphabet in [(seed, alphabet) for seed in range(60) for alphabet in (2, 4, 7, 20, 50)]:
        text = text_with_repeats(seed, alphabet, random.Random(seed).randint(30, 3000), changed=0.01)
        texts += [text[: len(text) - back] for back in range(0, len(text) // 2, len(text) // 15)]
    for text in texts:
        for name, script in scripts.items():
            script += [line("new", name, n, m), line("begin", *text), line("draft", m)]
    ours, theirs = (run(script) for script in scripts.values())
    outcomes: Counter[str] = Counter()
    for text, mine, other in zip(texts, ours, theirs, strict=True):
        values = whole_values(text, n, m)
        if values is None or len(set(values)) > 4:
            outcomes["other places"] += 1
            continue
        value, count = Counter(values).most_common(1)[0]
        if count < 2 * (len(values) - count):
            assert not other.tokens
            agreed = [tokens[0] for tokens in zip(*values, strict=True) if len(set(tokens)) == 1]
            first = next(i for i, tokens in enumerate(zip(*values, strict=True)) if len(set(tokens)) > 1)
            assert mine.tokens[:first] == agreed[:first]
            outcomes["no majority"] += 1
        elif value == values[0]:
            assert mine.tokens == other.tokens == list(value)
            outcomes["same"] += 1
        else:  # the place that llama.cpp reads from is the latest, whatever won
            assert mine.tokens == list(value)
            assert other.tokens == list(values[0])
            outcomes["not the majority's"] += 1
    assert outcomes["same"] > 200, outcomes
    assert outcomes["no majority"] > 50, outcomes


def test_map_is_llama_cpps_while_a_text_grows() -> None:
    n, m = 12, 48
    compared = 0
    for seed, alphabet in TEXTS:
        text = text_with_repeats(seed, alphabet, 3000, changed=0.005)
        answers = []
        for name in ("map-k4v", "llama-map-k4v"):
            script = [line("new", name, n, m), line("begin", *text[:1000])]
            for end in range(1000, len(text), 3):
                script += [line("draft", m), line("add", *text[end : end + 3])]
            answers.append(run(script))
        for end, mine, other in zip(range(1000, len(text), 3), *answers, strict=True):
            values = whole_values(text[:end], n, m) if other.tokens else None
            if values and len(set(values)) == 1:
                assert mine.tokens == other.tokens
                compared += 1
    assert compared > 500


def test_verdicts_limit_the_next_draft_of_a_value() -> None:
    text = [1, 2, *range(100, 130), *range(50), *range(100, 104)]  # llama.cpp never looks at place 0
    again = [*range(104, 110), 77, 78, *range(100, 104)]  # 6 tokens of the value, then another one
    for name in ("map-k4v", "llama-map-k4v"):
        script = [line("new", name, 4, 12), line("begin", *text), "draft 12", "accepted 12 6", "draft 12"]
        assert [len(lookup.tokens) for lookup in run(script)] == [12, 6]
    script = [line("new", "map-k4v", 4, 12), line("begin", *text)]
    grows = [*script, "draft 12", "accepted 12 0", *3 * ["draft 12", "accepted 1 1", "draft 12"]]
    assert [len(lookup.tokens) for lookup in run(grows)] == [12, 1, 2, 2, 2, 2, 2]
    whole = [*script, "draft 12", "accepted 12 3", "draft 12", "accepted 3 3", "draft 12", "accepted 6 6"]
    assert [len(lookup.tokens) for lookup in run([*whole, "draft 12"])] == [12, 3, 6, 12]
    shorter = [*script, "draft 4", "accepted 4 4", "draft 12"]  # a short draft that stood limits nothing
    assert [len(lookup.tokens) for lookup in run(shorter)] == [4, 12]
    divided = [*script, line("add", *again), "draft 12"]  # nor is a verdict needed where the text tells
    assert [len(lookup.tokens) for lookup in run(divided)] == [6]
    anew = [*script, "draft 12", "accepted 12 0", line("begin", *text), "draft 12"]
    assert [len(lookup.tokens) for lookup in run(anew)] == [12, 12]


def edited_files(seed: int) -> list[list[int]]:
    """A file of 800 tokens and seven versions of it, each with a few lines replaced, moved or removed."""
    draw = random.Random(seed)

    def line_of_tokens() -> list[int]:
        return [draw.randrange(5000) for _ in range(draw.randint(4, 20))]

    lines = [line_of_tokens() for _ in range(70)]
    versions = []
    for _ in range(8):
        versions.append([token for tokens in lines for token in tokens])
        for _ in range(3):
            at = draw.randrange(len(lines))
            lines[at : at + draw.randint(0, 2)] = [line_of_tokens() for _ in range(draw.randint(0, 2))]
    return versions


def rounds(name: str, prompt: list[int], answer: list[int]) -> int:
    """Rounds in which a target that will write `answer`, whatever is drafted, commits it."""
    text, n_rounds = list(prompt), 0
    script = [line("new", name, 12, 48), line("begin", *prompt)]
    end = len(prompt) + len(answer)
    whole = prompt + answer
    with subprocess.Popen([LOOKUP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin and program.stdout
        while len(text) < end:
            program.stdin.write("\n".join([*script, "draft 48", ""]))
            program.stdin.flush()
            draft = [int(number) for number in program.stdout.readline().split()[2:]]
            n = 0
            while n < len(draft) and len(text) + n + 1 < end and draft[n] == whole[len(text) + n]:
                n += 1
            more = whole[len(text) : len(text) + n + 1]
            script = [line("accepted", len(draft), n)] if draft else []
            script.append(line("add", *more))
            text += more
            n_rounds += 1
        program.stdin.close()
    return n_rounds


@pytest.mark.parametrize("seed", range(4))
def test_editing_a_file_takes_no_more_rounds_than_with_llama_cpps(seed: int) -> None:
    """A session whose turns write the file again, each prompt holding all versions so far."""
    versions = edited_files(seed)
    totals: Counter[str] = Counter()
    for name in ("map-k4v", "mod", "llama-map-k4v"):
        prompt = list(versions[0])
        for version in versions[1:]:
            totals[name] += rounds(name, prompt, version)
            prompt += version
    assert totals["map-k4v"] <= totals["llama-map-k4v"]
    assert totals["mod"] <= totals["llama-map-k4v"]

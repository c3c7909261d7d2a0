"""The engine: a target, the head that drafts for it, and the loop of rounds between them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, SupportsIndex, TypeVar

import numpy as np

from pydflash2 import arguments, calibration, kept
from pydflash2.calibration import Costs
from pydflash2.devices import Placement
from pydflash2.drafts import Drafts
from pydflash2.errors import ContextOverflowError, EngineBusyError
from pydflash2.exactness import Exactness, RowCheck
from pydflash2.native import NativeEngine, SamplingStruct
from pydflash2.results import Draft, Memory, Piece, Result, Stats, TokenLogprob, Verdict
from pydflash2.settings import (
    DEFAULTS,
    SAMPLING_DEFAULTS,
    Request,
    SamplingSettings,
    Settings,
    Width,
    complete,
    shown,
    width_of,
)
from pydflash2.text import TextStream

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt = str | Iterable[SupportsIndex]

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


def _in_turn(
    call: Callable[Concatenate[Engine, _Arguments], _Returned],
) -> Callable[Concatenate[Engine, _Arguments], _Returned]:
    """Refuses a call while another one is at work.

    Between `try` and `append`, and between `finally` and `remove`, Ctrl-C finds no gap. A context manager
    written in Python has one at both ends, and would leave the engine busy.
    """

    @functools.wraps(call)
    def taken(self: Engine, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned:
        turn = object()
        try:
            self._turns.append(turn)
            self._check_turn(turn)
            return call(self, *args, **kwargs)
        finally:
            self._turns.remove(turn)

    return taken


class Engine:
    """A loaded pair and one text. `load` makes it; `close`, `with`, or its last reference's end closes it.

    `generate` and `stream` run the whole loop; `prefill`, `draft` and `verify` are its steps. Every new
    prompt begins a new text, and the part that it shares with the text before isn't computed again.

    One call at a time: a call during another thread's, or while a stream is neither finished nor closed,
    raises EngineBusyError. After `close` every call raises EngineClosedError.
    """

    def __init__(
        self, native: NativeEngine, target: Path, head: Path | None, no_head: str, options: dict[str, Any]
    ) -> None:
        self._native = native
        self._target, self._head = target, head
        self._no_head = no_head  # why, for stats.drafting
        self._turns: list[object] = []  # calls at work; the first has the engine, others are being refused
        self._warned = False
        self._seed: int | None = None  # of the text begun last
        self._draft_temperature = 0.0  # for drafts by hand

        self._full_width, self._limit_reason = 0, ""
        if native.head is not None:
            self._full_width = native.head.block_size - 1
            limit = native.target.rollback_limit
            if 0 <= limit < self._full_width:
                self._full_width = limit
                self._limit_reason = f"this target's state can take back {limit} tokens a round"
        key = kept.key_of(native, target)  # now, not when it is needed: the file may be another by then
        self._exactness = Exactness(native, key, self._full_width, options)
        self._costs_key = calibration.key_of(key, head, options)
        self._costs = calibration.read(self._costs_key)
        self._costs_tried = self._costs_applied = False

    def __repr__(self) -> str:
        head = None if self._head is None else self._head.name
        state = "closed" if self._native.closed else f"context_size={self.context_size}"
        return f"<pydflash2.Engine target={self._target.name!r} head={head!r} {state}>"

    def __enter__(self) -> Engine:
        self._native.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees models and caches, after the step that another thread may be in. Twice does no harm."""
        self._native.close()

    @property
    def context_size(self) -> int:
        """Tokens a text can have, prompt included."""
        return int(self._native.target.context_size)

    @property
    def block_size(self) -> int | None:
        """Rows of the head's block: the anchor and block_size - 1 drafted tokens. None without a head."""
        return None if self._native.head is None else int(self._native.head.block_size)

    @property
    def placement(self) -> Placement:
        """Which devices hold the target and the head, and run the head's operations."""
        return self._native.placement()

    @property
    def memory(self) -> Memory:
        """Where memory went when the pair was loaded."""
        target, head = self._native.target, self._native.head
        known = Memory(int(target.context_size), int(target.weight_bytes))
        if head is None:
            return known
        return replace(
            known,
            drafter_weights=int(head.weight_bytes - head.vocabulary_bytes),
            draft_vocabulary=int(head.vocabulary_bytes),
            draft_tokens=int(head.n_candidates),
            target_tokens=int(target.n_vocab),
            drafter_kv=int(head.cache_bytes),
            drafter_kv_per_token=int(head.cache_per_token),
            drafter_compute=int(head.compute_bytes) or None,
        )

    @property
    def tokens(self) -> list[int]:
        """Everything committed, prompt included. The last one is the anchor.

        After a stop string it can reach a few tokens further than the result: to the end of the round.
        """
        return self._native.tokens()

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a prompt as `generate` makes them: with the tokens the model puts around a text (a
        beginning token, mostly), and with special tokens such as <|im_end|> recognised where the text
        spells them.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}: give a str")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has half a surrogate pair at character {error.start}, which no model can read: "
                "decode your input as UTF-8 with errors='replace'"
            ) from None
        return self._native.tokenize(data, add_special=True, parse_special=True)

    def detokenize(self, tokens: Iterable[SupportsIndex]) -> str:
        """Text of tokens. Special tokens have none."""
        return b"".join(map(self._native.token_bytes, self._checked(tokens))).decode("utf-8", "replace")

    @_in_turn
    def check_rows(self) -> RowCheck | None:
        """By how much logits move when drafts of 1, 2, ... tokens are verified; None without a head.

        Measured once for a target, its devices and this build, then read from the user's cache folder.
        Ends the text that is there: the next prompt is computed from its beginning.
        """
        return self._exactness.measure()

    @_in_turn
    def calibrate(
        self, runs: int = 7, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Costs:
        """Measures what a draft and a verification of each width take here, `runs` times each, and keeps the
        medians in the user's cache folder: engines that are loaded later for this pair begin with them. This
        one uses them too. progress(steps done, steps in all) is called after each step.

        Ends the text that is there.
        """
        count = arguments.integer("runs", runs, 1)
        self._costs = calibration.measure(self._native, self._full_width, count, progress)
        calibration.write(self._costs_key, self._costs)
        self._costs_applied = False  # the next request does
        return self._costs

    # ---- the whole loop ----

    @shown(DEFAULTS)
    def generate(self, prompt: Prompt, **settings: Unpack[Settings]) -> Result:
        """Continues a prompt and returns when the text is complete: a text the target alone would write.

        prompt: text (see `tokenize`) or token ids.
        max_tokens: tokens generated at most; None: until the context is full.
        temperature: 0, greedy decoding: always the target's likeliest token. Above 0 tokens are drawn from
            the target's distribution, exactly, whatever the head proposes.
        logit_bias, repeat_penalty, presence_penalty, frequency_penalty, penalty_last_n, grammar, top_k,
            typical_p, top_p, min_p: llama.cpp's samplers, applied in this order, the temperature last. At
            their defaults they do nothing. logit_bias: {token id: added to its logit}, -inf forbids a token.
            grammar: GBNF with a rule named root. top_k: 0 keeps all. penalty_last_n: -1 looks back at all.
        json_schema: instead of grammar. The text is a JSON document of this schema, given as a dict, JSON
            text, True (any document), or a class with model_json_schema(), such as a pydantic model.
        seed: the same seed and settings give the same text; None: a fresh one, returned with the result.
            (No clock chooses the widths of a text that is drawn: what steps cost is measured before, once
            for a pair and its devices, as `calibrate` does.)
        stop: a string, or several. The text ends before the one that is completed first.
        logprobs: N: result.logprobs has the target's own log-probability of each token, and of the N
            likeliest ones.
        speculate: False decodes without the head.
        max_draft_tokens: tokens the head drafts a round. It counts drafted tokens, as llama.cpp and vLLM do
            (SGLang counts the anchor too). "auto": each round the number that is expected to be fastest,
            none where drafting doesn't pay. A number: always that many, block_size - 1 at most; a greater
            one is brought down to that, with one warning. 0 is plain decoding.
        lookup: drafts from the text itself, of what followed its last 12 tokens where they stood before.
            "auto": where that is expected to be faster; with a number in max_draft_tokens, off. "map-k4v",
            "mod": that one wherever it finds something, else the head. "off": never.
        min_draft_probability: a draft ends before its probability, the product of its tokens' as the head
            sees them, falls below this. (llama.cpp's p_min looks at one token's alone.)
        draft_temperature: the temperature that drafts are drawn at. It changes what is accepted, never the
            text's distribution. "auto": what is accepted most; 0: the likeliest path.

        Raises ContextOverflowError before anything is computed where prompt and max_tokens don't fit the
        context, EngineBusyError, EngineClosedError, OutOfMemoryError, NativeError; ValueError, TypeError.
        Ctrl-C ends it after the step that is running, and leaves the engine usable.
        """
        return _finish(self._run(self._plan(prompt, Request.of(settings))))

    @shown(DEFAULTS)
    def stream(self, prompt: Prompt, **settings: Unpack[Settings]) -> Generator[Piece, None, Result]:
        """Like `generate`, but a generator of pieces, one a round. Their texts joined are the result's
        text, and the generator's return value is the result.

        Arguments are checked at once. From the first piece on the engine is busy, until the stream ends, is
        closed, or is dropped. A stream that is closed early leaves the engine usable.
        """
        return self._run(self._plan(prompt, Request.of(settings)))

    @shown(DEFAULTS)
    def samples(self, prompt: Prompt, n: int, **settings: Unpack[Settings]) -> list[Result]:
        """`n` texts for one prompt, whose prefill is shared. Their seeds count up from `seed`, so that each
        can be had again alone. Raises as `generate` does.
        """
        count = arguments.integer("n", n, 1)
        plan = self._plan(prompt, Request.of(settings))
        results = []
        for i in range(count):
            seeded = replace(plan.request, seed=(plan.request.seed + i) % 2**64)
            plan.sampling.struct.seed = seeded.seed
            results.append(_finish(self._run(replace(plan, request=seeded))))
        return results

    def _plan(self, prompt: Prompt, request: Request) -> _Plan:
        self._native.check_open()
        if self._turns:
            raise EngineBusyError(_BUSY)
        drafts = self._drafts(request, stacklevel=4)
        tokens = self._prompt(prompt)
        room = self._room(tokens, request.max_tokens)
        sampling = self._native.sampling(request.sampling, request.seed, request.logprobs)
        return _Plan(request, tokens, request.max_tokens or room, drafts, sampling)

    def _run(self, plan: _Plan) -> Generator[Piece, None, Result]:
        drafts = plan.drafts
        stats = Stats(drafting=drafts.why, prompt_tokens=len(plan.prompt))
        text = TextStream(plan.request.stop)
        pieces: list[Piece] = []
        count = 0
        turn = object()
        try:  # as in _in_turn
            self._turns.append(turn)
            self._check_turn(turn)
            if drafts.on:
                drafts = self._exactness.limited(drafts)
                self._set_costs()
            start = perf_counter()
            stats.reused_tokens, anchor = self._prefill(plan.prompt, drafts.width > 0, plan.sampling)
            self._seed, self._draft_temperature = plan.request.seed, plan.request.draft_temperature
            stats.prefill_seconds = perf_counter() - start
            if drafts.width > 0 and (obstacle := self._native.draft_obstacle()) is not None:
                drafts = replace(drafts, width=0, why=f"off: {obstacle}")
            stats.drafting, stats.max_draft_tokens = drafts.why, drafts.width
            stats.accepted_by_position = [0] * drafts.width
            stats.rounds_by_width = [0] * (drafts.width + 1)
            params = drafts.params(plan.request)

            committed, ended = [anchor], self._native.is_end(anchor)
            while True:
                shown, committed = self._show(committed, ended, text)
                logprobs = self._logprobs(committed) if plan.request.logprobs is not None else None
                piece = Piece(shown, committed, logprobs=logprobs)
                pieces.append(piece)
                count += len(committed)
                if ended or text.stopped or count >= plan.max_tokens:
                    break
                yield piece
                params.max_commit = plan.max_tokens - count
                done = self._native.round(params)
                committed, ended = done.tokens, done.finished
                stats.count(done.drafter, done.n_drafted, done.n_accepted)
                stats.draft_seconds += done.draft_seconds
                stats.verify_seconds += done.verify_seconds
        finally:
            self._turns.remove(turn)

        reason = "stop" if ended or text.stopped else "length"
        stats.logit_difference = self._exactness.difference(stats.rounds_by_width)
        stats.generated_tokens = count
        pieces[-1] = replace(piece, text=shown + text.finish(), finish_reason=reason, stats=stats)
        yield pieces[-1]
        return Result(
            "".join(piece.text for piece in pieces),
            [token for piece in pieces for token in piece.tokens],
            reason,
            plan.request.seed,
            stats,
            [entry for piece in pieces for entry in piece.logprobs or []]
            if plan.request.logprobs is not None
            else None,
        )

    def _set_costs(self) -> None:
        """Before a request's first round, once its widths are settled: settling begins anew."""
        if self._costs is None and not self._costs_tried:
            self._costs_tried = True
            self._costs = calibration.read(self._costs_key)  # another engine may have measured meanwhile
            if self._costs is None:
                self._costs = calibration.measure_quickly(self._native, self._full_width)
                if self._costs is not None:
                    calibration.write(self._costs_key, self._costs)
        if self._costs is not None and not self._costs_applied:
            self._costs_applied = True
            calibration.apply(self._native, self._costs)

    def _show(self, committed: list[int], ended: bool, text: TextStream) -> tuple[str, list[int]]:
        """The text that is certain now, and the tokens up to the one that completed a stop string."""
        piece = ""
        for count, token in enumerate(committed, start=1):
            if ended and count == len(committed):
                break  # an end token is no text
            piece += text.feed(self._native.token_bytes(token))
            if text.stopped:
                return piece, committed[:count]
        return piece, committed

    def _logprobs(self, committed: list[int]) -> list[TokenLogprob]:
        """Of the tokens that the last step committed, or the first of them where a stop string cut them."""
        found = self._native.logprobs()[: len(committed)]
        return [TokenLogprob(token, own, top) for token, (own, top) in zip(committed, found, strict=True)]

    # ---- its steps ----

    @shown(SAMPLING_DEFAULTS)
    @_in_turn
    def prefill(self, tokens: Prompt, **settings: Unpack[SamplingSettings]) -> int:
        """Begins a new text with a prompt and returns the anchor: the first token that the target chooses.

        settings: how the target chooses this text's tokens; see `generate`. Only what the caches don't hold
        of the prompt already is computed. Raises as `generate` does.
        """
        request = Request.of(complete(settings, SAMPLING_DEFAULTS))
        prompt = self._prompt(tokens)
        self._room(prompt, None)
        sampling = self._native.sampling(request.sampling, request.seed, None)
        anchor = self._prefill(prompt, self._native.head is not None, sampling)[1]
        self._seed, self._draft_temperature = request.seed, request.draft_temperature
        return anchor

    @_in_turn
    def draft(
        self,
        max_draft_tokens: Width = "auto",
        temperature: float | None = None,
        min_probability: float = 0.0,
    ) -> Draft:
        """Proposes the tokens after the anchor: `max_draft_tokens`, fewer near the end of the context, and
        none from the point on where the draft's probability would fall below `min_probability`.

        temperature: 0 proposes the likeliest path, a positive one draws it; None: what suits the text's own.
        Changes nothing that was committed: it can be called again, and its draft can be dropped. Raises
        ValueError where there is nothing to draft from: no head, or no prefill before.
        """
        width, drafting = self._width(max_draft_tokens, stacklevel=4)
        chosen = self._draft_temperature
        if temperature is not None:
            chosen = arguments.number("temperature", temperature, 0)
        least = arguments.number("min_probability", min_probability, 0, 1)
        if width == 0:
            raise ValueError(f"nothing can be drafted ({drafting}); verify([]) decodes one token plainly")
        made = self._native.draft_arrays(self._native.draft(width, chosen, least))
        n = len(made.tokens)
        # The row of scores that counts at t is the one after the candidate that the path took at t - 1.
        rows = [0] + [int(np.argmax(made.candidates[t] == token)) for t, token in enumerate(made.tokens[:-1])]
        scores = made.scores[np.arange(n), rows[:n]]
        return Draft(made.tokens, made.probabilities, made.candidates[:n], scores, made.proposal)

    @_in_turn
    def verify(self, draft: Draft | Iterable[SupportsIndex]) -> Verdict:
        """Lets the target judge a draft (or any token ids; [] for a plain step), commits the part it accepts
        and its own next token. The only call that moves the text forward. Raises ContextOverflowError
        where the context has no room for the draft; nothing is changed then. With exact=True the target
        judges only as much from the start of the draft as leaves its logits alone.
        """
        tokens = self._checked(draft.tokens if isinstance(draft, Draft) else draft)
        candidates = q = None
        if isinstance(draft, Draft) and draft.proposal is not None:
            candidates, q = arguments.drawn_from(len(tokens), draft.candidates, draft.proposal)
        n = self._exactness.allowed(len(tokens))
        committed, verdict = self._native.verify_tokens(tokens[:n], candidates, q)
        bonus = committed[-1] if verdict.has_bonus else None
        return Verdict(committed, int(verdict.n_accepted), bonus, bool(verdict.finished))

    @property
    def seed(self) -> int | None:
        """Of the text that was begun last: with it and the same settings, it can be had again."""
        return self._seed

    def _prefill(self, prompt: list[int], drafting: bool, sampling: SamplingStruct) -> tuple[int, int]:
        """Returns how many tokens of the prompt were reused, and the anchor."""
        if not self._exactness.keeps_prefixes:
            self._native.forget()
        reused = self._native.begin(prompt, drafting, sampling)
        while self._native.prefill() > 0:
            pass  # a chunk a call, so that a signal is seen between two
        return reused, self._native.tokens()[-1]

    # ---- checks ----

    def _check_turn(self, turn: object) -> None:
        self._native.check_open()
        if self._turns[0] is not turn:
            raise EngineBusyError(_BUSY)

    def _drafts(self, request: Request, stacklevel: int) -> Drafts:
        """What may draft for a request."""
        if not request.speculate:
            return Drafts(0, False, "off", "off: speculate=False")
        auto = request.max_draft_tokens == "auto"
        width, why = self._width(request.max_draft_tokens, stacklevel + 1)
        lookup = request.lookup
        if lookup == "auto" and not auto:
            lookup = "off"
        if lookup != "off" and int(self._native.target.rollback_limit) == 0:
            lookup = "off"
            if self._native.head is None:
                why += ", and this target's state can take back no tokens"
        if width == 0 and lookup != "off":
            why = f"on, by lookup alone: {why.removeprefix('off: ')}"
        return Drafts(width, auto and width > 0, lookup, why)

    def _width(self, max_draft_tokens: Width, stacklevel: int) -> tuple[int, str]:
        """Tokens the head drafts a round, and stats.drafting for it."""
        on = f"on, {self._full_width} a round: {self._limit_reason}" if self._limit_reason else "on"
        width = width_of(max_draft_tokens)
        if width == "auto":
            width = self._full_width
        elif width == 0:
            return 0, "off: max_draft_tokens=0"
        if self._native.head is None:
            return 0, self._no_head
        if width > self._full_width:
            if not self._warned:
                self._warned = True
                why = self._limit_reason or f"the head's block has {self.block_size} rows, one the anchor's"
                warnings.warn(
                    f"max_draft_tokens={width} is more than this pair can draft: {self._full_width} is used "
                    f"({why})",
                    stacklevel=stacklevel,
                )
            width = self._full_width
        return (width, on) if width else (0, f"off: {self._limit_reason or 'the block has one row'}")

    def _prompt(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            tokens = self._checked(prompt)
            if not tokens:
                raise ValueError("the prompt has no tokens: give one at least")
            return tokens
        tokens = self.tokenize(prompt)
        if not tokens:
            raise ValueError(
                "the prompt is empty, and the target adds no token before a text: give some text"
            )
        return tokens

    def _checked(self, tokens: Iterable[SupportsIndex]) -> list[int]:
        self._native.check_open()
        return arguments.token_ids(tokens, self._native.target.n_vocab)

    def _room(self, prompt: list[int], max_tokens: int | None) -> int:
        """Tokens that can be generated after a prompt."""
        room = self.context_size - len(prompt)
        wanted = 1 if max_tokens is None else max_tokens
        if wanted <= room:
            return room
        generated = "the token to be generated" if max_tokens is None else f"max_tokens={max_tokens}"
        advice = f"load with context_size={len(prompt) + wanted}"
        advice += f" or ask for {room} tokens at most" if room > 0 else " or shorten the prompt"
        raise ContextOverflowError(
            f"the prompt's {len(prompt)} tokens and {generated} need {len(prompt) + wanted} places, but the "
            f"context has {self.context_size}: {advice}"
        )


@dataclass(frozen=True)
class _Plan:
    """A request on this engine."""

    request: Request
    prompt: list[int]
    max_tokens: int
    drafts: Drafts
    sampling: SamplingStruct


def _finish(run: Generator[Piece, None, Result]) -> Result:
    try:
        while True:
            try:
                next(run)
            except StopIteration as end:
                result: Result = end.value
                return result
    finally:
        run.close()  # a traceback that lives on must not keep the engine busy


_BUSY = (
    "the engine is busy with another call: finish or close() the stream that is open, or load another engine "
    "for the other thread"
)

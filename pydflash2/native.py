"""The thin layer over the compiled module: one method a native call, nothing decided here.

Each call is short (a prefill chunk, a draft, a verification), releases the interpreter lock, and is the
only place where a signal has to wait.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from pydflash2 import library
from pydflash2.devices import Choice, OperationPlace, Placement, TensorPlace
from pydflash2.errors import EngineBusyError, EngineClosedError, NativeError, error_from_status

if TYPE_CHECKING:
    from pydflash2.settings import Sampling

__all__ = [
    "LOOKUPS",
    "TAPS",
    "WALKS",
    "NativeEngine",
    "Round",
    "check",
    "devices",
    "ffi",
    "lib",
    "llama_cpp_pin",
    "string",
    "system_info",
]

_native = library.load()
ffi, lib = _native.ffi, _native.lib

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

TAPS = {"auto": lib.PD2_TAPS_AUTO, "wired": lib.PD2_TAPS_WIRED, "callback": lib.PD2_TAPS_CALLBACK}

SPLITS = {
    "layer": lib.PD2_SPLIT_LAYER,
    "none": lib.PD2_SPLIT_NONE,
    "row": lib.PD2_SPLIT_ROW,
    "tensor": lib.PD2_SPLIT_TENSOR,
}

LOOKUPS = {
    "auto": lib.PD2_LOOKUP_AUTO,
    "off": lib.PD2_LOOKUP_OFF,
    "map-k4v": lib.PD2_LOOKUP_MAP_K4V,
    "mod": lib.PD2_LOOKUP_MOD,
}

DRAFTERS = {lib.PD2_DRAFTER_HEAD: "head", lib.PD2_DRAFTER_MAP_K4V: "map-k4v", lib.PD2_DRAFTER_MOD: "mod"}

WALKS = {"argmax": lib.PD2_WALK_ARGMAX, "expected": lib.PD2_WALK_EXPECTED_LENGTH}

log = logging.getLogger("pydflash2")

_LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


def drain_log() -> None:
    """Passes the lines that llama.cpp and the core have queued on to `logging.getLogger("pydflash2")`."""
    level, line = ffi.new("int32_t *"), ffi.new("char[]", 4096)
    while lib.pd2_log_next(level, line, len(line)) >= 0:
        log.log(_LOG_LEVELS.get(level[0], logging.INFO), "%s", string(line))


def check(status: int) -> None:
    """Raises what a native call's status stands for, with its message."""
    drain_log()
    if status != lib.PD2_OK:
        raise error_from_status(int(status), string(lib.pd2_last_error()))


def string(characters: Any) -> str:
    text: str = ffi.string(characters).decode("utf-8", "replace")
    return text


def system_info() -> str:
    """llama.cpp's line of CPU features and back-end switches."""
    return string(lib.pd2_system_info())


def llama_cpp_pin() -> str:
    """The llama.cpp this build contains."""
    return string(lib.pd2_llama_cpp_pin())


def devices() -> list[dict[str, Any]]:
    """The devices ggml sees, each as a dict of pd2_device_info's fields; memory in bytes."""
    found = []
    for index in range(lib.pd2_device_count()):
        info = ffi.new("pd2_device_info *")
        check(lib.pd2_device_get(index, info))
        found.append(
            {
                "name": string(info.name),
                "description": string(info.description),
                "backend": string(info.backend),
                "is_gpu": bool(info.is_gpu),
                "memory_free": int(info.memory_free),
                "memory_total": int(info.memory_total),
            }
        )
    return found


def _needed(count: int) -> int:
    """The capacity that a negative count of tokens or bytes asks for."""
    if count == -(2**31):
        raise NativeError(string(lib.pd2_last_error()))
    return -count


_Number = TypeVar("_Number", np.float32, np.int32)


def _array(pointer: Any, shape: tuple[int, ...], kind: type[_Number]) -> npt.NDArray[_Number]:
    count = math.prod(shape)
    if not count:  # the pointer may be NULL
        return np.empty(shape, kind)
    return np.array(np.frombuffer(ffi.buffer(pointer, 4 * count), kind).reshape(shape))


def integers(pointer: Any, *shape: int) -> Integers:
    """A copy of an array of int32_t."""
    return _array(pointer, shape, np.int32)


def floats(pointer: Any, *shape: int) -> Floats:
    """A copy of an array of floats."""
    return _array(pointer, shape, np.float32)


class DraftArrays(NamedTuple):
    """A draft of n tokens, on a lattice of `rows` positions with k candidates each."""

    tokens: list[int]  # [n]
    probabilities: Floats  # [n]
    candidates: Integers  # [rows, k]
    scores: Floats  # [rows, k, k]
    proposal: Floats | None  # [n, k]


class Round(NamedTuple):
    """What a round that chose its own draft did."""

    tokens: list[int]  # committed
    n_accepted: int
    finished: bool
    drafter: str | None  # "head", "map-k4v", "mod"; None: a plain step
    n_drafted: int
    draft_seconds: float
    verify_seconds: float


_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


def _one_at_a_time(
    call: Callable[Concatenate[NativeEngine, _Arguments], _Returned],
) -> Callable[Concatenate[NativeEngine, _Arguments], _Returned]:
    """Lets threads into an open engine one after the other.

    The lock's own `with` is the only one that Ctrl-C can't come between: a context manager written in Python
    that is interrupted as it begins or ends leaves the lock closed for as long as the traceback is kept.
    """

    @functools.wraps(call)
    def entered(self: NativeEngine, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned:
        self.check_open()  # in a forked process the lock may be held by a thread that isn't there
        handles = self._handles
        if handles.entered():
            raise EngineBusyError(
                "the engine is amid a call that this signal handler or finalizer interrupts: let it end first"
            )
        try:
            with handles.lock:
                try:
                    handles.thread = threading.get_ident()
                    self.check_open()
                    return call(self, *args, **kwargs)
                finally:
                    handles.thread = None
        finally:
            if self._closing:
                handles.free()

    return entered


class _Handles:
    """A pd2_engine, its one pd2_sequence, its batches, and the lock that lets one call in at a time."""

    def __init__(self) -> None:
        self.engine = ffi.new("pd2_engine **")  # holds NULL before and after
        self.sequence = ffi.new("pd2_sequence **")
        self.batches: list[Any] = []  # of pd2_batch **
        self.left: list[Any] = []  # those of them that nobody has any more, but that could not be freed then
        self.lock = threading.Lock()
        self.thread: int | None = None  # that is in
        self.process = os.getpid()

    def entered(self) -> bool:
        """Whether it is this thread that is in, interrupted by a signal handler or a finalizer."""
        return self.lock.locked() and self.thread == threading.get_ident()

    def free(self) -> None:
        """After the call that another thread is in. Does nothing where this thread is in one, and in a forked
        process, whose copy lacks the threads and devices.
        """
        if self.process != os.getpid() or self.entered():
            return
        with self.lock:
            try:
                self.thread = threading.get_ident()
                engine, self.engine[0] = self.engine[0], ffi.NULL
                sequence, self.sequence[0] = self.sequence[0], ffi.NULL
                self._free_batches(self.batches)
                lib.pd2_sequence_free(sequence)
                lib.pd2_engine_free(engine)
            finally:
                self.thread = None
        drain_log()

    def free_batch(self, batch: Any) -> None:
        """As `free`. Where this thread is in a call, the next batch made or freed has it freed too."""
        if self.process != os.getpid():
            return
        self.left.append(batch)
        if self.entered():
            return
        with self.lock:
            try:
                self.thread = threading.get_ident()
                self.free_left()
            finally:
                self.thread = None

    def free_left(self) -> None:
        left, self.left = self.left, []
        self._free_batches(left)
        self.batches = [batch for batch in self.batches if batch[0] != ffi.NULL]

    def _free_batches(self, batches: list[Any]) -> None:
        for holder in batches:
            batch, holder[0] = holder[0], ffi.NULL
            lib.pd2_batch_free(batch)


class SamplingStruct(NamedTuple):
    """A pd2_sampling, which holds bare pointers, and what they point to."""

    struct: Any
    pointed_to: tuple[Any, ...]


class NativeEngine:
    """A pd2_engine with its one pd2_sequence. Freed by `close`, by the garbage collector, or at exit."""

    def __init__(
        self,
        target: Path,
        head: Path | None,
        *,
        context_size: int,
        batch_size: int,
        n_threads: int,
        n_gpu_layers: int,
        devices: Choice = Choice(),  # noqa: B008  frozen
        kv_type: str,
        drafter_kv_type: str,
        taps: int,
        use_mmap: bool,
        draft_vocabulary: int = 0,
        batch_invariant: bool = False,
        taps_read: Sequence[int] = (),
    ) -> None:
        # The struct holds bare pointers: these objects keep what they point to alive until the load is over.
        target_path = ffi.new("char[]", os.fsencode(target))
        head_path = ffi.NULL if head is None else ffi.new("char[]", os.fsencode(head))
        names = [ffi.new("char[]", name.encode()) for name in devices.devices]
        pointers = ffi.new("char *[]", names)
        shares = ffi.new("float[]", list(devices.tensor_split))
        draft_device = ffi.NULL
        if devices.draft_device is not None:
            draft_device = ffi.new("char[]", devices.draft_device.encode())
        kv, drafter_kv = (
            ffi.new("char[]", f"{kv_type}".encode()),
            ffi.new("char[]", f"{drafter_kv_type}".encode()),
        )

        params = ffi.new("pd2_engine_params *")
        lib.pd2_engine_default_params(params)
        params.target_path, params.head_path = target_path, head_path
        params.context_size, params.batch_size = context_size, batch_size
        params.n_threads, params.n_gpu_layers = n_threads, n_gpu_layers
        params.n_devices, params.devices = len(names), pointers
        params.n_device_shares, params.device_shares = len(shares), shares
        params.split, params.draft_device = SPLITS[devices.split_mode], draft_device
        params.kv_type, params.drafter_kv_type = kv, drafter_kv
        params.taps, params.use_mmap = taps, use_mmap
        params.draft_vocabulary = draft_vocabulary
        params.batch_invariant = batch_invariant
        layers = ffi.new("int32_t[]", list(taps_read))
        params.n_taps_read, params.taps_read = len(layers), layers

        self._closing = False
        self._handles = _Handles()
        self._release = weakref.finalize(self, self._handles.free)
        self.target = ffi.new("pd2_target_info *")
        self.head: Any = None
        self.taps_read = tuple(taps_read)  # with a head, it reads its own
        try:
            check(lib.pd2_engine_load(params, self._handles.engine))
            self._engine = self._handles.engine[0]
            check(lib.pd2_sequence_create(self._engine, self._handles.sequence))
            self._sequence = self._handles.sequence[0]
            check(lib.pd2_engine_target_info(self._engine, self.target))
            if head is not None:
                self.head = ffi.new("pd2_head_info *")
                check(lib.pd2_engine_head_info(self._engine, self.head))
        except BaseException:  # Ctrl-C among them
            self._release()
            raise

    def close(self) -> None:
        self._closing = True  # a call that is running frees when it ends, should this one not come to it
        self._handles.free()

    @property
    def closed(self) -> bool:
        return self._closing or not self._release.alive or self._handles.process != os.getpid()

    def check_open(self) -> None:
        if self._handles.process != os.getpid():
            raise EngineClosedError(
                f"the engine belongs to process {self._handles.process}, which this one is a fork of: load "
                "another one here"
            )
        if self.closed:
            raise EngineClosedError("the engine is closed: load a new one")

    @_one_at_a_time
    def placement(self) -> Placement:
        target = tuple(string(self.target.devices).split(", "))
        if self.head is None:
            return Placement(target)
        return Placement(
            target,
            string(self.head.device),
            tuple(
                TensorPlace(
                    string(place.name),
                    string(place.type),
                    string(place.device),
                    int(place.bytes),
                    bool(place.is_borrowed),
                )
                for place in self._listed("pd2_tensor_place", lib.pd2_engine_head_tensors)
            ),
            tuple(
                OperationPlace(string(place.operation), string(place.device), int(place.n))
                for place in self._listed("pd2_operation_place", lib.pd2_engine_head_operations)
            ),
            int(self.head.round_splits),
        )

    def _listed(self, kind: str, call: Any) -> Any:
        """All entries of a list of the native code's, an array that must outlive what is taken from it."""
        count = call(self._engine, ffi.NULL, 0)
        entries = ffi.new(f"{kind}[]", count)
        call(self._engine, entries, count)
        return entries

    @_one_at_a_time
    def alone(self, call: Callable[[], _Returned]) -> _Returned:
        """A call on a handle of this engine's, such as a batch, while no other thread is in."""
        return call()

    # ---- text <-> tokens ----

    @_one_at_a_time
    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        capacity = len(text) + 8
        while True:
            tokens = ffi.new("int32_t[]", capacity)
            count = lib.pd2_tokenize(
                self._engine, text, len(text), add_special, parse_special, tokens, capacity
            )
            if count >= 0:
                return list(ffi.unpack(tokens, count)) if count else []
            capacity = _needed(count)

    @_one_at_a_time
    def token_bytes(self, token: int, special: bool = False) -> bytes:
        capacity = 64
        while True:
            data = ffi.new("char[]", capacity)
            count = lib.pd2_token_bytes(self._engine, token, special, data, capacity)
            if count >= 0:
                return bytes(ffi.buffer(data, count))
            capacity = _needed(count)

    @_one_at_a_time
    def is_end(self, token: int) -> bool:
        return bool(lib.pd2_token_is_end(self._engine, token))

    # ---- the sequence ----

    def sampling(self, chosen: Sampling, seed: int, logprobs: int | None) -> SamplingStruct:
        """For `begin`, checked: ValueError for what it would refuse."""
        struct = ffi.new("pd2_sampling *")
        lib.pd2_sampling_default(struct)
        for name, value in vars(chosen).items():
            if name not in ("logit_bias", "grammar"):  # plain numbers, as they are
                setattr(struct, name, value)
        tokens = ffi.new("int32_t[]", list(chosen.logit_bias))
        values = ffi.new("float[]", list(chosen.logit_bias.values()))
        struct.n_logit_bias, struct.bias_tokens, struct.bias_values = len(tokens), tokens, values
        grammar = ffi.NULL if chosen.grammar is None else ffi.new("char[]", chosen.grammar.encode("utf-8"))
        struct.grammar = grammar
        struct.seed, struct.n_logprobs = seed, -1 if logprobs is None else logprobs
        self._check_sampling(struct)
        return SamplingStruct(struct, (tokens, values, grammar))

    @_one_at_a_time
    def _check_sampling(self, struct: Any) -> None:
        check(lib.pd2_sampling_check(self._engine, struct))

    @_one_at_a_time
    def begin(self, tokens: Sequence[int], drafting: bool, sampling: SamplingStruct | None = None) -> int:
        """Sets the prompt; greedy without `sampling`. Returns how many of its tokens the caches hold."""
        n_reused = ffi.new("int32_t *")
        struct = ffi.NULL if sampling is None else sampling.struct
        check(lib.pd2_sequence_begin(self._sequence, list(tokens), len(tokens), drafting, struct, n_reused))
        return int(n_reused[0])

    @_one_at_a_time
    def prefill(self) -> int:
        """Decodes one chunk of the prompt and returns how many tokens are left. At 0 there is an anchor."""
        n_left = ffi.new("int32_t *")
        check(lib.pd2_sequence_prefill(self._sequence, 0, n_left))
        return int(n_left[0])

    @_one_at_a_time
    def draft(
        self, width: int, temperature: float = 0.0, min_probability: float = 0.0, walk: str = "argmax"
    ) -> Any:
        """A pd2_draft, whose arrays are valid until the sequence's next call."""
        params, draft = ffi.new("pd2_draft_params *"), ffi.new("pd2_draft *")
        params.width, params.walk = width, WALKS[walk]
        params.temperature, params.min_probability = temperature, min_probability
        check(lib.pd2_sequence_draft(self._sequence, params, draft))
        return draft

    @_one_at_a_time
    def draft_arrays(self, draft: Any) -> DraftArrays:
        """Copies of a draft's arrays."""
        n, rows, k = draft.proposal.n, draft.n_lattice, draft.proposal.k
        q = draft.proposal.q
        return DraftArrays(
            list(ffi.unpack(draft.proposal.tokens, n)) if n else [],
            floats(draft.probabilities, n),
            integers(draft.candidates, rows, k),
            floats(draft.scores, rows, k, k),
            None if q == ffi.NULL else floats(q, n, k),
        )

    @_one_at_a_time
    def verify(self, proposal: Any) -> tuple[list[int], Any]:
        """Verifies a draft's pd2_proposal. Returns the tokens committed, and the pd2_verdict."""
        verdict = ffi.new("pd2_verdict *")
        check(lib.pd2_sequence_verify(self._sequence, ffi.addressof(proposal), -1, verdict))
        return list(ffi.unpack(verdict.tokens, verdict.n)), verdict

    @_one_at_a_time
    def round(self, params: Any) -> Round:
        """One round by a pd2_round_params."""
        done = ffi.new("pd2_round *")
        check(lib.pd2_sequence_round(self._sequence, params, done))
        verdict = done.verdict
        return Round(
            list(ffi.unpack(verdict.tokens, verdict.n)),
            int(verdict.n_accepted),
            bool(verdict.finished),
            DRAFTERS.get(done.drafter),
            int(done.n_drafted),
            float(done.draft_seconds),
            float(verdict.seconds),
        )

    @_one_at_a_time
    def allow_widths(self, widths: Sequence[int] | None) -> None:
        """The only numbers of drafted tokens that `round` may have verified, beside 0; None: any."""
        given = ffi.NULL if widths is None else ffi.new("int32_t[]", list(widths))
        check(lib.pd2_sequence_allow_widths(self._sequence, given, 0 if widths is None else len(widths)))

    @_one_at_a_time
    def set_costs(self, verify: Mapping[int, float], draft: Mapping[int, float]) -> None:
        """Seconds of a verification by its rows, and of a draft of the head by its width."""
        for rows, seconds in verify.items():
            check(lib.pd2_sequence_set_cost(self._sequence, lib.PD2_DRAFTER_NONE, rows, seconds))
        for width, seconds in draft.items():
            check(lib.pd2_sequence_set_cost(self._sequence, lib.PD2_DRAFTER_HEAD, width, seconds))

    def verify_tokens(
        self, tokens: Sequence[int], candidates: Integers | None = None, q: Floats | None = None
    ) -> tuple[list[int], Any]:
        """Verifies [n] tokens, with what each was drawn from, [n, K], unless they are certain."""
        # The struct holds bare pointers: locals keep what they point to.
        proposal, ids = ffi.new("pd2_proposal *"), ffi.new("int32_t[]", list(tokens))
        proposal.n, proposal.tokens = len(tokens), ids
        if candidates is not None and q is not None:
            among = ffi.from_buffer("int32_t[]", np.ascontiguousarray(candidates, np.int32))
            probabilities = ffi.from_buffer("float[]", np.ascontiguousarray(q, np.float32))
            proposal.k, proposal.candidates, proposal.q = q.shape[1], among, probabilities
        return self.verify(proposal[0])

    @_one_at_a_time
    def logprobs(self) -> list[tuple[float, list[tuple[int, float]]]]:
        """Of each token that the last prefill or verify committed: its own, and those of the likeliest."""
        found = ffi.new("pd2_logprobs *")
        check(lib.pd2_sequence_logprobs(self._sequence, found))
        n = found.n_top
        return [
            (
                found.chosen[i],
                [(found.top_tokens[i * n + j], found.top[i * n + j]) for j in range(n)],
            )
            for i in range(found.n)
        ]

    @_one_at_a_time
    def tokens(self) -> list[int]:
        count = lib.pd2_sequence_n_tokens(self._sequence)
        return list(ffi.unpack(lib.pd2_sequence_tokens(self._sequence), count)) if count else []

    @_one_at_a_time
    def draft_obstacle(self) -> str | None:
        """Why `draft` would refuse, or None."""
        reason = lib.pd2_sequence_draft_obstacle(self._sequence)
        return string(reason) if reason != ffi.NULL else None

    # ---- training data ----

    @_one_at_a_time
    def read_features(self, tokens: Sequence[int]) -> Floats:
        """Features of a whole text, [len(tokens), n_taps * n_embd]: of the layers in taps_read or the head's.

        Empties the sequence. ValueError for an engine with neither, for tokens that do not exist, or none;
        ContextOverflowError for a text longer than the context.
        """
        features = ffi.new("const float **")
        check(lib.pd2_sequence_read_features(self._sequence, list(tokens), len(tokens), features))
        n_taps = len(self.taps_read) if self.head is None else self.head.n_taps
        return floats(features[0], len(tokens), n_taps * self.target.n_embd)

    @_one_at_a_time
    def create_batch(self, n_texts: int, text_size: int, n_top: int) -> Any:
        """A pd2_batch **, which holds NULL once it is freed: through `batch_release`, or with the engine."""
        self._handles.free_left()
        holder = ffi.new("pd2_batch **")
        self._handles.batches.append(holder)
        check(lib.pd2_batch_create(self._engine, n_texts, text_size, n_top, holder))
        return holder

    def batch_release(self, batch: Any) -> Callable[[], None]:
        """What frees a batch. It does not keep this engine alive."""
        return functools.partial(self._handles.free_batch, batch)

    # ---- the row check ----

    @_one_at_a_time
    def forget(self) -> None:
        """Empties the sequence, so that the next prompt is computed from its first token on."""
        check(lib.pd2_sequence_forget(self._sequence))

    @_one_at_a_time
    def check_rows(self, max_rows: int, depth: int, probe: int) -> list[float]:
        """The largest difference of a logit at 1 .. max_rows rows, see pd2_sequence_check_step: [max_rows].
        A decode a call. Empties the sequence.
        """
        differences, more = ffi.new("float[]", max_rows), ffi.new("bool *", True)
        check(lib.pd2_sequence_check_begin(self._sequence, max_rows, depth, probe))
        while more[0]:
            check(lib.pd2_sequence_check_step(self._sequence, differences, more))
        return list(differences)

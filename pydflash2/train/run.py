"""`train`: from a target and prompts to a folder with a head.

OUT/data/        the prompts' continuations, and their features
OUT/training/    the last checkpoint, the best head so far as GGUF
OUT/             config.json, model.safetensors, head.gguf, README.md, report.html, figures.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from pydflash2 import model_files
from pydflash2.batch import Batch
from pydflash2.chat_template import ChatTemplate
from pydflash2.convert.run import convert
from pydflash2.convert.target import Target
from pydflash2.errors import EngineBusyError
from pydflash2.gguf_file import GGUFFile
from pydflash2.kept import content_identity
from pydflash2.native import TAPS, NativeEngine
from pydflash2.train import card, checkpoint, devices, geometry, measure, picture, plan, report, start
from pydflash2.train.batches import Batches
from pydflash2.train.codebooks import Codebooks
from pydflash2.train.features import Features, estimate
from pydflash2.train.figures import Figures, HeldOut, On
from pydflash2.train.head import Head
from pydflash2.train.loop import Loop, State
from pydflash2.train.objective import Objective, Vocabulary, shortlist, shortlist_size
from pydflash2.train.options import Options
from pydflash2.train.prompts import read_prompts
from pydflash2.train.replicas import n_replicas
from pydflash2.train.tables import Tables
from pydflash2.train.texts import Text, Texts
from pydflash2.train.writing import Plan as WritingPlan
from pydflash2.train.writing import Progress, Writer

Say = Callable[[str], None]

_SLOTS = 32  # texts written side by side
_MEASURING = 9.0  # times as long is trained as is measured, at least
_HELD_OUT_TEXTS = 40  # to measure with, at least, where there are so many prompts


@dataclass(frozen=True)
class Result:
    """Where a run has put its head, and what the head is worth."""

    folder: Path
    figures: Figures

    def as_json(self) -> str:
        return json.dumps({"folder": str(self.folder), **self.figures.final}, indent=1)

    def __str__(self) -> str:
        final = self.figures.final
        lines = [f"{self.folder / 'head.gguf'}: {final['why']}"]
        for on in ("held out", "training"):
            for row in self.figures.on(on)[-1:]:
                positions = " ".join(f"{share:.2f}" for share in row.acceptance_by_position)
                lines.append(
                    f"{on + ' prompts:':17} mean acceptance length {row.mean_acceptance_length:.2f} "
                    f"({row.length_with_loops:.2f} with loops, {row.texts} texts); by position {positions}"
                )
                if row.speed_up is not None:
                    lines.append(
                        f"{'':17} {row.tokens_per_second:.1f} tokens a second with automatic width "
                        f"(mean length {row.automatic_length:.2f}), {row.plain_tokens_per_second:.1f} plain: "
                        f"{row.speed_up:.2f} x"
                    )
        return "\n".join(lines)


def train(options: Options, say: Say) -> Result:
    """Makes a head as `options` say; goes on where an earlier run with the same options was broken off.

    say(line) tells what is done; progress bars go to stderr where it is a terminal.

    Raises ValueError for options that contradict each other, the target or the folder's contents,
    ModelFileError for a target or head that can't be read, OutOfMemoryError for a plan this machine can't
    carry out, TrainingError, OSError.
    """
    return _Run(options, say).run()


class _Run:
    def __init__(self, options: Options, say: Say) -> None:
        report.check_libraries()
        self.options, self.say = options, say
        self.target_file = model_files.model_file(options.target, "target")
        self.target = Target.open(self.target_file)
        self.device = devices.chosen(options.device)
        self.precision = devices.precision(options.precision, self.device)
        self.data_folder = options.out / "data"
        self.features_folder = self.data_folder / "features"
        self.work_folder = options.out / "training"
        self.before: dict[str, torch.Tensor] | None = None  # the whole head that --init names
        for folder in (self.features_folder, self.work_folder):
            folder.mkdir(parents=True, exist_ok=True)
        if options.init is not None:
            if options.geometry:
                raise ValueError(
                    f"--init {options.init} has a geometry: leave {', '.join(options.geometry)} out"
                )
            self.config = start.config_of(options.init, self.target)
        else:
            self.config = geometry.config_for(self.target, **options.geometry)

    def run(self) -> Result:
        options = self.options
        with ExitStack() as stack:
            self._claim(stack)
            self._plan()
            engine = NativeEngine(
                self.target_file,
                None,
                context_size=self._room(),
                batch_size=0,
                n_threads=options.n_threads or 0,
                n_gpu_layers=options.n_gpu_layers,
                kv_type="f16",
                drafter_kv_type="f16",
                taps=TAPS["auto"],
                use_mmap=True,
                taps_read=self.config.taps,
            )
            stack.callback(engine.close)
            texts, writing = self._write(engine)
            everything = [*texts.training, *texts.held_out]
            features = stack.enter_context(self._features(engine, everything))
            loop = self._loop(texts, everything, features, writing)
            stack.callback(loop.close)
            return self._train(loop, texts)

    def _claim(self, stack: ExitStack) -> None:
        """Two runs in one folder would write over each other's files."""
        lock = FileLock(self.work_folder / "lock", timeout=0)
        try:
            stack.enter_context(lock)
        except Timeout:
            raise EngineBusyError(
                f"another pydflash2 train is at work in {self.options.out}: let it end, or name another "
                "folder"
            ) from None

    def _plan(self) -> None:
        """Says what the run will need, before anything is computed. Raises `OutOfMemoryError`."""
        options, data = self.options, self.options.data
        n_vocab = self.target.vocabulary.size
        n_listed = shortlist_size(n_vocab, options.objective.shortlist)
        n_rows = min(n_vocab, n_listed + options.objective.negatives)
        tokens = min(data.n_tokens or 0, 2**40) * (1 + np.mean(data.prompt_sizes) / data.new_tokens)
        features = estimate(int(tokens), len(self.config.taps), self.config.n_embd)
        needs = plan.plan(
            Head(Codebooks(self.config, np.arange(n_listed)).trained),
            options.batch,
            n_rows,
            self._room(),
            n_replicas(self.device, options.n_threads, options.loop.parts),
            min(features, data.feature_budget),
        )
        self.say(str(needs))
        plan.check(needs, self.device, self.features_folder)

    # ---- data ----

    def _room(self) -> int:
        """Tokens that a text can have at most."""
        data = self.options.data
        longest = max(*data.prompt_sizes, data.longest_prompt)
        return min(self.config.context_length, longest + data.new_tokens)

    def _write(self, engine: NativeEngine) -> tuple[Texts, dict[str, Any]]:
        """The prompts' continuations, and how their writing went."""
        data, options = self.options.data, self.options
        prompts = read_prompts(
            data.prompts,
            engine.tokenize,
            ChatTemplate.of(self.target_file),
            seed=options.seed,
            n_prompts=data.n_prompts,
            n_from_documents=data.n_from_documents,
            held_out=data.held_out,
            held_out_paths=data.held_out_paths,
            longest=data.longest_prompt,
            sizes=data.prompt_sizes,
            suffixes=data.suffixes,
            as_chat=data.as_chat,
        )
        self.say(prompts.summary())
        how = WritingPlan(
            options.seed,
            data.greedy_share,
            data.temperatures,
            data.new_tokens,
            min(self._room(), max(len(prompt.tokens) for prompt in prompts) + data.new_tokens),
            n_top=data.n_top,
            top_k=data.top_k,
            top_p=data.top_p,
            min_p=data.min_p,
        )
        n_slots = min(data.n_parallel or _SLOTS, len(prompts))
        begin = perf_counter()
        with (
            Batch(engine, n_slots, how.text_size, how.n_top) as batch,
            _bar("writing", data.n_tokens, " tokens") as bar,
        ):

            def progress(now: Progress) -> None:
                bar.n = min(now.n_tokens, data.n_tokens or now.n_tokens)
                bar.set_postfix_str(f"{now.tokens_per_second:.0f} generated a second, {now.n_loops} loops")

            writer = Writer(
                engine, batch, n_slots, self.target_file, prompts, how, self.data_folder / "texts"
            )
            texts = writer.write(data.n_tokens, data.minutes, progress, _HELD_OUT_TEXTS)
        self.say(texts.summary())
        if data.minutes is None and texts.n_tokens < (data.n_tokens or 0):
            self.say(
                f"that is less than the {data.n_tokens:,} tokens asked for, and all prompts were continued: "
                "give more, or longer texts (--new-tokens)"
            )
        if not texts.training or not texts.held_out:
            raise ValueError("there are no texts to train with and to measure with: give more prompts")
        return texts, {
            "prompts": len(prompts),
            "texts": len(texts.training),
            "tokens": texts.n_tokens,
            "held-out texts": len(texts.held_out),
            "greedy loops, cut": texts.n_greedy_loops,
            "sampled loops, cut": texts.n_sampled_loops,
            "dropped as too short": texts.n_dropped,
            "seconds of writing": perf_counter() - begin,
        }

    def _features(self, engine: NativeEngine, texts: Sequence[Text]) -> Features:
        width = len(self.config.taps) * self.config.n_embd
        features = Features(
            engine,
            texts,
            width,
            self.features_folder,
            self.options.data.feature_budget,
            {"target": content_identity(self.target_file), "taps": self.config.taps},
        )
        rest = len(texts) - features.n_stored
        more = f"; those of {rest:,} texts are computed anew each time" if rest else ""
        self.say(f"features: {plan.size(features.n_bytes)} on disk{more}")
        with _bar("features", None, " tokens") as bar:

            def progress(done: int, total: int) -> None:
                bar.total, bar.n = total, done
                bar.refresh()

            features.store(progress)
        return features

    # ---- the head and its training ----

    def _loop(
        self, texts: Texts, everything: Sequence[Text], features: Features, writing: dict[str, Any]
    ) -> Loop:
        options, device = self.options, self.device
        n_vocab = self.target.vocabulary.size
        listed = shortlist(texts, n_vocab, options.objective.shortlist)
        self.codebooks = Codebooks(self.config, listed)
        scale = torch.from_numpy(features.scale())
        head = Head(self.codebooks.trained, scale)
        if options.init is None:
            start.fresh(head, options.seed, self.target_file)
        else:
            whole = Head(self.config, scale)
            start.from_head(whole, options.init)
            self.before = whole.state_dict()
            head.load_state_dict(self.codebooks.compact(self.before))
        head.to(device)
        tables = Tables(self.target_file, self.config, device, self.precision)
        vocabulary = Vocabulary(tables, listed, n_vocab, options.objective.negatives, options.seed)
        objective = Objective(tables, vocabulary, options.objective, self.precision)

        n_training = len(texts.training)
        batches = Batches(
            everything,
            range(n_training),
            features,
            self.config.block_size,
            self.config.mask_token,
            options.batch,
            options.seed,
        )
        figures = self.options.out / "figures.json"
        found = Figures.read(figures) if figures.is_file() else Figures()
        found.settings = self._settings(head)
        earlier = found.data.get("seconds of writing", 0.0)  # of runs that were broken off
        found.data = {**writing, "seconds of writing": earlier + writing["seconds of writing"]}
        held_out = batches.held_out(range(n_training, len(everything)))
        loop = Loop(
            head,
            objective,
            batches,
            held_out,
            options.loop,
            options.optimiser,
            found,
            self.work_folder / "checkpoint.pt",
            options.n_threads,
        )
        if loop.resume():
            self.say(
                f"goes on after step {loop.state.step}, {loop.state.seconds / 60:.1f} minutes of training"
            )
        else:
            found.back_to(-1)
        return loop

    def _settings(self, head: Head) -> dict[str, Any]:
        options = self.options
        settings = {
            "target": self.target_file.name,
            "geometry": {name: value for name, value in asdict(self.config).items() if value is not None},
            "parameters": sum(parameter.numel() for parameter in head.parameters()),
            "init": None if options.init is None else options.init.name,
            "seed": options.seed,
            "device": str(self.device),
            "precision": str(self.precision).removeprefix("torch."),
            **{
                name: asdict(getattr(options, name))
                for name in ("objective", "batch", "optimiser", "loop", "measure")
            },
            "data": {
                name: [str(path) for path in value] if name in ("prompts", "held_out_paths") else value
                for name, value in asdict(options.data).items()
            },
        }
        found: dict[str, Any] = json.loads(json.dumps(settings))  # as figures.json gives them back
        return found

    def _train(self, loop: Loop, texts: Texts) -> Result:
        options, figures = self.options, loop.figures
        held_out = _prompts(texts.held_out, options.measure.final_prompts)
        measured_at = max((row.seconds for row in figures.measured), default=0.0)
        pause = 60 * options.measure.every

        with _bar("training", 1.0, "") as bar:

            def tick(state: State, progress: float) -> None:
                bar.n = min(1.0, progress)
                if state.seconds:
                    last = figures.steps[-1] if figures.steps else None
                    losses = (
                        "" if last is None else f", loss {last.unary_loss:.3f} + {last.selector_loss:.3f}"
                    )
                    bar.set_postfix_str(f"{state.tokens / state.seconds:.0f} labels a second{losses}")

            def looked(look: HeldOut, best: bool) -> None:
                nonlocal measured_at, pause
                self.say(
                    f"{look.seconds / 60:5.1f} min, step {look.step}: held out, loss {look.unary_loss:.3f} + "
                    f"{look.selector_loss or 0:.3f}, path {look.path_length:.2f}"
                    f"{', the best' if best else ''}"
                )
                if best and look.seconds - measured_at >= pause:
                    measured_at, begin = look.seconds, perf_counter()
                    head = self._export(loop, self.work_folder)
                    some = held_out[: options.measure.n_prompts]
                    row = self._pair(head).measure(
                        some,
                        options.measure.max_tokens,
                        "held out",
                        look.step,
                        look.seconds,
                        options.measure.timed,
                    )
                    figures.measured.append(row)
                    pause = max(pause, _MEASURING * (perf_counter() - begin))
                    self.say(
                        f"      in the engine: mean acceptance length {row.mean_acceptance_length:.2f}, "
                        f"{row.speed_up or 0:.2f} x plain"
                    )
                figures.write(options.out / "figures.json")

            try:
                why = loop.run(tick, looked)
            except KeyboardInterrupt:
                loop.save()
                figures.write(options.out / "figures.json")
                self.say("what was reached is kept: the same command goes on")
                raise
        return self._finish(loop, texts, why)

    def _finish(self, loop: Loop, texts: Texts, why: str) -> Result:
        """Exports the best head, measures it, and writes the rest of the folder."""
        options, figures = self.options, loop.figures
        head = self._export(loop, self.work_folder)
        final = options.measure
        measured: tuple[tuple[On, list[Text], int], ...] = (
            ("held out", texts.held_out, final.timed),
            ("training", texts.training, 0),
        )
        for on, some, timed in measured:
            prompts = _prompts(some, final.final_prompts)
            row = self._pair(head).measure(
                prompts, final.max_tokens, on, loop.state.best_step, loop.state.seconds, timed
            )
            figures.measured.append(row)
        figures.final = {
            "why": f"training ended because {why}",
            "step": loop.state.best_step,
            "steps": loop.state.step,
            "minutes of training": loop.state.seconds / 60,
            "mean acceptance length, held out": figures.on("held out")[-1].mean_acceptance_length,
            "the same with loops": figures.on("held out")[-1].length_with_loops,
            "mean acceptance length, training prompts": figures.on("training")[-1].mean_acceptance_length,
            "speed-up": figures.on("held out")[-1].speed_up,
        }
        figures.write(options.out / "figures.json")
        self._card(figures)
        self._export(loop, options.out)  # after the card, which the GGUF's metadata are read from
        report.write_report(options.out / "report.html", self._name(), figures)
        return Result(options.out, figures)

    def _card(self, figures: Figures) -> None:
        options = self.options
        drawn = picture.write_picture(options.out / "curves.png", figures)
        card.write_card(
            options.out / "README.md",
            card.Card(
                self._name(),
                GGUFFile.open(self.target_file),
                "head.gguf",
                self.config.block_size - 1,
                options.terms,
                "curves.png" if drawn else None,
            ),
            figures,
        )

    def _name(self) -> str:
        return self.options.name or f"{model_files.model_name(self.target_file)} DFlash 2"

    def _export(self, loop: Loop, folder: Path) -> Path:
        """The best head so far: its checkpoint in `folder`, and the GGUF made from it."""
        best = Head(self.config, loop.head.feature_scale.cpu())
        best.load_state_dict(self.codebooks.whole(loop.best_weights, self.before))
        checkpoint.write(best, folder)
        return convert(folder, self.target_file, folder / "head.gguf", self.options.outtype, progress=False)

    def _pair(self, head: Path) -> measure.Pair:
        return measure.Pair(self.target_file, head, self.options.n_threads, self.options.n_gpu_layers)


def _prompts(texts: Sequence[Text], n: int) -> list[list[int]]:
    """Prompts of n of the texts, at even distances."""
    places = np.linspace(0, len(texts) - 1, min(n, len(texts))).round().astype(int)
    return [texts[place].tokens[: texts[place].n_prompt].tolist() for place in places]


def _bar(what: str, total: float | None, unit: str) -> tqdm[Any]:
    return tqdm(desc=what, total=total, unit=unit, leave=False, disable=not sys.stderr.isatty())

"""What a person may ask of the trainer: the options, their defaults, and the one sentence that refuses what cannot be.

A run keeps its options in its folder. `--resume` goes on with those; what is said on the command line again counts, as
long as it does not make another run of it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from course_lib.models import SIZES, GPTConfig, sized
from course_lib.trainer.ends import Refused
from course_lib.trainer.log import LOG_FILE
from course_lib.training.checkpoint_files import replace
from course_lib.training.precision import PRECISIONS
from course_lib.training.schedule import WarmupCosine, WarmupStableDecay

CHOICES = {
    "tokens": ("bytes", "bpe"),
    "engine": ("ddp", "torch-ddp", "torch-fsdp"),
    "precision": tuple(PRECISIONS),
    "device": ("auto", "cpu", "cuda"),
    "schedule": ("cosine", "wsd"),
}
OPTIONS_FILE = "options.json"
# With another one of these it would be another run: other weights, other text, another order.
FIXED = ("size", "data", "tokens", "vocab", "seq_len", "seed")


ELSEWHERE = "mend it, or give another --folder for a new run"
LARGEST, LARGEST_SEED = 2**31 - 1, 2**63 - 1  # they fit wherever a number of steps or tokens, and a seed, is put


@dataclass(frozen=True)
class Options:
    """One run's options, checked as far as that goes without knowing the number of ranks."""

    size: str = "tiny"
    steps: int = 200
    folder: str = ""
    resume: bool = False
    data: str | None = None
    tokens: str = "bytes"
    vocab: int = 4096
    seq_len: int = 0
    batch: int = 16
    micro: int = 0
    accumulation: int = 0
    engine: str = "ddp"
    precision: str = "fp32"
    device: str = "auto"
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup: int = -1
    clip: float = 1.0
    weight_decay: float = 0.1
    seed: int = 0
    validate_every: int = 50
    validate_on: int = 128
    save_every: int = 50
    keep: int = 3
    log_every: int = 10
    sample: int = 200
    prompt: str = "def "

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def log(self) -> Path:
        return self.path / LOG_FILE

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def sequence(self) -> int:
        """Tokens in a sequence: as asked for, or as long as the model takes."""
        return self.seq_len or SIZES[self.size].max_seq_len

    def config(self, vocab_size: int) -> GPTConfig:
        """The model's shape. A named size has its own vocabulary; what is trained has that of the text."""
        return sized(self.size, vocab_size=vocab_size, max_seq_len=self.sequence)

    def rate(self) -> WarmupCosine | WarmupStableDecay:
        """The schedule: which part of the peak learning rate each step takes."""
        warmup = self.warmup if self.warmup >= 0 else min(100, self.steps // 10)
        if self.schedule == "cosine":
            return WarmupCosine(warmup, self.steps)
        return WarmupStableDecay(warmup, self.steps, decay=self.steps // 5)

    def cut(self, ranks: int) -> tuple[int, int]:
        """(sequences in a micro-batch, micro-batches in a step) on each of the ranks. Refused unless all fits."""
        batch, micro, accumulation = self.batch, self.micro, self.accumulation
        if micro and accumulation:
            product = micro * accumulation * ranks
            if product != batch:
                raise Refused(
                    f"--batch {batch} is not micro x accumulation x ranks = {micro} x {accumulation} x {ranks} = "
                    f"{product}: give --batch {product}, or leave --micro or --accumulation out."
                )
        given, name = (micro, "micro") if micro else (accumulation or 1, "accumulation")
        if batch % (given * ranks):
            fits = [k * given * ranks for k in (batch // (given * ranks), batch // (given * ranks) + 1) if k]
            raise Refused(
                f"--batch {batch} is not a multiple of {name} x ranks = {given} x {ranks} = {given * ranks}: "
                f"{' or '.join(f'--batch {number}' for number in fits)} would do."
            )
        other = batch // (given * ranks)
        return (micro, other) if micro else (other, given)


TYPES = {"int": (int,), "float": (float, int), "str": (str,), "str | None": (str, type(None))}
# What the folder keeps of a run, with the types in which JSON brings it back: all but what is said of this start alone.
KEPT = {f.name: TYPES[f.type] for f in fields(Options) if f.name not in ("folder", "resume")}


def read(arguments: list[str], restarted: bool = False) -> Options:
    """The options that the command line asks for, with those of the run in the folder where it is resumed.

    restarted: torchrun has started this process again, after a failure: that is a resumption whether asked for or not.
    Raises Refused, or SystemExit (2) for what argparse itself says about the command line.
    """
    parser = make_parser()
    said = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    defaults = Options(**{name: said[name] for name in ("size", "folder") if name in said})
    folder = Path(defaults.folder or Path("runs", defaults.size))
    said["folder"] = str(folder)
    said["resume"] = resume = said.get("resume", False) or restarted
    before = kept(folder)
    if before and not resume:
        raise Refused(
            f"There is a run in {folder} already: go on with it with --resume, or give another --folder for this one."
        )
    for name in FIXED:
        if name in before and name in said and said[name] != before[name]:
            raise Refused(
                f"The run in {folder} was begun with {flag(name)} {before[name]}, and goes on with that, not with "
                f"{said[name]}: leave it out, or give another --folder for a new run."
            )
    options = Options(**{**before, **said})
    check(options)
    return options


def keep(options: Options) -> None:
    """Write the options into the run's folder, which is there, for a later `--resume`."""
    values = {name: getattr(options, name) for name in KEPT}
    replace(options.path / OPTIONS_FILE, json.dumps(values, indent=1) + "\n")


def kept(folder: Path) -> dict[str, Any]:
    """The options of the run in a folder; empty where there is none. Raises Refused if they are not what was kept."""
    path = folder / OPTIONS_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        left = [name for name in (LOG_FILE, "checkpoints") if (folder / name).exists()]
        if left:
            raise Refused(f"{folder} has {' and '.join(left)} of a run, and no {OPTIONS_FILE}: {ELSEWHERE}.") from None
        return {}
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror}): give another --folder.") from None
    try:
        values = json.loads(text)
    except ValueError:
        raise Refused(f"{path} is damaged, it is no JSON: {ELSEWHERE}.") from None
    try:
        check(Options(**of_a_run(values)))
    except Refused as error:
        raise Refused(f"{path} is damaged, {str(error).rstrip('.')}: {ELSEWHERE}.") from None
    return values


def of_a_run(values: Any) -> dict[str, Any]:
    """What `keep` writes: each option once, each of its type. Raises Refused for anything else."""
    if not isinstance(values, dict):
        raise Refused("it holds no options")
    for names, fault in ((KEPT.keys() - values.keys(), "lacks"), (values.keys() - KEPT.keys(), "has an unknown")):
        if names:
            raise Refused(f"it {fault} {', '.join(sorted(names))}")
    for name, value in values.items():
        if type(value) not in KEPT[name]:
            raise Refused(f"{name} is {json.dumps(value)}")
    return values


def check(options: Options) -> None:
    """Refuse what no number of ranks could make right."""
    o = options
    if o.size not in SIZES:
        try:
            sized(o.size)
        except ValueError as error:
            raise Refused(f"--size: {error}") from None
    for name, choices in CHOICES.items():
        if getattr(o, name) not in choices:
            raise Refused(f"{flag(name)} is {getattr(o, name)}: it must be {' or '.join(choices)}.")
    at_least_one = ("steps", "batch", "keep", "log_every")
    counts = ("vocab", "micro", "accumulation", "seq_len", "validate_every", "validate_on", "save_every", "sample")
    for name in (*at_least_one, *counts, "warmup", "seed", "lr", "clip", "weight_decay"):
        value = getattr(o, name)
        least = -1 if name == "warmup" else int(name in at_least_one)  # -1: as many as fit the steps
        if not least <= value < float("inf"):  # NaN is neither
            raise Refused(f"{flag(name)} is {value}: it must be a number from {max(least, 0)} on.")
        most = LARGEST_SEED if name == "seed" else LARGEST
        if isinstance(value, int) and value > most:
            raise Refused(f"{flag(name)} is {value}: it must be a number up to {most}.")
    try:
        o.prompt.encode()
    except UnicodeEncodeError:
        raise Refused("--prompt is no text in UTF-8: it has bytes that stand for no letter.") from None
    if o.seq_len > SIZES[o.size].max_seq_len:
        longest = SIZES[o.size].max_seq_len
        raise Refused(f"--seq-len is {o.seq_len}: sequences of --size {o.size} have up to {longest} tokens.")
    try:
        o.rate()
    except ValueError as error:
        raise Refused(f"--warmup and --steps: {error}") from None


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def make_parser() -> argparse.ArgumentParser:
    """Every default is None here, so that what was said can be told from what was not; `Options` has the defaults."""
    d = Options()
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.trainer",
        description="Train a GPT on real text. Under torchrun the same, on many ranks: gloo on CPUs, NCCL on GPUs.",
        epilog="Exit status: 0 done; 1 failed; 2 refused; 143 (SIGTERM), 130 (Ctrl-C) or 129 (SIGHUP) saved and left "
        "before the end. torchrun itself ends with 1 for all of these but 0, and writes those of its ranks.",
        allow_abbrev=False,
    )

    def add(name: str, help: str, metavar: str = "N", **more: Any) -> None:
        if "choices" in more or more.get("action"):
            parser.add_argument(flag(name), help=help, default=None, **more)
        else:
            parser.add_argument(flag(name), help=help, default=None, metavar=metavar, **{"type": int, **more})

    add("size", f"the model: {', '.join(SIZES)} ({d.size})", metavar="NAME", type=str)
    add("steps", f"optimizer steps in all ({d.steps})")
    add("folder", "where the run keeps its log, options and checkpoints (runs/SIZE)", metavar="PATH", type=str)
    add("resume", "go on with the run in the folder; begin one where there is none", action="store_true")
    add("data", "a text file, or a folder of them (the running Python's standard library)", metavar="PATH", type=str)
    add("tokens", f"what the model reads ({d.tokens})", choices=CHOICES["tokens"])
    add("vocab", f"how many tokens byte-pair encoding has ({d.vocab})")
    add("seq_len", "tokens in a sequence (as many as the size takes)")
    add("batch", f"sequences in a step, of all ranks together: micro x accumulation x ranks ({d.batch})")
    add("micro", "sequences in one forward of one rank (what the batch leaves)")
    add("accumulation", "micro-batches in a step of one rank (1, or what --micro leaves)")
    add("engine", f"data parallel by this library or by torch ({d.engine})", choices=CHOICES["engine"])
    add("precision", f"of matrix products; fp64 is for comparing runs ({d.precision})", choices=CHOICES["precision"])
    add("device", f"a GPU for each rank, or the CPU; auto takes GPUs if there are any ({d.device})",
        choices=CHOICES["device"])  # fmt: skip
    add("lr", f"peak learning rate of AdamW ({d.lr})", metavar="X", type=float)
    add("schedule", f"cosine to a tenth, or stable then down to 0 ({d.schedule})", choices=CHOICES["schedule"])
    add("warmup", "steps until the peak (a tenth of the steps, at most 100)")
    add("clip", f"largest norm of a gradient, 0 for none ({d.clip})", metavar="X", type=float)
    add("weight_decay", f"of matrices; norms have none ({d.weight_decay})", metavar="X", type=float)
    add("seed", f"of weights and of the order of the text ({d.seed})")
    add("validate_every", f"steps between validations, 0 for none ({d.validate_every})")
    add("validate_on", f"how many sequences of the validation text, 0 for all ({d.validate_on})")
    add("save_every", f"steps between checkpoints, 0 for one at the end ({d.save_every})")
    add("keep", f"how many checkpoints stay ({d.keep})")
    add("log_every", f"steps between lines of progress; the log gets every step ({d.log_every})")
    add("sample", f"tokens of text that the model writes at the end, 0 for none ({d.sample})")
    add("prompt", f"what that text begins with ({d.prompt!r})", metavar="TEXT", type=str)
    return parser

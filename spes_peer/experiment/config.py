"""What an experiment's file says, and the cells that it makes. Pure: TOML in, frozen values out.

A cell is one arm with one seed. Its run is what the file's [base] says, changed by the arm's mode, then by the sweep's
combination and the arm's own settings; the later one wins. All arms must train equally many tokens with a seed.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from spes_peer.errors import BadConfiguration
from spes_peer.run.manifest import Model, Sync, Training, validated
from spes_peer.run.section import Section
from spes_peer.toml import parsed_file

CELL_VERSION = 2  # of what a cell's result says and means; another one is run anew

Mode = Literal["spes", "diloco", "fedavg", "centralized"]
_LONGEST_NAME = 64
_QUICK_ROUNDS = 2
_QUICK_SEEDS = 2
_QUICK_SHAPES = {
    "d_model": 32,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 2,
    "expert_hidden": 32,
    "sequence_length": 32,
}

MODES: dict[str, dict[str, Any]] = {
    "spes": {},
    "diloco": {
        "training": {"num_subsets": 1},
        "sync": {
            "shared_outer": "nesterov",
            "expert_outer": "nesterov",
            "outer_lr": 0.7,
            "outer_momentum": 0.9,
            "merge_alpha": 0.0,
        },
    },
    "fedavg": {
        "training": {"num_subsets": 1},
        "sync": {"shared_outer": "mean", "expert_outer": "mean", "merge_alpha": 0.0},
    },
    "centralized": {
        "peers": 1,
        "training": {"num_subsets": 1},
        "sync": {
            "shared_dtype": "fp32",
            "expert_dtype": "fp32",
            "shared_offer_encoding": "fp32",
            "shared_update_encoding": "fp32",
            "expert_encoding": "fp32",
            "shared_outer": "mean",
            "expert_outer": "mean",
            "overlap_steps": 0,
            "merge_alpha": 0.0,
        },
    },
}
"""What a mode settles (SPES §1). In all but `spes` every peer owns every expert: there is one subset."""


class About(Section):
    """[experiment]: what is common to all cells."""

    name: str = Field(min_length=1, max_length=_LONGEST_NAME, pattern=r"^[\w.-]+$")
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(default=(1, 2, 3), min_length=1)
    text: str | tuple[str, ...] = "standard-library"
    """`standard-library`, or a file or folder, relative to the experiment's file; several are mixed."""
    text_bytes: int = Field(default=8 << 20, ge=1)
    held_out_tokens: int = Field(default=1 << 15, ge=1)
    evaluate_every: int = Field(default=1, ge=1)
    """Rounds between two measurements of the held-out loss; also measured before the first and after the last."""
    baseline: str = ""
    """The arm that others are compared with; none if empty."""
    jobs: int = Field(default=0, ge=0)
    """Cells at a time; 0 for as many as there are cores."""
    device: str = "cpu"


class Arm(Section):
    """One way to train: a run without its seed and data."""

    mode: Mode = "spes"
    peers: int = Field(default=4, ge=1, le=1024)
    model: Model
    training: Training
    sync: Sync

    def subsets_of(self, peer: int) -> tuple[int, ...]:
        """What the peer of this index owns. With more peers than subsets, subsets have several owners; with fewer,
        a peer owns several subsets."""
        num_subsets = self.training.num_subsets
        if self.peers >= num_subsets:
            return (peer % num_subsets,)
        return tuple(range(peer, num_subsets, self.peers))

    @property
    def num_rounds(self) -> int:
        return self.training.total_steps // self.training.steps_per_round


@dataclass(frozen=True)
class Cell:
    """One arm with one seed."""

    arm_name: str
    seed: int
    arm: Arm
    about: About
    texts: tuple[str, ...]
    """`standard-library` or absolute paths."""

    @property
    def name(self) -> str:
        return f"{self.arm_name} seed {self.seed}"

    @property
    def config(self) -> dict[str, Any]:
        """All that decides the result."""
        return {
            "version": CELL_VERSION,
            "seed": self.seed,
            "arm": self.arm.model_dump(mode="json"),
            "texts": list(self.texts),
            **self.about.model_dump(mode="json", include={"text_bytes", "held_out_tokens", "evaluate_every", "device"}),
        }

    @property
    def hash(self) -> str:
        """Of `config`, so that a result is used again only for what it is the result of."""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    @property
    def file_name(self) -> str:
        slug = re.sub(r"[^\w.=-]+", "-", self.arm_name)
        return f"{slug}-seed{self.seed}-{self.hash[:10]}.json"


@dataclass(frozen=True)
class Experiment:
    """A file, understood."""

    about: About
    arms: Mapping[str, Arm]
    texts: tuple[str, ...]
    source: str
    """The file's content."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Seed by seed, so that an interrupted experiment has whole seeds."""
        return tuple(
            Cell(name, seed, arm, self.about, self.texts)
            for seed in self.about.seeds
            for name, arm in self.arms.items()
        )


class _File(Section):
    experiment: About
    base: dict[str, Any]
    arms: tuple[dict[str, Any], ...] = ()
    sweep: dict[str, Any] = Field(default={})


def parse_experiment(source: str, name: str, texts_in: str = "", quick: bool = False) -> Experiment:
    """The experiment in a TOML file called `name`; `quick` makes it a smoke test of seconds.

    Texts are relative to the folder `texts_in`. `BadConfiguration` names the first thing wrong with it."""
    file = validated(_File, parsed_file(source, name), name)
    about = _quick_about(file.experiment) if quick else file.experiment
    if len(set(about.seeds)) < len(about.seeds):
        raise BadConfiguration(f"{name}: experiment.seeds: a seed stands there twice")
    arms: dict[str, Arm] = {}
    for arm_name, settings in _arms_in(file, name):
        if arm_name in arms:
            raise BadConfiguration(f"{name}: two arms are called {arm_name!r}")
        arms[arm_name] = _arm(f"{name}: arm {arm_name!r}", file.base, settings, quick)
    if about.baseline and about.baseline not in arms:
        raise BadConfiguration(
            f"{name}: experiment.baseline: no arm is called {about.baseline!r}; there are {list(arms)}"
        )
    if not quick:
        _check_tokens(name, arms)
    return Experiment(about, arms, _paths(about, texts_in), source)


def _arms_in(file: _File, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every arm in every combination of the sweep, with the settings that make it; the arm's own win."""
    for arm in file.arms or ({},):
        if file.arms and not (isinstance(arm.get("name"), str) and 0 < len(arm["name"]) <= _LONGEST_NAME):
            raise BadConfiguration(f"{name}: every arm needs a name of at most {_LONGEST_NAME} characters")
        own = {key: value for key, value in arm.items() if key != "name"}
        for combination in _combinations(file.sweep, name):
            labels = [arm["name"]] if file.arms else []
            labels += [f"{_last(key)}={value}" for key, value in combination.items()]
            yield " ".join(labels) or "base", _merged(_nested(combination), _nested(own))


def _combinations(sweep: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    settings = dict(_flat(sweep))
    for key, values in settings.items():
        if not isinstance(values, list) or not values:
            raise BadConfiguration(f"{name}: sweep.{key}: a list of values is needed")
    for values in itertools.product(*settings.values()):
        yield dict(zip(settings, values, strict=True))


def _arm(where: str, base: dict[str, Any], settings: dict[str, Any], quick: bool) -> Arm:
    mode = settings.get("mode", base.get("mode", "spes"))
    raw = _merged(_nested(base), MODES.get(mode, {}) if isinstance(mode, str) else {}, settings)
    training = raw.get("training")
    if isinstance(training, dict):
        # SPES's last phase of smaller batches is for long runs, and has an H of its own
        defaults = {"num_subsets": raw.get("peers", 4), "final_phase_fraction": 0}
        raw["training"] = {**defaults, **training}
    if quick:
        raw = _quick_arm(raw)
    arm = validated(Arm, raw, where)
    _check(where, arm)
    return arm


def _check(where: str, arm: Arm) -> None:
    training, model = arm.training, arm.model
    faults = {
        f"num_subsets ({training.num_subsets}) must divide num_experts ({model.num_experts})": model.num_experts
        % training.num_subsets,
        f"total_steps ({training.total_steps}) must be a multiple of steps_per_round ({training.steps_per_round})": (
            training.total_steps % training.steps_per_round
        ),
        f"batch_sequences ({training.batch_sequences}) is less than one for each of {arm.peers} peers": (
            training.batch_sequences < arm.peers
        ),
        "final_phase_fraction must be 0: an experiment's batch and H are the same from its first step to its last": (
            training.final_phase_fraction
        ),
        f"overlap_steps ({arm.sync.overlap_steps}) exceeds the {training.steps_per_round} steps of a round": (
            arm.sync.overlap_steps > training.steps_per_round
        ),
        "mode centralized is one peer that owns everything: leave peers out": (
            arm.mode == "centralized" and (arm.peers, training.num_subsets) != (1, 1)
        ),
        f"in mode {arm.mode} every peer owns every expert: leave num_subsets out": (
            arm.mode != "spes" and training.num_subsets != 1
        ),
    }
    if fault := next((text for text, is_so in faults.items() if is_so), None):
        raise BadConfiguration(f"{where}: {fault}")


def _check_tokens(name: str, arms: Mapping[str, Arm]) -> None:
    """Only at equal tokens does a loss say something about the way to it."""
    tokens = {
        arm_name: arm.training.total_steps * arm.training.batch_sequences * arm.model.sequence_length
        for arm_name, arm in arms.items()
    }
    first, *others = tokens
    for other in others:
        if tokens[other] != tokens[first]:
            raise BadConfiguration(
                f"{name}: arms must train equally many tokens, and {first!r} trains {tokens[first]},"
                f" {other!r} {tokens[other]}"
            )


def _paths(about: About, folder: str) -> tuple[str, ...]:
    texts = (about.text,) if isinstance(about.text, str) else about.text
    return tuple(
        text if text == "standard-library" or text.startswith("/") or not folder else f"{folder}/{text}"
        for text in texts
    )


# ---- quick ----


def _quick_about(about: About) -> About:
    return about.model_copy(
        update={
            "name": about.name if about.name == "quick" else f"{about.name}-quick",
            "seeds": about.seeds[:_QUICK_SEEDS],
            "text_bytes": min(about.text_bytes, 300_000),
            "held_out_tokens": min(about.held_out_tokens, 2048),
            "evaluate_every": 1,
        }
    )


def _quick_arm(raw: dict[str, Any]) -> dict[str, Any]:
    """The same arm on a tiny model for a few rounds: whether it works, no more."""
    training = raw.get("training", {})
    if not isinstance(training, dict) or not isinstance(training.get("steps_per_round"), int):
        return raw
    most = min(training.get("total_steps", 0), 4 * training["steps_per_round"])
    length = {"total_steps": max(most // training["steps_per_round"], 1) * training["steps_per_round"]}
    return _merged(raw, {"model": _QUICK_SHAPES, "training": length})


# ---- settings, dotted and nested ----


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"sync.overlap_steps": 1}` as `{"sync": {"overlap_steps": 1}}`."""
    made: dict[str, Any] = {}
    for key, value in settings.items():
        first, _, rest = key.partition(".")
        inner = _nested({rest: value}) if rest else _nested(value) if isinstance(value, Mapping) else value
        made = _merged(made, {first: inner})
    return made


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win, setting by setting."""
    made: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                before = made.get(key)
                made[key] = _merged(before if isinstance(before, Mapping) else {}, value)
            else:
                made[key] = value
    return made


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _last(key: str) -> str:
    return key.rpartition(".")[2]

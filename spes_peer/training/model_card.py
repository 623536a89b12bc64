"""README.md of an exported model: what it is, what it was made of, and by whom. Pure text, no torch.

Names are other people's words: they are shown, and can mark up or link nothing.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spes_peer.identity import PeerId
from spes_peer.run.data import Data
from spes_peer.run.layout import Layout
from spes_peer.training.history import History, key_points

PAPER = "2602.11543"
UNNAMED = "a volunteer"
_MOST_VOLUNTEERS = 200
_LONGEST = 500
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~!@:&$]|(?<=www)\.)")  # links written out, and what the Hub makes one, too


@dataclass(frozen=True)
class Origin:
    """Which state of which run a model is."""

    layout: Layout
    run_id: str
    organizer: str
    root: str
    newest_round: int
    """Of the records that were known."""
    history: History
    names: Mapping[PeerId, str]
    """What volunteers call themselves, where that is known."""


def model_card(origin: Origin, config: Mapping[str, Any]) -> str:
    """The whole file; `config` is the model's config.json."""
    manifest, history = origin.layout.manifest, origin.history
    sections = [
        _front_matter(config),
        f"# {_plain(manifest.run.name)}",
        _summary(origin, config),
        "## How to use it",
        _usage(origin.layout),
        "## The model",
        _table(("", ""), _model_rows(origin.layout, config)),
        "## How it was trained",
        _training(origin),
        *_losses(history),
        "## Data",
        _data(manifest.data),
        "## Volunteers",
        _volunteers(history, origin.names),
        "## Limits",
        _limits(manifest.model.sequence_length),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(config: Mapping[str, Any]) -> str:
    """YAML, of which JSON is a part."""
    tags = ["mixture-of-experts", "moe", config["model_type"], "spes", "decentralized-training", f"arxiv:{PAPER}"]
    values = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "other",
        "license_name": "see-the-data",
        "license_link": "README.md#data",
        "tags": tags,
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(("---", *lines, "---"))


def _summary(origin: Origin, config: Mapping[str, Any]) -> str:
    manifest, history = origin.layout.manifest, origin.history
    behind = f" (the newest known is {origin.newest_round})" if origin.newest_round > history.round else ""
    rows = [
        ("run", f"`{origin.run_id}`"),
        ("organizer's key", f"`{origin.organizer}`"),
        ("state", f"after record {history.round}{behind}"),
        ("state root", f"`{origin.root}`"),
        ("tokens seen", f"{history.tokens:,}"),
        ("local steps", f"{history.steps:,} of {manifest.training.total_steps:,}"),
    ]
    if manifest.origin is not None:
        rows.append(("began with", f"the state of run `{manifest.origin.run_id}` after record {manifest.origin.round}"))
    if history.losses:
        last = history.losses[-1]
        rows.append(("loss on held-out text", f"{last.loss:.4f} nats per token (after record {last.round})"))
    text = (
        f"A mixture-of-experts language model, an `{config['architectures'][0]}`, pretrained by volunteers whose"
        " machines share no fast network. Written by spes-peer from the public state of their run."
    )
    return f"{text}\n\n{_table(('', ''), rows)}"


def _usage(layout: Layout) -> str:
    return (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")\n'
        'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")\n'
        'prompt = tokenizer("Once upon a time", return_tensors="pt")\n'
        "print(tokenizer.decode(model.generate(**prompt, max_new_tokens=50)[0]))\n```\n\n"
        f"Sequences of up to {layout.manifest.model.sequence_length:,} tokens. Without transformers:"
        ' `spes-peer generate THIS_FOLDER "Once upon a time"`.'
    )


def _model_rows(layout: Layout, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    model = layout.manifest.model
    total = layout.num_shared + model.num_experts * layout.num_per_expert
    active = layout.num_shared + model.top_k * layout.num_per_expert
    return [
        ("parameters", f"{total:,}, of which {active:,} work on a token"),
        ("shared by all tokens", f"{layout.num_shared:,}"),
        ("layers, width", f"{model.num_layers}, {model.d_model}"),
        ("heads, of keys and values", f"{model.num_heads}, {model.num_kv_heads}"),
        ("experts in each layer", f"{model.num_experts}, {model.top_k} for a token, {model.expert_hidden} wide"),
        ("context", f"{model.sequence_length:,} tokens"),
        ("tokenizer", _tokenizer(layout.manifest.data)),
        ("rows of the vocabulary", f"{model.vocab_rows:,}"),
        ("written in", config["dtype"]),
    ]


def _tokenizer(data: Data) -> str:
    tokenizer = data.tokenizer
    if tokenizer.kind == "bytes":
        return f"the bytes of UTF-8, and {tokenizer.end_of_text} at the end of a document"
    return f"{_plain(tokenizer.name)}, {tokenizer.num_ids:,} ids, {tokenizer.end_of_text} at the end of a document"


def _training(origin: Origin) -> str:
    manifest = origin.layout.manifest
    training, sync = manifest.training, manifest.sync
    return (
        f"By sparse expert synchronization (SPES, [arXiv {PAPER}](https://arxiv.org/abs/{PAPER})): every volunteer's"
        f" machine trains all shared parameters and only its own experts, for {training.steps_per_round} local steps of"
        f" AdamW; then shared parameters are averaged and each expert is taken from its owner. {_how_long(origin)}"
        f" Learning rate {training.lr:g}, {training.batch_sequences} sequences a step over all machines; shared updates"
        f" travel as {sync.shared_update_encoding}, experts as {sync.expert_encoding}. Every record of the run is"
        " signed by more than half of those who took part in it, and the state root above is what they agreed on."
    )


def _how_long(origin: Origin) -> str:
    history = origin.history
    return f"{max(0, history.round - 1)} rounds were closed and {len(history.given)} machines gave to this state."


def _losses(history: History) -> list[str]:
    if not history.losses:
        return []
    rows = [(str(point.round), f"{point.tokens:,}", f"{point.loss:.4f}") for point in key_points(history.losses)]
    return [
        "Mean loss on held-out text, which nobody trains on:",
        _table(("after record", "tokens seen", "nats per token"), rows),
    ]


def _data(data: Data) -> str:
    rows = [
        (_plain(source.name), f"{float(share):.1%}", f"{source.shards.num_tokens:,}", _licence(source.licence))
        for source, share in zip(data.sources, data.shares(), strict=True)
    ]
    table = _table(("source", "share of what was trained", "tokens there are", "licence"), rows)
    return f"{table}\n\nLicence of all of it, as the organizer says: {_licence(data.licence)}."


def _licence(said: str) -> str:
    return _plain(said) or "not stated"


def _volunteers(history: History, names: Mapping[PeerId, str]) -> str:
    if not history.given:
        return "Nobody yet: these are the first weights of the run."
    shown = told_apart(names.get(peer, "") for peer in history.given)
    total = sum(history.given.values())
    rows = [
        (name, f"{tokens:,}", f"{tokens / total:.1%}")
        for name, tokens in zip(shown, history.given.values(), strict=True)
    ]
    left = len(rows) - _MOST_VOLUNTEERS
    more = f"\n\nAnd {left} more." if left > 0 else ""
    table = _table(("by the name they chose", "tokens given", "part"), rows[:_MOST_VOLUNTEERS])
    return f"Thanks to the {len(rows)} who lent their machines:\n\n{table}{more}"


def told_apart(names: Iterable[str]) -> list[str]:
    """As Markdown; of several with one name all but the first get a number."""
    seen: Counter[str] = Counter()
    shown = []
    for name in names:
        plain = _plain(name) or UNNAMED
        seen[plain.casefold()] += 1
        number = seen[plain.casefold()]
        shown.append(plain if number == 1 else f"{plain} ({number})")
    return shown


def _limits(sequence_length: int) -> str:
    return (
        "A base model: it continues text, it was not taught to follow instructions or to be safe, and says what its"
        f" data say, right or wrong. It was never trained on more than {sequence_length:,} tokens at once. Nobody has"
        " vouched for it but by the signatures under the run's records."
    )


def _plain(text: str) -> str:
    """Somebody's words in one line that Markdown leaves as they are."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in unicodedata.normalize("NFC", text)).split())
    return _MARKUP.sub(r"\\\1", line[:_LONGEST])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""The facts as a person reads them: five lines, each folded to the width of a terminal."""

import shutil
import textwrap

from spes_peer.amending.words import admission
from spes_peer.first_start.facts import Facts
from spes_peer.identity import PeerId
from spes_peer.logs import plain
from spes_peer.measures import amount, duration
from spes_peer.run.data import mixture_words
from spes_peer.run.layout import RunLayout
from spes_peer.run.manifest import Origin

_LABEL_WIDTH = 12
_WIDTH = 100
_LONGEST = 200  # characters of what an organizer writes


def described(facts: Facts, peer_id: PeerId) -> str:
    """What the run is, what it takes, what it does not, its data, what others see."""
    lines = {
        "the run": _run(facts),
        "it uses": _uses(facts),
        "it does not": "read your files, run what others send (only numbers travel), or write outside its folders",
        "its data": _data(facts),
        "others see": f"the name {facts.name!r} (everybody, if the run has a public page; another with --name), the"
        f" address {facts.own_address} or your router's, and the peer id {peer_id}",
    }
    return "\n".join(folded(label, text) for label, text in lines.items())


def _run(facts: Facts) -> str:
    run = facts.manifest.run
    here = f"round {facts.introduction.head_round} with {_count(facts.num_volunteers, 'volunteer')}"
    if not facts.num_volunteers:
        here = f"not begun: it waits for {_count(run.min_peers, 'volunteer')}"
    model = facts.manifest.model
    return (
        f"{plain(run.name)} {facts.introduction.run_id.hex()[:12]}, {here}; a mixture of {model.num_experts} experts,"
        f" {_parameters(facts)} parameters{_begun_from(facts.manifest.origin)}; signed by its organizer"
        f" {facts.introduction.signed_manifest.organizer}; {admission(facts.manifest)}"
    )


def _begun_from(origin: Origin | None) -> str:
    return f", begun from the state of run {origin.run_id[:12]} after record {origin.round}" if origin else ""


def _uses(facts: Facts) -> str:
    plan, subsets = facts.plan, facts.manifest.training.num_subsets
    pace = f"as rounds go now, one every {duration(facts.round_seconds)}"
    if not facts.is_measured:
        pace = f"if a round takes all of the {duration(facts.round_seconds)} that it may, and more if not"
    return (
        f"up to {amount(plan.needed_bytes)} of memory on {facts.device.name} to train {plan.num_subsets} of"
        f" {_count(subsets, 'subset')} of experts; about {amount(facts.disk_bytes)} of disk;"
        f" {amount(facts.traffic.snapshot_bytes)} to receive at first, then about"
        f" {amount(facts.sent_bytes_per_hour)} sent and {amount(facts.received_bytes_per_hour)} received an hour,"
        f" {pace}; limits: --gpu-memory, --max-disk, --max-upload, --max-download"
    )


def _data(facts: Facts) -> str:
    data = facts.manifest.data
    licences = dict.fromkeys(licence for licence in (data.licence, *(one.licence for one in data.sources)) if licence)
    licence = plain(", ".join(licences), _LONGEST) or "not stated by the organizer"
    return f"{plain(mixture_words(data), _LONGEST)}; licence: {licence}"


def _parameters(facts: Facts) -> str:
    layout = RunLayout(facts.manifest)
    total = layout.num_shared + facts.manifest.model.num_experts * layout.num_per_expert
    return f"{total / 1e9:.1f} billion" if total >= 10**9 else f"{total / 1e6:.1f} million"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def folded(label: str, text: str) -> str:
    """Under a label, as wide as the terminal; a long word, such as a path, stays whole."""
    indent = " " * (_LABEL_WIDTH + 2)
    first = f"  {label:<{_LABEL_WIDTH}}"
    width = min(_WIDTH, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, first, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)

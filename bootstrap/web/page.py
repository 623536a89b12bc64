"""The page as HTML, rendered whole on the server; its one script only exchanges parts that have changed.

Style and script stand inside, and the policy that goes with the page names them by their hashes: nothing else runs, and
nothing is loaded from elsewhere, whatever a name or a licence may hold. All text is escaped by the template.
"""

import base64
import functools
import hashlib
import shlex
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from bootstrap.web import chart, words
from bootstrap.web.view import RunView, Subset, Volunteer
from spes_peer import __version__

MOST_RECORDS = 50
_MOST_VOLUNTEERS = 50  # are seen at once
_ALL_VOLUNTEERS = 500  # are on the page
_ADMISSION = {
    "open": "Everybody can join; a GPU helps.",
    "invitation": "You need an invitation from the organizer; put its text in the place of INVITATION.",
    "list": "Volunteers whom the organizer has listed can join: send the organizer your peer id"
    " (spes-peer identity show).",
}


def _own(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


@functools.cache
def _style_and_script() -> tuple[str, str]:
    return _own("page.css"), _own("page.js")


@functools.cache
def policy() -> str:
    """Content-Security-Policy of the page."""
    style, script = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in _style_and_script())
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def render(run: RunView, offers_download: bool = False) -> str:
    """The page; with a link to the model if the server has that."""
    css, js = _style_and_script()
    last = len(run.rows)
    return _template().render(
        run=run,
        is_over=run.phase.name == "finished",
        css=Markup(css),  # ours, and named by the policy
        js=Markup(js),
        curves=[Markup(one) for one in chart.drawings(run.training_curve, run.held_out_curve)],
        cut_words=chart.cut_words(run.training_curve, run.held_out_curve),
        admission=_ADMISSION.get(run.admission, "Ask the organizer whether you can join."),
        join_command=join_command(run),
        export_command=f"spes-peer export {shlex.quote(_address(run))} my-model",
        expert_words=expert_words(run),
        closed=run.closed(last - MOST_RECORDS, last)[::-1],
        most_records=MOST_RECORDS,
        most_volunteers=_MOST_VOLUNTEERS,
        all_volunteers=_ALL_VOLUNTEERS,
        offers_download=offers_download,
        version=__version__,
    )


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {name: getattr(words, name) for name in ("count", "size", "loss", "share", "duration")}
    environment.filters |= {"moment": words.moment, "iso": words.iso, "several": words.several}
    environment.filters |= {"experts": experts_of, "doing": doing, "unbroken": unbroken}
    return environment.from_string(_own("page.html"))


def join_command(run: RunView) -> str:
    invitation = " --invitation INVITATION" if run.admission == "invitation" else ""
    return f"spes-peer join --bootstrap {shlex.quote(_address(run))}{invitation}"


def unbroken(command: str) -> Markup:
    """A command whose words stay whole where lines end, but for an address, which may be longer than a line."""
    words = (Markup("<span>{}</span>").format(word) if len(word) < 24 else escape(word) for word in command.split(" "))
    return Markup(" ").join(words)


def _address(run: RunView) -> str:
    return ",".join(run.join_addresses) or "ADDRESS"


def experts_of(subset: Subset) -> str:
    if subset.first_expert == subset.last_expert:
        return f"Expert {subset.first_expert}"
    return f"Experts {subset.first_expert}–{subset.last_expert}"


def expert_words(run: RunView) -> str:
    """How well they are looked after, in a sentence or two."""
    free = sum(not subset.owners for subset in run.subsets)
    owned = len(run.subsets) - free
    if run.phase.name == "finished":
        return "Each volunteer trained the shared parameters and only its own experts."
    said = f"Each volunteer trains the shared parameters and only its own experts. {owned} of {len(run.subsets)}"
    said += " parts are trained now." if len(run.subsets) > 1 else " part is trained now."
    longest = max(run.subsets, key=lambda subset: subset.rounds_idle)
    if longest.rounds_idle > 1:
        said += f" Longest untrained: {experts_of(longest).lower()}, for {words.several(longest.rounds_idle, 'round')}."
    return said


def doing(volunteer: Volunteer) -> str:
    """What it does now."""
    if not volunteer.experts:
        return volunteer.state
    return f"{volunteer.state} {_spans(volunteer.experts)}" if volunteer.state == "training" else volunteer.state


def _spans(experts: tuple[int, ...]) -> str:
    """`0–3, 8`: numbers that follow each other, together."""
    spans: list[list[int]] = []
    for expert in sorted(experts):
        if spans and spans[-1][1] == expert - 1:
            spans[-1][1] = expert
        else:
            spans.append([expert, expert])
    said = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in spans)
    return f"expert{'s' if len(experts) > 1 else ''} {said}"

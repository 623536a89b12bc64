"""Runs the `console` blocks of a page in a folder, as a reader would type them, with real processes.

    $ command            is run by bash; what the page shows below it must be in its output, in that order
    $ command &          goes on running; what is shown must come within a while
    …                    in a line that is shown stands for anything

A command that only looks is run again until what is shown has come true, for a run takes its time. `learn` takes a
value from what a command has printed, and puts it in place of a word in the commands after it.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_PATIENCE_SECONDS = 300.0  # on a machine with much else to do; on an idle one no command takes twenty
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Step:
    """One command of a page, and what the page shows of its output."""

    command: str
    shown: tuple[str, ...]

    @property
    def goes_on(self) -> bool:
        return self.command.endswith("&")


def steps_in(text: str) -> Iterator[Step]:
    """Of all `console` blocks, in order."""
    for block in re.findall(r"(?ms)^```console\n(.*?)^```", text):
        for command, shown in re.findall(r"(?m)^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.replace("\\\n", " ")):
            lines = (line.strip() for line in shown.splitlines())
            yield Step(command.partition("  #")[0].strip(), tuple(line for line in lines if line))


def is_shown(shown: tuple[str, ...], output: str) -> bool:
    """Whether all lines are in the output, one after the other; blanks count as one."""
    pieces = [re.escape(piece) for line in shown for piece in " ".join(line.split()).split("…")]
    return re.search(".*".join(pieces), " ".join(output.split())) is not None


@dataclass
class Console:
    """A reader's terminal in `folder`."""

    folder: Path
    environment: Mapping[str, str]
    words: dict[str, str] = field(default_factory=dict)
    """What stands for a word of the page, and for a piece of a command."""
    only_looks: tuple[str, ...] = ()
    """Commands that begin so are run again until what is shown is there."""
    _running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = field(default_factory=list)

    def take(self, step: Step) -> str:
        """Run it; its output, when all that is shown is in it. `AssertionError` says what came instead."""
        command = step.command
        for word, meaning in self.words.items():
            command = command.replace(word, meaning)
        if step.goes_on:
            return self._start(command.removesuffix("&"), step)
        end_at = time.monotonic() + _PATIENCE_SECONDS
        while True:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_PATIENCE_SECONDS,
                check=False,
            )
            if done.returncode == 0 and is_shown(step.shown, done.stdout):
                return done.stdout
            may_wait = command.startswith(self.only_looks) and time.monotonic() < end_at
            assert may_wait, f"$ {command}\n{done.stdout}\nended with {done.returncode}; the page shows {step.shown}"
            time.sleep(_LOOK_SECONDS)

    def _start(self, command: str, step: Step) -> str:
        log = (self.folder / f"output-{len(self._running)}").open("w+b")
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running.append((process, log))
        end_at = time.monotonic() + _PATIENCE_SECONDS
        while True:
            output = Path(log.name).read_text(errors="replace")
            if is_shown(step.shown, output):
                return output
            is_over = process.poll() is not None or time.monotonic() > end_at
            assert not is_over, f"$ {command}\n{output}\nthe page shows {step.shown}"
            time.sleep(_LOOK_SECONDS)

    def learn(self, word: str, pattern: str, output: str) -> None:
        """From now on `word` in a command is the first group of `pattern` in `output`, if that is there."""
        if (found := re.search(pattern, output)) is not None:
            self.words[word] = found[1]

    def close(self) -> None:
        """End what still runs, with all that it started."""
        for process, log in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()

"""A volunteer's commands: lend this machine, see what it does, and end it."""

from typing import Any

from spes_peer.cli.doctor import add_doctor
from spes_peer.cli.identity import add_identity
from spes_peer.cli.join import add_join
from spes_peer.cli.replay import add_replay
from spes_peer.cli.running import add_running
from spes_peer.cli.runs import add_runs
from spes_peer.cli.service import add_service
from spes_peer.cli.settings import Settings, add_config


def add_volunteer_commands(commands: Any) -> None:
    join = add_join(commands)
    join.set_defaults(settings=Settings(join, join))
    for parser in (*add_running(commands), add_replay(commands), *add_identity(commands)):
        parser.set_defaults(settings=Settings(parser, join, ("data_dir",)))
    doctor = add_doctor(commands)
    doctor.set_defaults(settings=Settings(doctor, join, ("data_dir", "bootstrap", "device", "host", "port")))
    add_runs(commands)
    add_config(commands, join)
    add_service(commands, join)

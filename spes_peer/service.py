"""Start a volunteer's daemon with the machine: a systemd user unit (Linux), a launchd agent (macOS; untested).

What the daemon is to do stands in its settings file and its state folder; the unit says only where these are. A mistake
that a person must mend ends it for good, everything else starts it again.
"""

import plistlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spes_peer.errors import BadConfiguration, NotAdmitted, TooOld, UserError
from spes_peer.files import write_whole

NAME = "spes-peer"
_LABEL = "org.spes-peer.daemon"
_COMMAND_SECONDS = 60.0
# Without NoDevice: a driver may come up after us, and what another program has of the device's memory becomes free.
_FINAL_CODES = (BadConfiguration.exit_code, TooOld.exit_code, NotAdmitted.exit_code)

_UNIT = """\
[Unit]
Description=spes-peer: lends this machine to a run
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus={final_codes}
# the daemon alone is asked to end: it says goodbye, and ends its children itself
KillMode=mixed
TimeoutStopSec=30
Nice=10
IOSchedulingClass=idle

[Install]
WantedBy=default.target
"""


def unit_text(command: Sequence[str]) -> str:
    """The systemd unit that runs `command`."""
    quoted = " ".join(_quoted(word) for word in command)
    return _UNIT.format(command=quoted, final_codes=" ".join(map(str, _FINAL_CODES)))


def _quoted(word: str) -> str:
    """As systemd reads it: in double quotes, with % and $ doubled, since it would replace what they begin."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def agent_bytes(command: Sequence[str]) -> bytes:
    """The launchd agent that runs `command`. It knows no codes that end it for good, but waits between starts."""
    return plistlib.dumps(
        {
            "Label": _LABEL,
            "ProgramArguments": list(command),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 60,
            "ProcessType": "Background",
            "LowPriorityIO": True,
            "Nice": 10,
        }
    )


def install(command: Sequence[str], home: Path, platform: str = sys.platform) -> str:
    """Write the unit, have it started now and with the machine; what a person should know. `UserError` if it cannot."""
    path = unit_path(home, platform)
    is_systemd = platform == "linux"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, unit_text(command).encode() if is_systemd else agent_bytes(command))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    if not is_systemd:
        _run("launchctl", "load", "-w", str(path))
        return f"{path} is loaded; the daemon starts when you log in (untested on this system: tell us)"
    _run("systemctl", "--user", "daemon-reload")
    _run("systemctl", "--user", "enable", f"{NAME}.service")
    _run("systemctl", "--user", "restart", f"{NAME}.service")
    return (
        f"{path} is started, and will be when you log in\n"
        "  without logging in:  loginctl enable-linger\n"
        "  what it does:        spes-peer status; spes-peer logs -f"
    )


def is_active() -> bool:
    """Whether the unit's daemon runs now; only systemd tells."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", "is-active", "--quiet", f"{NAME}.service"], timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def remove(home: Path, platform: str = sys.platform) -> str:
    """End it and take the unit away, also where the system's manager cannot be asked. The state folder stays."""
    path = unit_path(home, platform)
    if not path.exists():
        raise UserError(f"no service is installed: there is no {path}")
    is_systemd = platform == "linux"
    trouble = ""
    try:
        if is_systemd:
            _run("systemctl", "--user", "disable", "--now", f"{NAME}.service")
        else:
            _run("launchctl", "unload", "-w", str(path))
    except UserError as error:
        trouble = str(error)
    path.unlink(missing_ok=True)
    if trouble:
        return f"{path} is gone; its daemon may still run ({trouble}), and ends with: spes-peer leave"
    if is_systemd:
        _run("systemctl", "--user", "daemon-reload")
    return f"{path} is gone and its daemon has ended; key and state are still there"


def unit_path(home: Path, platform: str = sys.platform) -> Path:
    """Where this system looks for a user's services; `BadConfiguration` on one that we know none of."""
    if platform == "linux":
        return home / ".config" / "systemd" / "user" / f"{NAME}.service"
    if platform == "darwin":
        return home / "Library" / "LaunchAgents" / f"{_LABEL}.plist"
    raise BadConfiguration(f"services are known for Linux (systemd) and macOS (launchd), not for {platform}")


def _run(*command: str) -> None:
    said = shlex.join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        raise UserError(f"this system has no {command[0]}; start the daemon with: spes-peer join --detach") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{said} does not end") from None
    if done.returncode:
        raise UserError(f"{said}: {(done.stderr or done.stdout).strip() or f'ended with {done.returncode}'}")

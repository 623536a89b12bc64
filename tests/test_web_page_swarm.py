"""The run's page of real processes: empty, while a volunteer trains, and when the run is finished."""

import json
import re
import urllib.request
from typing import Any

import pytest
from real_swarm import LOOPBACK, Place, Run, create_run, place, small_run, until  # noqa: F401
from safetensors.numpy import load


def got(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=60) as answer:
        return bytes(answer.read())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_tells_a_real_run_from_its_beginning_to_its_end(place: Place) -> None:  # noqa: F811
    folder = place.path / "run"
    create_run(folder, small_run(min_peers=1))
    options = ("--run", str(folder), "--listen", f"{LOOPBACK}:0", "--web", f"{LOOPBACK}:0")
    bootstrap = place.start(*options, log="bootstrap.log", module="bootstrap")
    found = until(lambda: re.search(r"web page: (http://\S+)/", place.read("bootstrap.log")), "the page is served")
    url = found[1]

    def api(name: str) -> Any:
        return json.loads(got(f"{url}/api/{name}.json"))

    assert api("run")["phase"]["words"] == "Waiting for volunteers: 0 of the 1 that it takes are here"
    assert b"You could be the first" in got(url)

    run = Run(place, (folder / "address").read_text().strip(), bootstrap)
    run.join("ada")
    until(lambda: api("run")["round"] >= 3, "two rounds are closed")
    ada = api("volunteers")["volunteers"][0]
    assert (ada["name"], ada["share"]) == ("ada", 1.0)
    assert ada["tokens"] > 0
    assert api("run")["join"]["command"] == f"spes-peer join --bootstrap {run.address}"
    texts = [got(url + path).decode() for path in ("/", "/metrics", "/api/run.json", "/api/volunteers.json")]
    assert not [text for text in texts if run.peer_id("ada") in text]
    assert len(load(got(f"{url}/model.safetensors"))) > 10

    finished = place.run("run", "finish", str(folder))
    assert finished.returncode == 0, finished.stderr
    until(lambda: api("run")["phase"]["name"] == "finished", "the page says that the run is over")
    assert b"Thank you to everybody who lent a machine: 1 volunteer trained" in got(url)
    assert bootstrap.poll() is None

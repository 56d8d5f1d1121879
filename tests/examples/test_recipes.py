"""The recipes for frameworks and service managers run as users run them, and survive what they claim to survive."""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from reliamsg import Consumer, Message, Producer, Site
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab import free_port as unused_port
from reliamsg.lab.process import Child
from tests.brokers import own_vhost
from tests.children import run_child
from tests.patience import patient, wait_for

pytestmark = pytest.mark.integrations

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECIPES = EXAMPLES / "recipes"
BIN = Path(sys.executable).parent


class Answer(NamedTuple):
    status: int
    text: str


def post(port: int, body: bytes, headers: dict[str, str] | None = None) -> Answer:
    """Raises OSError if no answer came."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders", body, headers or {})
    return _answer(request)


def get(port: int, path: str) -> Answer:
    return _answer(urllib.request.Request(f"http://127.0.0.1:{port}{path}"))


def _answer(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=patient(30)) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode())


def is_up(port: int, path: str = "/healthz") -> bool:
    try:
        return get(port, path).status < 500
    except OSError:
        return False


class Run:
    """Starts programs with a state directory and two MQTT sites, which are down at first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.state.mkdir()
        self._brokers = [Mosquitto(directory / name, name) for name in ("dc1", "dc2")]
        self._children: list[Child] = []
        self.sites = [Site(broker.name, broker.url, backoff_max=1.0) for broker in self._brokers]
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "SITES": " ".join(f"{broker.name}={broker.url}" for broker in self._brokers),
            "STATE_DIRECTORY": str(self.state),
        }

    def start(self, *command: str, place: Path = RECIPES, **environment: str) -> Child:
        """A program, in the directory of its sources."""
        child = Child(
            command[0],
            ["env", f"--chdir={place}", *command],
            output=self._output(len(self._children)),
            environment=self.environment | environment,
        )
        self._children.append(child)
        return child

    def command(self, *command: str, place: Path = RECIPES, **environment: str) -> str:
        """The output of a program that ends."""
        return run_child(command, cwd=place, env=self.environment | environment, text=True, check=True).stdout

    def output(self, number: int = 0) -> str:
        """What the program that was started as number `number` has written."""
        return self._output(number).read_text()

    def _output(self, number: int) -> Path:
        return self.directory / f"output-{number}"

    def wait_sent(self, outbox: Path) -> None:
        """Wait until all sites have confirmed all messages of an outbox. Its producer may run."""

        def unpublished() -> int:
            found = json.loads(self.command("reliamsg", "outbox", "stats", "--json", str(outbox)))
            return int(found["unpublished"])

        wait_for(lambda: unpublished() == 0, f"{outbox.name} is sent", poll=0.5)

    def start_brokers(self) -> None:
        for broker in self._brokers:
            broker.start()

    def consumer(self, topic: str) -> Consumer:
        return Consumer("billing", self.sites, topics=[topic], inbox=self.directory / "inbox.db")

    def end(self) -> None:
        for child in self._children:
            child.kill()
        for broker in self._brokers:
            broker.kill()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    running = Run(tmp_path)
    yield running
    running.end()


def take(consumer: Consumer, has_enough: Callable[[list[Message]], bool]) -> list[Message]:
    """Messages, acknowledged, until there are enough."""
    taken: list[Message] = []
    while not has_enough(taken):
        message = consumer.get(patient(30))
        assert message is not None, f"nothing arrived after {[message.body for message in taken]}"
        message.ack()
        taken.append(message)
    return taken


def status_after(child: Child, number: int = signal.SIGTERM) -> int:
    """The exit status of a program that alone gets a signal: it has to end its own processes."""
    os.kill(child.pid, number)
    wait_for(lambda: child.exit_code is not None, lambda: f"it exits: {child.output_tail()}", seconds=60)
    assert child.exit_code is not None
    return child.exit_code


def children_of(parent: Child) -> set[int]:
    return set(map(int, Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()))


# -- FastAPI --------------------------------------------------------------------------------------------------


def uvicorn(run: Run, port: int) -> Child:
    child = run.start("uvicorn", "fastapi_app:app", "--port", str(port))
    wait_for(lambda: is_up(port), lambda: f"uvicorn answers: {run.output()}")
    return child


def test_fastapi(run: Run) -> None:
    """Orders are accepted while all sites are down, survive kill -9, and a clean shutdown leaves nothing behind."""
    port = unused_port()
    child = uvicorn(run, port)
    answers = [post(port, b"%d" % n, {"Idempotency-Key": f"key-{n}"}) for n in range(20)]
    assert {answer.status for answer in answers} == {202}
    assert post(port, bytes(4 * 1024 * 1024 + 1)).status == 413
    assert post(port, b"", {"Idempotency-Key": "k" * 256}).status == 422
    assert json.loads(get(port, "/healthz").text) == {"pending": 20}
    child.kill()
    run.start_brokers()
    with run.consumer("orders") as consumer:
        child = uvicorn(run, port)
        assert post(port, b"20").status == 202
        messages = take(consumer, lambda taken: len(taken) == 21)
        assert [message.body for message in messages] == [b"%d" % n for n in range(21)]
        assert [message.key for message in messages] == [*(f"key-{n}" for n in range(20)), None]
        assert [str(message.id) for message in messages[:20]] == [json.loads(a.text)["id"] for a in answers]
        run.wait_sent(run.state / "outbox.db")
        # uvicorn shuts down, and then raises the signal again.
        assert status_after(child) == -signal.SIGTERM
        assert "Application shutdown complete" in run.output(1)


# -- gunicorn -------------------------------------------------------------------------------------------------


class Customers:
    """Threads that post numbered orders until they are stopped."""

    def __init__(self, port: int, count: int = 3) -> None:
        self.accepted: dict[bytes, str] = {}
        """The ids of the orders that were answered with 202."""
        self._port = port
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._post, args=(name,)) for name in range(count)]
        for thread in self._threads:
            thread.start()

    def _post(self, name: int) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            body = b"%d-%d" % (name, number)
            try:
                answer = post(self._port, body)
            except (OSError, HTTPException):
                continue  # the worker died: nobody knows whether this order is stored
            if answer.status == 202:
                self.accepted[body] = answer.text.strip()

    def producers(self) -> Counter[str]:
        """How many orders each producer has accepted."""
        return Counter(name.partition("/")[0] for name in list(self.accepted.values()))

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def test_gunicorn(run: Run) -> None:
    """Two workers, one of which is killed while sites are down and customers order; then a reload."""
    port = unused_port()
    master = run.start(
        "gunicorn", "--config", "gunicorn.conf.py", "--bind", f"127.0.0.1:{port}", "gunicorn_app:app"
    )
    wait_for(lambda: is_up(port), lambda: f"gunicorn answers: {run.output()}")
    slots = ("orders-web-0", "orders-web-1")
    customers = Customers(port)
    try:
        wait_for(lambda: all(customers.producers()[slot] > 10 for slot in slots), "both workers serve")
        before = wait_for(lambda: len(found := children_of(master)) == 2 and found, "there are two workers")
        os.kill(min(before), signal.SIGKILL)
        after = wait_for(
            lambda: len(found := children_of(master)) == 2 and found != before and found,
            "a worker is replaced",
        )
        was = customers.producers()
        wait_for(
            lambda: all(customers.producers()[slot] > was[slot] + 10 for slot in slots), "both serve again"
        )
        run.start_brokers()
        with run.consumer("orders") as consumer:
            os.kill(master.pid, signal.SIGHUP)
            wait_for(
                lambda: len(found := children_of(master)) == 2 and not found & after, "both are replaced"
            )
            was = customers.producers()
            wait_for(
                lambda: all(customers.producers()[slot] > was[slot] + 10 for slot in slots), "both serve"
            )
            customers.stop()
            accepted = set(customers.accepted)
            messages = take(consumer, lambda taken: accepted <= {message.body for message in taken})
            for slot in slots:
                run.wait_sent(run.state / f"{slot}.db")
            assert status_after(master) == 0
            while (message := consumer.get(1.0)) is not None:  # orders that were stored, but not answered
                messages.append(message)
    finally:
        customers.stop()
    bodies = Counter(message.body for message in messages)
    assert set(bodies.values()) == {1}, "delivered twice"
    ids = {message.body: str(message.id) for message in messages}
    assert {body: ids[body] for body in accepted} == customers.accepted
    streams = defaultdict(list)
    for message in messages:
        streams[message.stream].append((message.epoch, message.seq))
    assert {stream.producer for stream in streams} == set(slots)
    assert all(order == sorted(order) for order in streams.values())


# -- Django ---------------------------------------------------------------------------------------------------


def test_django(run: Run) -> None:
    """What is rolled back is not published, what failed is published later, and a command writes invoices."""
    place = RECIPES / "django_shop"
    manage = (sys.executable, "manage.py")
    run.command(*manage, "migrate", place=place)
    assert "No changes" in run.command(*manage, "makemigrations", "--check", "shop", place=place)
    run.start_brokers()
    billing = run.start(sys.executable, "-u", "manage.py", "bill_orders", place=place)
    port = unused_port()
    server = run.start("gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{port}", "shop.wsgi", place=place)
    wait_for(lambda: is_up(port), lambda: f"gunicorn answers: {run.output(1)}")

    def order(reference: str, item: str) -> Answer:
        return post(port, urllib.parse.urlencode({"reference": reference, "item": item}).encode())

    assert [order(f"A-{n}", f"{n} widgets").status for n in range(10)] == [201] * 10
    assert order("A-3", "refused").status == 409
    invoices = [f"invoice for A-{n}: {n} widgets" for n in range(10)]
    wait_for(lambda: sorted(run.output().splitlines()) == invoices, lambda: f"invoices: {run.output()}")
    assert status_after(server) == 0

    # As if a worker had died between the commit and the publish; and an order that is published twice.
    set_published = "from shop.models import Order; Order(reference='A-10', item='10 widgets').save()"
    run.command(*manage, "shell", "--command", set_published, place=place)
    again = "from shop.models import Order; Order.objects.filter(reference='A-3').update(published=False)"
    run.command(*manage, "shell", "--command", again, place=place)
    assert run.command(*manage, "publish_orders", place=place) == "published A-3\npublished A-10\n"
    invoices.insert(2, "invoice for A-10: 10 widgets")
    wait_for(
        lambda: sorted(run.output().splitlines()) == sorted(invoices), lambda: f"invoices: {run.output()}"
    )
    assert status_after(billing) == 0


# -- Celery ---------------------------------------------------------------------------------------------------


def test_celery(run: Run, rabbit: RabbitNode) -> None:
    """Tasks publish in two processes. One is killed, and the process that replaces it sends what it left."""
    broker = own_vhost(rabbit, "recipe-celery")

    def send(first: int, last: int) -> list[str]:
        code = f"import celery_app\nfor n in range({first}, {last}): print(celery_app.ship.delay(f'order-{{n}}').id)"
        return run.command(sys.executable, "-c", code, CELERY_BROKER=broker).splitlines()

    def succeeded() -> int:
        return run.output().count(" succeeded in ")

    worker = run.start(
        "celery",
        "--app",
        "celery_app",
        "worker",
        "--concurrency",
        "2",
        "--loglevel",
        "INFO",
        CELERY_BROKER=broker,
    )
    ids = send(0, 40)
    wait_for(lambda: succeeded() == 40, lambda: f"tasks have run: {run.output()}")
    slots = {"shipping-0.db", "shipping-1.db"}
    assert {path.name for path in run.state.glob("*.db")} == slots
    before = children_of(worker)
    os.kill(min(before), signal.SIGKILL)
    wait_for(lambda: len(found := children_of(worker)) == 2 and found != before, "a process is replaced")
    ids += send(40, 60)
    wait_for(lambda: succeeded() == 60, lambda: f"tasks have run: {run.output()}")
    assert {path.name for path in run.state.glob("*.db")} == slots
    run.start_brokers()
    with run.consumer("shipments") as consumer:
        messages = take(consumer, lambda taken: len(taken) == 60)
        assert sorted(message.body for message in messages) == sorted(b"order-%d" % n for n in range(60))
        assert {message.key for message in messages} == set(ids)
        for slot in sorted(slots):
            run.wait_sent(run.state / slot)
        assert status_after(worker) == 0


# -- systemd --------------------------------------------------------------------------------------------------


def test_systemd(run: Run) -> None:
    """systemd accepts the unit; its command runs with what the unit gives it, is killed, and exits on SIGTERM."""
    unit = (RECIPES / "systemd" / "billing.service").read_text()
    moved = unit.replace("/opt/billing/venv/bin/python", sys.executable).replace(
        "/opt/billing", str(EXAMPLES)
    )
    path = run.directory / "billing.service"
    path.write_text(moved)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(moved)
    service = parser["Service"]
    assert service["Restart"] == "always"
    assert service["KillSignal"] == "SIGTERM"
    # systemd.service(5): `$NAME` is split into words. systemd.unit(5): `%S` is the directory of StateDirectory.
    words = [
        part.replace("%S", str(run.state))
        for word in service["ExecStart"].split()
        for part in (run.environment["SITES"].split() if word == "$SITES" else [word])
    ]
    (run.state / service["StateDirectory"]).mkdir()
    run.start_brokers()
    first = run.start("env", "PYTHONUNBUFFERED=1", *words)
    with Producer(
        "shop", run.sites, outbox=run.directory / "o.db", groups={"orders": ["billing"]}
    ) as producer:
        producer.publish("orders", b"one").wait(patient(30))
        wait_for(lambda: run.output().endswith(": one\n"), lambda: f"it arrives: {run.output()}")
        first.kill()
        second = run.start("env", "PYTHONUNBUFFERED=1", *words)
        producer.publish("orders", b"two").wait(patient(30))
        wait_for(lambda: run.output(1).endswith(": two\n"), lambda: f"it arrives: {run.output(1)}")
    assert status_after(second) == 0


# -- Kubernetes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    """The objects of the manifest, by kind and name."""
    text = (RECIPES / "kubernetes" / "orders.yaml").read_text()
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_the_manifest(manifests: dict[tuple[str, str], Any], version: str) -> None:
    """Strictly: no unknown fields. `ReadWriteOncePod` is stable since 1.29."""
    assert len(manifests) == 5
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    broken = manifests["StatefulSet", "billing"] | {"spec": {"replicas": "two"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("name", ["orders-api", "billing"])
def test_names_in_the_manifest_fit(manifests: dict[tuple[str, str], Any], name: str) -> None:
    """What no schema checks: labels, services, volumes and the time for closing."""
    spec = manifests["StatefulSet", name]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert manifests["Service", spec["serviceName"]]["spec"]["selector"] == labels
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claims
    assert pod["terminationGracePeriodSeconds"] > 30  # Kubernetes' default, less than both need
    assert all(("Secret", source["secretRef"]["name"]) in manifests for source in container["envFrom"])
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container.get(probe, {"httpGet": {"port": "http"}})["httpGet"]["port"] in ports | {"http"}


def test_the_pods_run(run: Run, manifests: dict[tuple[str, str], Any]) -> None:
    """Both commands, with the environment that their pods have; probes succeed; SIGTERM ends them in time."""
    run.start_brokers()
    api, billing = (pod_of(manifests, name) for name in ("orders-api", "billing"))
    for pod in (api, billing):
        (mount,) = pod["volumeMounts"]
        (run.directory / pod["name"]).mkdir()
        pod["command"] = [
            word.replace(mount["mountPath"], str(run.directory / pod["name"])) for word in pod["command"]
        ]
    # A standby first waits for half a minute to see whether another consumer reads.
    billing["command"] = [word.replace(" --standby", "") for word in billing["command"]]
    reader = run.start(*billing["command"], place=EXAMPLES, PYTHONUNBUFFERED="1")
    environment: dict[str, str] = {}
    for variable in api["env"]:
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        assert source in (None, "metadata.name")
        environment[variable["name"]] = "orders-api-1" if source else variable["value"]
    environment["STATE_DIRECTORY"] = str(run.directory / api["name"])
    port = unused_port()
    command = [word.replace("8000", str(port)) for word in api["command"]]
    server = run.start("env", *(f"{name}={value}" for name, value in environment.items()), *command)
    for probe in ("readinessProbe", "livenessProbe"):
        path = api[probe]["httpGet"]["path"]
        wait_for(lambda path=path: is_up(port, path), lambda: f"the probe succeeds: {run.output(1)}")
    assert json.loads(post(port, b"one").text)["id"].startswith("orders-api-1/")
    wait_for(lambda: run.output().endswith(": one\n"), lambda: f"the order arrives: {run.output()}")
    assert status_after(server) == -signal.SIGTERM  # uvicorn raises it again at the end
    assert "Application shutdown complete" in run.output(1)
    assert status_after(reader) == 0


def pod_of(manifests: dict[tuple[str, str], Any], name: str) -> Any:
    """A copy of the container of a StatefulSet."""
    (container,) = manifests["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
    return dict(container)

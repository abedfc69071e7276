"""SQS clients of other makers besides boto3: Celery, the SDK for JavaScript, aioboto3, the `aws` command, and
the Query protocol as plain HTTP libraries send it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import aioboto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import ClientTrouble
from tests.conformance.clients.javascript import JavaScriptAgent
from tests.kit.eventually import eventually
from tests.plugins.snippets import blocks, run_python

pytestmark = pytest.mark.row("S13")
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker goes by the time of the machine: Celery and its tasks do."""
    with BrokerProcess(tmp_path_factory.mktemp("sqs")) as broker:
        yield broker


@pytest.fixture(scope="module")
def place(broker: BrokerProcess) -> str:
    """``host:port`` of SQS."""
    return f"127.0.0.1:{broker.ready['sqs_port']}"


def test_the_page_of_sqs_says_how(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    page = Path(__file__).parents[2] / "docs" / "sqs.md"
    for language, text in blocks(page.read_text(encoding="utf-8").replace("localhost:9324", place)):
        if language == "python":
            run_python(text, page, names)
    assert capsys.readouterr().out == "first\n"


# -- the SDK for JavaScript --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def javascript(place: str) -> Iterator[JavaScriptAgent]:
    agent = JavaScriptAgent("sqs.js", f"http://{place}", kinds={})
    yield agent
    agent.close()


def call(agent: JavaScriptAgent, command: str, **values: Any) -> Any:
    return agent.request("call", command=command, input=values)


def test_javascript_sends_and_receives_with_attributes(javascript: JavaScriptAgent) -> None:
    queue = call(javascript, "CreateQueue", QueueName="js")["QueueUrl"]
    binary = {"base64": b64encode(b"\0\1").decode()}
    attributes = {
        "n": {"DataType": "Number", "StringValue": "5"},
        "b": {"DataType": "Binary", "BinaryValue": binary},
    }
    # The SDK checks the MD5 of the body and of each received message by itself, and throws if one is wrong.
    sent = call(javascript, "SendMessage", QueueUrl=queue, MessageBody="hello ☃", MessageAttributes=attributes)
    received = call(javascript, "ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=5, MessageAttributeNames=["All"])
    (message,) = received["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello ☃")
    assert message["MessageAttributes"] == attributes
    call(javascript, "DeleteMessage", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    counts = call(javascript, "GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_javascript_keeps_the_order_of_a_group_and_names_the_errors(javascript: JavaScriptAgent) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    queue = call(javascript, "CreateQueue", QueueName="js.fifo", Attributes=attributes)["QueueUrl"]
    entries = [{"Id": f"{n}", "MessageBody": f"{n}", "MessageGroupId": "g"} for n in range(10)]
    assert len(call(javascript, "SendMessageBatch", QueueUrl=queue, Entries=entries)["Successful"]) == 10
    found = call(javascript, "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
    assert [message["Body"] for message in found] == [f"{n}" for n in range(10)]
    with pytest.raises(ClientTrouble, match="QueueDoesNotExist"):
        call(javascript, "GetQueueUrl", QueueName="nowhere")
    with pytest.raises(ClientTrouble, match="ReceiptHandleIsInvalid"):
        call(javascript, "DeleteMessage", QueueUrl=queue, ReceiptHandle="nonsense")


# -- aioboto3 --------------------------------------------------------------------------------


def test_aioboto3_sends_and_receives_side_by_side(place: str) -> None:
    async def use() -> None:
        session = aioboto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")
        async with session.client("sqs", endpoint_url=f"http://{place}") as sqs:
            queue = (await sqs.create_queue(QueueName="aio"))["QueueUrl"]
            waiting = asyncio.create_task(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10))
            await asyncio.gather(*(sqs.send_message(QueueUrl=queue, MessageBody=f"{n}") for n in range(20)))
            first = (await waiting)["Messages"]
            bodies = [message["Body"] for message in first]
            while len(bodies) < 20:
                answer = await sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)
                bodies += [message["Body"] for message in answer["Messages"]]
            assert sorted(bodies, key=int) == [f"{n}" for n in range(20)]

    asyncio.run(use())


# -- the aws command --------------------------------------------------------------------------------


def aws(place: str, *arguments: str) -> Any:
    command = [str(Path(sys.executable).with_name("aws")), "--endpoint-url", f"http://{place}", "sqs", *arguments]
    done = subprocess.run(command, env={**os.environ, **AWS}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_the_aws_command(place: str) -> None:
    queue = aws(place, "create-queue", "--queue-name", "cli")["QueueUrl"]
    assert queue in aws(place, "list-queues", "--queue-name-prefix", "cli")["QueueUrls"]
    sent = aws(place, "send-message", "--queue-url", queue, "--message-body", "from a shell")
    assert sent["MD5OfMessageBody"] == md5(b"from a shell").hexdigest()
    (message,) = aws(place, "receive-message", "--queue-url", queue, "--wait-time-seconds", "5")["Messages"]
    assert message["Body"] == "from a shell"
    aws(place, "delete-message", "--queue-url", queue, "--receipt-handle", message["ReceiptHandle"])
    assert aws(place, "receive-message", "--queue-url", queue) is None


# -- Query --------------------------------------------------------------------------------


def test_query_requests_as_older_sdks_send_them(place: str) -> None:
    """Laravel's SDK for PHP speaks the Query protocol: a form, signed."""

    def query(path: str, **parameters: str) -> ElementTree.Element:
        form = AWSRequest("POST", f"http://{place}{path}", data=urlencode({"Version": "2012-11-05", **parameters}))
        form.headers["Content-Type"] = "application/x-www-form-urlencoded; charset=utf-8"
        SigV4Auth(Credentials("test", "test"), "sqs", "us-east-1").add_auth(form)
        return ElementTree.fromstring(URLLib3Session().send(form.prepare()).content)

    names = {"s": "http://queue.amazonaws.com/doc/2012-11-05/"}
    made = query("/", Action="CreateQueue", QueueName="php")
    url = made.findtext(".//s:QueueUrl", namespaces=names)
    assert url is not None
    path = url.partition(place)[2]
    assert path == "/000000000000/php"
    body = "a & <b>"
    sent = query(path, Action="SendMessage", MessageBody=body)
    assert sent.findtext(".//s:MD5OfMessageBody", namespaces=names) == md5(body.encode()).hexdigest()
    received = query(path, Action="ReceiveMessage", WaitTimeSeconds="5")
    assert received.findtext(".//s:Body", namespaces=names) == body
    refused = query(path, Action="ReceiveMessage", MaxNumberOfMessages="11")
    assert refused.findtext(".//s:Code", namespaces=names) == "InvalidParameterValue"


# -- Celery --------------------------------------------------------------------------------


class Worker:
    """A Celery worker in a process of its own, and the folder in which its tasks note what they did."""

    def __init__(self, place: str, folder: Path, visibility_s: int) -> None:
        self.folder = folder
        self.environment = {**os.environ, **AWS, "PARTIBUS_SQS": place, "PARTIBUS_VISIBILITY": str(visibility_s)}
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.conformance.celery_app", "worker", "--loglevel=INFO",
             "--pool=prefork", "--without-gossip", "--without-mingle", "--without-heartbeat"],
            env=self.environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def send(self, task: str, *arguments: object, **options: object) -> None:
        """Send a task from a process of its own, as an application does."""
        text = f"from tests.conformance.celery_app import app; app.send_task({task!r}, {arguments!r}, **{options!r})"
        subprocess.run([sys.executable, "-c", text], env=self.environment, check=True)

    @property
    def done(self) -> list[str]:
        file = self.folder / "done"
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


@pytest.fixture
def worker(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = Worker(place, tmp_path, visibility_s=request.param)
    yield worker
    worker.close()


APP = "tests.conformance.celery_app"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("worker", [60], indirect=True, ids=["visibility of a minute"])
def test_a_celery_worker_runs_retries_and_waits_for_the_time_of_tasks(worker: Worker) -> None:
    folder = str(worker.folder)
    for name in ("one", "two"):
        worker.send(f"{APP}.work", folder, name)
    eventually("both tasks were done", lambda: sorted(worker.done) == ["one", "two"])
    worker.send(f"{APP}.fails_twice", folder)
    eventually("it was tried three times", lambda: worker.done[2:] == ["try 0", "try 1", "try 2"])
    due_s = time.time() + 4
    worker.send(f"{APP}.at", folder, countdown=4)
    eventually("the task came when it was due", lambda: len(worker.done) == 6)
    assert float(worker.done[5]) >= due_s - 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("worker", [3], indirect=True, ids=["visibility of 3 s"])
def test_a_task_of_a_worker_that_dies_comes_again(worker: Worker) -> None:
    """Celery acknowledges late: the message stays until its visibility timeout ends."""
    worker.send(f"{APP}.dies_once", str(worker.folder))
    eventually("the task came again", lambda: worker.done == ["came again"])


def test_the_aws_command_of_the_page_needs_nothing_beside(place: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sqs.md").read_text(encoding="utf-8")
    (script,) = (text for language, text in blocks(page) if language == "sh" and "aws --endpoint-url" in text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["sh", "-ec", script.replace("localhost:9324", place)]
    done = subprocess.run(
        command, env={"PATH": path, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["QueueUrl"].endswith("/orders")

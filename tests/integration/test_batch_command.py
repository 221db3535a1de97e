"""`sluice batch`, as a person or a program types it, against a server that says what a test wants."""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.responses import Response
from typer.testing import CliRunner

from deploy.batch import server as client
from deploy.batch import watching
from deploy.cli import app
from deploy.foreseeable import FORESEEABLE
from tests.builders.command_line import Ended
from tests.fakes.batch_server import KEY, BatchServer, batch, counts, refusal
from tests.fakes.http_server import serving

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'
DONE = batch("completed", request_counts=counts(4), output_file_id="file-out")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(watching, "TRY_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(client, "PAUSES_SECONDS", (0.01, 0.01))


@pytest.fixture
def server() -> BatchServer:
    return BatchServer()


@pytest.fixture
async def url(server: BatchServer) -> AsyncIterator[str]:
    async with serving(server) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the person is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(LINES)
    return tmp_path


async def sluice_batch(
    url: str, *arguments: str, key: str | None = KEY, standard_input: bytes | None = None
) -> Ended:
    environment = {"COLUMNS": "200", "SLUICE_API_KEY": key}
    runner = CliRunner(env=environment)
    command = ["batch", *arguments, "--url", url]
    result = await asyncio.to_thread(runner.invoke, app, command, input=standard_input)
    is_foreseeable = isinstance(result.exception, FORESEEABLE)
    assert is_foreseeable or isinstance(result.exception, SystemExit | None), result.exception
    return Ended(
        status=result.exit_code,
        output=result.stdout,
        errors=f"{result.stderr}sluice: {result.exception}" if is_foreseeable else result.stderr,
    )


# --- submit ------------------------------------------------------------------------------------------------


async def test_a_file_is_uploaded_and_its_batch_is_named(url: str, server: BatchServer, folder: Path) -> None:
    terms = ["--endpoint", "/v1/completions", "--window", "1h", "--metadata", "run=7", "--metadata", "of=a=b"]
    ended = await sluice_batch(url, "submit", "in.jsonl", *terms)
    assert (ended.status, ended.errors) == (0, "")
    assert ended.output == "Batch batch_1 is submitted.\nWatch it: sluice batch watch batch_1\n"
    assert server.uploads == [LINES]
    assert server.orders == [
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "1h",
            "metadata": {"run": "7", "of": "a=b"},
        }
    ]


async def test_quiet_prints_the_id_alone(url: str, folder: Path) -> None:
    assert (await sluice_batch(url, "submit", "in.jsonl", "--quiet")).output == "batch_1\n"


async def test_a_large_file_arrives_whole(url: str, server: BatchServer, folder: Path) -> None:
    large = b'{"custom_id": "x"}\n' * 200_000
    (folder / "large.jsonl").write_bytes(large)
    assert (await sluice_batch(url, "submit", "large.jsonl")).status == 0
    assert server.uploads == [large]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.jsonl", "there is no file none.jsonl"),
        ("empty.jsonl", "empty.jsonl is empty: a batch is a request in each line"),
        (".", ". cannot be read"),
    ],
)
async def test_what_is_no_file_of_requests_is_said_before_anything_is_sent(
    folder: Path, name: str, why: str
) -> None:
    (folder / "empty.jsonl").touch()
    ended = await sluice_batch("http://127.0.0.1:9", "submit", name)
    assert (ended.status, ended.output, ended.errors) == (1, "", f"sluice: {why}")


async def test_a_dash_is_standard_input(url: str, server: BatchServer, folder: Path) -> None:
    large = b'{"custom_id": "x"}\n' * 200_000
    ended = await sluice_batch(url, "submit", "-", "--quiet", standard_input=large)
    assert (ended.status, ended.output, ended.errors) == (0, "batch_1\n", "")
    assert (server.uploads, server.filenames) == ([large], ["standard-input.jsonl"])


async def test_what_a_program_writes_into_a_pipe_is_submitted(url: str, server: BatchServer) -> None:
    command = f"(echo one; sleep 0.2; echo two) | {sys.executable} -m deploy batch submit - --url {url}"
    process = await asyncio.create_subprocess_shell(command, env=os.environ | {"SLUICE_API_KEY": KEY})
    assert await process.wait() == 0
    assert server.uploads == [b"one\ntwo\n"]


@pytest.mark.parametrize(
    ("where_from", "why"),
    [
        ("</dev/null", "standard input is empty: a batch is a request in each line"),
        ("<&-", "standard input is closed"),
    ],
)
async def test_standard_input_without_requests_is_said_before_anything_is_sent(
    where_from: str, why: str
) -> None:
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m deploy batch submit - --url http://127.0.0.1:9 {where_from}",
        env=os.environ | {"SLUICE_API_KEY": KEY},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (1, f"sluice: {why}\n")


async def test_an_order_whose_answer_is_lost_is_sent_again_under_the_same_name(
    url: str, server: BatchServer, folder: Path
) -> None:
    server.refusals["POST /v1/batches"] = [refusal(503, "Try again.")]
    assert (await sluice_batch(url, "submit", "in.jsonl")).status == 0
    assert (len(server.order_names), len(set(server.order_names))) == (2, 1)
    assert len(server.uploads) == 1


@pytest.mark.parametrize("asked", ["POST /v1/files", "POST /v1/batches"])
async def test_what_the_server_refuses_is_a_line(
    url: str, server: BatchServer, folder: Path, asked: str
) -> None:
    server.refusals[asked] = [refusal(400, "The file has\n too many lines.")]
    ended = await sluice_batch(url, "submit", "in.jsonl")
    assert (ended.status, ended.output) == (1, "")
    assert ended.errors == "sluice: The file has too many lines."


async def test_a_refused_order_leaves_no_file_behind(url: str, server: BatchServer, folder: Path) -> None:
    server.refusals["POST /v1/batches"] = [refusal(400, "completion_window is 5s; it must be …")]
    assert (await sluice_batch(url, "submit", "in.jsonl")).status == 1
    assert server.asked[-1] == "DELETE /v1/files/file-1"


async def test_a_page_that_is_no_error_of_an_api_is_a_line(
    url: str, server: BatchServer, folder: Path
) -> None:
    server.refusals["POST /v1/files"] = [Response("<html>", 404)]
    assert (await sluice_batch(url, "submit", "in.jsonl")).errors == f"sluice: {url} answers with status 404"
    server.refusals["POST /v1/files"] = [Response("<html>", 200)]
    why = f"sluice: {url}/v1/files answers with something else; is it the API's URL?"
    assert (await sluice_batch(url, "submit", "in.jsonl")).errors == why


async def test_a_wrong_key_is_a_line(url: str, folder: Path) -> None:
    ended = await sluice_batch(url, "submit", "in.jsonl", key="sk-live-other")
    assert (ended.status, ended.errors.startswith(f"sluice: {url} refuses the key: ")) == (1, True)


async def test_a_server_that_is_not_there_is_a_line(folder: Path) -> None:
    ended = await sluice_batch("http://127.0.0.1:9", "submit", "in.jsonl")
    assert (ended.status, ended.output) == (1, "")
    assert ended.errors.startswith("sluice: nothing answers at http://127.0.0.1:9: start a server")


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "in.jsonl", "--metadata", "novalue"),
        ("watch", "batch_1", "--key", "sk-ä"),
        ("watch", "batch_1", "--key", ""),
        ("fetch", "batch_1", "--output", "-", "--errors", "-"),
    ],
)
async def test_what_cannot_be_meant_is_wrong_usage(
    url: str, folder: Path, arguments: tuple[str, ...]
) -> None:
    assert (await sluice_batch(url, *arguments)).status == 2


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "http://[bad"])
async def test_what_is_no_url_is_wrong_usage(folder: Path, url: str) -> None:
    assert (await sluice_batch(url, "watch", "batch_1")).status == 2


# --- whose key ---------------------------------------------------------------------------------------------


async def test_the_first_key_of_the_data_directory_is_used_where_none_is_given(
    url: str, server: BatchServer, folder: Path
) -> None:
    (folder / "data").mkdir()
    (folder / "data/first-key").write_text(f"{KEY}\n")
    ended = await sluice_batch(url, "submit", "in.jsonl", "--quiet", "--data-dir", "data", key=None)
    assert (ended.status, ended.output) == (0, "batch_1\n")


async def test_without_any_key_nothing_is_sent(url: str, server: BatchServer, folder: Path) -> None:
    ended = await sluice_batch(url, "list", key=None)
    assert (ended.status, server.asked) == (1, [])
    assert "SLUICE_API_KEY" in ended.errors


async def test_the_first_key_goes_to_no_other_machine(folder: Path) -> None:
    (folder / "sluice-data").mkdir()
    (folder / "sluice-data/first-key").write_text(KEY)
    ended = await sluice_batch("http://gateway.invalid:8080", "list", key=None)
    assert ended.errors == "sluice: give the key for http://gateway.invalid:8080 with --key or SLUICE_API_KEY"


# --- watch -------------------------------------------------------------------------------------------------


async def test_each_change_is_a_plain_line(url: str, server: BatchServer) -> None:
    server.stands = [
        batch("validating"),
        batch(request_counts=counts(0)),
        batch(request_counts=counts(0)),
        batch(request_counts=counts(2, 1)),
        DONE,
    ]
    ended = await sluice_batch(url, "watch", "batch_1")
    assert (ended.status, ended.errors) == (0, "")
    assert ended.output.splitlines() == [
        "validating",
        "in_progress: 0 of 4 done",
        "in_progress: 3 of 4 done, 1 of them failed",
        "completed: 4 of 4 done",
        "Batch batch_1 is completed; get the answers: sluice batch fetch batch_1",
    ]
    assert "\x1b" not in ended.output


@pytest.mark.parametrize(
    ("stand", "why"),
    [
        (
            batch("completed", request_counts=counts(3, 1)),
            "1 of 4 requests failed; get the answers: sluice batch fetch batch_1",
        ),
        (
            batch("expired", request_counts=counts(1, 3)),  # what was not run counts as failed
            "batch_1 is expired with 1 of 4 requests answered; get the answers: sluice batch fetch batch_1",
        ),
        (
            batch("cancelled", request_counts=counts(0)),
            "batch_1 is cancelled with 0 of 4 requests answered",
        ),
    ],
)
async def test_another_end_than_was_hoped_for_is_a_reason_and_status_1(
    url: str, server: BatchServer, stand: dict[str, object], why: str
) -> None:
    server.stands = [batch(), stand]
    ended = await sluice_batch(url, "watch", "batch_1")
    assert (ended.status, ended.errors) == (1, f"sluice: {why}")


async def test_what_is_wrong_with_a_file_is_a_table(url: str, server: BatchServer) -> None:
    wrong = [
        {"code": "invalid_json", "line": 7, "message": "This is no JSON: [/b] :smile:", "param": None},
        {"code": "token_limit", "line": None, "message": "Too much.", "param": None},
    ]
    server.stands = [batch("failed", errors={"object": "list", "data": wrong})]
    ended = await sluice_batch(url, "watch", "batch_1")
    assert [line.split() for line in ended.output.splitlines()[1:]] == [
        ["line", "code", "message"],
        ["7", "invalid_json", "This", "is", "no", "JSON:", "[/b]", ":smile:"],
        ["token_limit", "Too", "much."],
    ]
    why = "sluice: batch_1 failed, and nothing of it was run: its file has 2 errors"
    assert (ended.status, ended.errors) == (1, why)


async def test_a_server_that_goes_away_is_waited_for_and_that_is_said_once(
    url: str, server: BatchServer
) -> None:
    server.stands = [batch(), DONE]
    watched = asyncio.create_task(sluice_batch(url, "watch", "batch_1"))
    server.refusals["GET /v1/batches/batch_1"] = []
    await server.is_asked.wait()
    server.refusals["GET /v1/batches/batch_1"] += [refusal(503, "Starting."), refusal(503, "Starting.")]
    lines = (await watched).output.splitlines()
    assert lines[1:3] == [
        "The server is away; the batch is kept. Trying again. (Starting.)",
        "The server is back.",
    ]


async def test_a_batch_that_is_not_there_is_not_waited_for(url: str) -> None:
    ended = await sluice_batch(url, "watch", "batch_2")
    assert (ended.status, ended.errors) == (1, "sluice: There is no such batch.")


async def test_json_is_the_batch_as_it_ended(url: str, server: BatchServer) -> None:
    server.stands = [batch(), DONE]
    ended = await sluice_batch(url, "watch", "batch_1", "--json")
    assert json.loads(ended.output) == DONE


async def test_submitting_can_wait_for_the_end(url: str, server: BatchServer, folder: Path) -> None:
    server.stands = [batch(), batch("completed", request_counts=counts(3, 1))]
    ended = await sluice_batch(url, "submit", "in.jsonl", "--quiet", "--watch")
    assert (ended.status, ended.output) == (1, "batch_1\n")
    assert ended.errors.startswith("sluice: 1 of 4 requests failed")


async def test_ctrl_c_leaves_the_batch_running(url: str, server: BatchServer) -> None:
    # Who runs these tests in the background ignores the signal, and so would its children.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heeds}; from deploy.cli import main; main()"
    command = [sys.executable, "-c", program, "batch", "watch", "batch_1", "--url", url, "--key", KEY]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    await server.is_asked.wait()
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert process.returncode == 130
    assert errors.decode() == "The server goes on with it; watch it again: sluice batch watch batch_1\n"
    assert {asked.split()[0] for asked in server.asked} == {"GET"}


# --- cancel ------------------------------------------------------------------------------------------------


async def test_a_batch_is_cancelled(url: str, server: BatchServer) -> None:
    server.stands = [batch("cancelling")]
    ended = await sluice_batch(url, "cancel", "batch_1")
    assert server.asked == ["POST /v1/batches/batch_1/cancel"]
    assert (ended.status, ended.output.splitlines()) == (
        0,
        ["Batch batch_1 is being cancelled; wait for it: sluice batch watch batch_1"],
    )


async def test_the_end_of_what_is_cancelled_can_be_waited_for(url: str, server: BatchServer) -> None:
    server.stands = [batch("cancelling"), batch("cancelling"), batch("cancelled")]
    ended = await sluice_batch(url, "cancel", "batch_1", "--wait")
    assert (ended.status, ended.output.splitlines()[-1]) == (0, "Batch batch_1 is cancelled.")


async def test_what_has_ended_stays_as_it_is(url: str, server: BatchServer) -> None:
    server.stands = [DONE]
    server.refusals["POST /v1/batches/batch_1/cancel"] = [refusal(400, "It has ended.")]
    ended = await sluice_batch(url, "cancel", "batch_1")
    assert (ended.status, ended.output) == (0, "Batch batch_1 is completed.\n")


# --- fetch -------------------------------------------------------------------------------------------------


async def test_answers_and_errors_are_saved_under_the_batch_s_name(
    url: str, server: BatchServer, folder: Path
) -> None:
    server.stands = [batch("completed", output_file_id="file-out", error_file_id="file-err")]
    server.contents = {"file-out": Response(b"answers\n"), "file-err": Response(b"errors\n")}
    ended = await sluice_batch(url, "fetch", "batch_1")
    assert (ended.status, ended.output) == (0, "")
    assert ended.errors == "answers: batch_1_output.jsonl\nerrors: batch_1_error.jsonl\n"
    assert (folder / "batch_1_output.jsonl").read_bytes() == b"answers\n"
    assert (folder / "batch_1_error.jsonl").read_bytes() == b"errors\n"


async def test_answers_go_to_standard_output_and_words_do_not(
    url: str, server: BatchServer, folder: Path
) -> None:
    server.stands = [DONE]
    server.contents = {"file-out": Response(b"answers\n")}
    ended = await sluice_batch(url, "fetch", "batch_1", "--output", "-")
    assert (ended.status, ended.output, ended.errors) == (0, "answers\n", "answers: standard output\n")


async def test_a_download_that_breaks_off_leaves_what_was_there(
    url: str, server: BatchServer, folder: Path
) -> None:
    server.stands = [DONE]
    server.contents = {"file-out": Response(b"half", headers={"Content-Length": "4000"})}
    (folder / "out.jsonl").write_text("of last time")
    ended = await sluice_batch(url, "fetch", "batch_1", "--output", "out.jsonl")
    assert (ended.status, ended.errors) == (1, f"sluice: the connection to {url} was lost")
    assert sorted(os.listdir(folder)) == ["in.jsonl", "out.jsonl"]
    assert (folder / "out.jsonl").read_text() == "of last time"


async def test_what_is_no_ordinary_file_is_written_and_not_replaced(
    url: str, server: BatchServer, folder: Path
) -> None:
    server.stands = [DONE]
    server.contents = {"file-out": Response(b"answers\n")}
    os.mkfifo(folder / "pipe")
    reading = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        ended = await sluice_batch(url, "fetch", "batch_1", "--output", "pipe")
        read = os.read(reading, 100)
    finally:
        os.close(reading)
    assert (ended.status, read) == (0, b"answers\n")
    assert stat.S_ISFIFO(os.stat(folder / "pipe").st_mode)


async def test_a_link_leads_to_the_file_that_is_written(url: str, server: BatchServer, folder: Path) -> None:
    server.stands = [DONE]
    server.contents = {"file-out": Response(b"answers\n")}
    (folder / "elsewhere").mkdir()
    (folder / "out.jsonl").symlink_to("elsewhere/real.jsonl")
    assert (await sluice_batch(url, "fetch", "batch_1", "--output", "out.jsonl")).status == 0
    assert (folder / "elsewhere/real.jsonl").read_bytes() == b"answers\n"
    assert (folder / "out.jsonl").is_symlink()


@pytest.mark.parametrize("place", ["nowhere/out.jsonl", "."])
async def test_a_place_that_cannot_be_written_is_said_before_anything_is_fetched(
    url: str, server: BatchServer, folder: Path, place: str
) -> None:
    ended = await sluice_batch(url, "fetch", "batch_1", "--output", place)
    assert (ended.status, server.asked) == (1, [])
    assert place in ended.errors


async def test_a_batch_that_has_not_ended_has_nothing_to_fetch(url: str, server: BatchServer) -> None:
    server.stands = [batch(request_counts=counts(1))]
    ended = await sluice_batch(url, "fetch", "batch_1")
    why = "batch_1 is in_progress: 1 of 4 done; wait for it: sluice batch watch batch_1"
    assert (ended.status, ended.errors) == (1, f"sluice: {why}")


async def test_a_batch_without_files_says_why(url: str, server: BatchServer) -> None:
    wrong = [{"code": "empty_file", "line": None, "message": "No lines.", "param": None}]
    server.stands = [batch("failed", errors={"object": "list", "data": wrong})]
    ended = await sluice_batch(url, "fetch", "batch_1")
    assert (ended.status, "No lines." in ended.output) == (1, True)
    assert ended.errors.startswith("sluice: there is nothing to fetch; batch_1 failed")


# --- list --------------------------------------------------------------------------------------------------


async def test_batches_are_listed(url: str, server: BatchServer) -> None:
    server.stands = [batch(request_counts=counts(2, 1))]
    listed = (await sluice_batch(url, "list")).output.splitlines()[1].split()
    assert listed == ["batch_1", "in_progress", "3", "4", "1", "/v1/chat/completions", "2025-11-29", "07:06"]
    assert json.loads((await sluice_batch(url, "list", "--json")).output) == server.stands


async def test_no_batches_yet_says_how_to_submit_one(url: str, server: BatchServer) -> None:
    server.stands = []
    assert "sluice batch submit FILE" in (await sluice_batch(url, "list")).output

"""`sluice batch`: files of requests to a running server, and their answers back."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console

from deploy.batch.source import opened
from deploy.batch.wire import Batch, LineError, Sighting, created, how_to_fetch, standing, why_no_success
from deploy.commands.options import AsJson, DataDir
from deploy.commands.store_access import print_json, print_table
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.data_directory import DataDirectory
from deploy.failure import Failure

if TYPE_CHECKING:
    from deploy.batch.server import Server
    from deploy.batch.watching import View

Result = TypeVar("Result")

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_SHOWN_ERRORS: Final = 50
INTERRUPTED: Final = 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Have files of requests answered by a running server, in what people leave of it.",
)

Url = Annotated[str, typer.Option(help="The server, with or without /v1.")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="SLUICE_API_KEY",
        help="An API key. Without it, for a server on this machine: DATA-DIR/first-key.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `submit` prints it.")]
DEFAULT_URL: Final = "http://127.0.0.1:8080"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where a server is, and a key for it."""

    url: str
    key: str


@app.command()
def submit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON lines, a request in each; - is standard input.")
    ],
    endpoint: Annotated[str, typer.Option(help="What every line's url is.")] = "/v1/chat/completions",
    window: Annotated[str, typer.Option(help="Within which it is done, or ends without the rest.")] = "24h",
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Kept with the batch; may be repeated.")
    ] = None,
    is_watched: Annotated[bool, typer.Option("--watch", help="Then wait for its end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the batch's id and nothing else.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Uploads a file and makes a batch of it."""
    pairs = dict(_pair(text) for text in metadata or ())
    access = _access(url, key, data_dir)
    with opened(file) as source:

        async def verb(server: "Server") -> Sighting:
            from deploy.batch.bytes_bar import bytes_bar
            from deploy.batch.server import Refused

            with bytes_bar(f"uploading {source.name}", source.num_bytes, is_hidden=quiet) as tell:
                file_id = await server.upload(source, tell)
            try:
                return await server.submit(file_id, endpoint=endpoint, window=window, metadata=pairs)
            except Refused:
                await server.forget(file_id)  # nobody would ever use it
                raise

        batch = _run(verb, access).batch
    print(batch.id if quiet else f"Batch {batch.id} is submitted.", flush=True)
    if is_watched:
        _watch_to_the_end(batch.id, access, is_silent=quiet)
    elif not quiet:
        print(f"Watch it: sluice batch watch {batch.id}")


@app.command()
def watch(
    batch_id: Id,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Shows a batch's progress until it ends, through restarts of the server. Ctrl-C leaves it running.

    The status is 0 if every request has its answer. With --json: the batch as it ended, once it has.
    """
    _watch_to_the_end(batch_id, _access(url, key, data_dir), as_json=as_json)


@app.command()
def cancel(
    batch_id: Id,
    waits: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Ends a batch; what was done of it can be fetched. One that has ended stays as it is."""
    access = _access(url, key, data_dir)

    async def verb(server: "Server") -> Sighting:
        return await server.cancel(batch_id)

    batch = _run(verb, access).batch
    if waits and not batch.is_over:
        batch = _watched(batch_id, access).batch
    if not batch.is_over:
        print(f"Batch {batch.id} is being cancelled; wait for it: sluice batch watch {batch.id}")
    else:
        print(f"Batch {batch.id} is {batch.status}.")


@app.command()
def fetch(
    batch_id: Id,
    output: Annotated[
        Path | None,
        typer.Option(help="For the answers; - is standard output.", show_default="ID_output.jsonl"),
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option(help="For what failed; - is standard output.", show_default="ID_error.jsonl"),
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Saves what an ended batch has brought: its answers, and what failed of it."""
    from deploy.batch.saving import check_place, save

    for place in (output, errors):
        check_place(place)
    if output is not None and output == errors:
        raise typer.BadParameter("answers and errors are two files", param_hint="--errors")

    async def verb(server: "Server") -> Batch:
        batch = (await server.batch(batch_id)).batch
        for what, file_id, place in _files(batch, output, errors):
            await save(server, file_id, place)
            print(f"{what}: {'standard output' if place == Path('-') else place}", file=sys.stderr)
        return batch

    batch = _run(verb, _access(url, key, data_dir))
    if batch.output_file_id is None and batch.error_file_id is None:
        _print_errors(batch.line_errors)
        raise Failure(f"there is nothing to fetch; {why_no_success(batch)}")


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Shows the batches of the key's project, newest first."""

    async def verb(server: "Server") -> Sequence[Sighting]:
        return await server.batches(limit=limit)

    listed = _run(verb, _access(url, key, data_dir))
    if as_json:
        print_json([seen.body for seen in listed])
        return
    print_table(
        ["id", "state", "done", "of", "failed", "endpoint", "created (UTC)"],
        [_row(seen.batch) for seen in listed],
        empty="No batches yet. Submit one: sluice batch submit FILE",
    )


# --- waiting -----------------------------------------------------------------------------------------------


def _watch_to_the_end(
    batch_id: str, access: Access, *, is_silent: bool = False, as_json: bool = False
) -> None:
    """Raises Failure for an end that nobody hoped for."""
    ended = _watched(batch_id, access, is_silent=is_silent, as_json=as_json)
    if as_json:
        print_json(ended.body)
    else:
        _print_errors(ended.batch.line_errors)
    if not ended.batch.is_success:
        raise Failure(why_no_success(ended.batch))
    if not (as_json or is_silent):
        print(f"Batch {batch_id} is completed; {how_to_fetch(ended.batch)}")


def _watched(batch_id: str, access: Access, *, is_silent: bool = False, as_json: bool = False) -> Sighting:
    async def verb(server: "Server") -> Sighting:
        from deploy.batch.watching import watch

        with _view(is_silent=is_silent, as_json=as_json) as view:
            return await watch(server, batch_id, view)

    try:
        return _run(verb, access)
    except KeyboardInterrupt:
        print(f"The server goes on with it; watch it again: sluice batch watch {batch_id}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _view(*, is_silent: bool, as_json: bool) -> Iterator["View"]:
    """JSON has standard output for itself: a person sees the bar on standard error, a program nothing."""
    from deploy.batch.views import Nothing, view_on

    console = Console(stderr=as_json)
    if is_silent or (as_json and not console.is_terminal):
        yield Nothing()
    else:
        with view_on(console) as view:
            yield view


# --- the server --------------------------------------------------------------------------------------------


def _run(verb: Callable[["Server"], Awaitable[Result]], access: Access) -> Result:
    # Here and not above: its HTTP client takes a third of a second that no other command should wait for.
    from deploy.batch.server import connected

    async def run() -> Result:
        async with connected(access.url, access.key) as server:
            return await verb(server)

    return asyncio.run(run())


def _access(url: str, key: str | None, data_dir: Path) -> Access:
    """Raises Failure where there is no key. The first key of this machine goes to no other one."""
    host = _host(url)
    if key is None and host not in LOOPBACK:
        raise Failure(f"give the key for {url} with --key or SLUICE_API_KEY")
    key = (_first_key(data_dir) if key is None else key).strip()
    if not (key and key.isascii() and key.isprintable()):
        raise typer.BadParameter("this is no API key", param_hint="--key")
    return Access(url=url, key=key)


def _host(url: str) -> str | None:
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"write http://{url}", param_hint="--url")
    try:
        return urlsplit(url).hostname
    except ValueError as error:
        raise typer.BadParameter(f"{url} is no URL: {error}", param_hint="--url") from error


def _first_key(data_dir: Path) -> str:
    try:
        return DataDirectory(data_dir).first_key.read_text()
    except OSError as error:
        raise Failure(
            f"give a key with --key or SLUICE_API_KEY; there is no first one in {data_dir}"
        ) from error


# --- what was typed, and what is shown ---------------------------------------------------------------------


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"write KEY=VALUE, not '{text}'", param_hint="--metadata")
    return name, value


def _files(batch: Batch, output: Path | None, errors: Path | None) -> list[tuple[str, str, Path]]:
    """What there is, what it is, and where it goes. Raises Failure for a batch that has not ended."""
    if not batch.is_over:
        raise Failure(f"{batch.id} is {standing(batch)}; wait for it: sluice batch watch {batch.id}")
    there = [
        ("answers", batch.output_file_id, output or Path(f"{batch.id}_output.jsonl")),
        ("errors", batch.error_file_id, errors or Path(f"{batch.id}_error.jsonl")),
    ]
    return [(what, file_id, place) for what, file_id, place in there if file_id is not None]


def _print_errors(errors: Sequence[LineError]) -> None:
    if not errors:
        return
    print_table(
        ["line", "code", "message"],
        [[error.line, error.code, error.message] for error in errors[:MAX_SHOWN_ERRORS]],
        empty="",
    )
    if len(errors) > MAX_SHOWN_ERRORS:
        print(f"… and {len(errors) - MAX_SHOWN_ERRORS:,} more")


def _row(batch: Batch) -> list[object]:
    counts = batch.request_counts
    return [
        batch.id,
        batch.status,
        f"{counts.done:,}",
        f"{counts.total:,}",
        f"{counts.failed:,}",
        batch.endpoint,
        created(batch),
    ]

"""Blobs in a bucket, over real HTTP: the same promises as in a folder."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from gateway.errors import FileStoreUnavailable
from gateway.files import s3_store
from gateway.files.s3_store import S3FileStore
from gateway.files.store import BlobMissing
from gateway.tenants.ids import TenantId

ACME = TenantId("ten_acme")
BUCKET = "files-of-tenants"
NOT_OURS = "sluice/readme.txt"


@pytest.fixture(scope="module")
def endpoint_url() -> Iterator[str]:
    """Where an S3 listens."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Looks at a bucket from outside; it holds one thing that is not ours."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=endpoint_url)
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key=NOT_OURS, Body=b"not ours")
    yield client
    bucket = boto3.resource("s3", endpoint_url=endpoint_url).Bucket(BUCKET)
    bucket.objects.all().delete()
    for upload in bucket.multipart_uploads.all():
        upload.abort()
    client.close()


@pytest.fixture
def store(client: Any, endpoint_url: str) -> S3FileStore:
    return S3FileStore(BUCKET, endpoint_url=endpoint_url, prefix="sluice/")


def stored(store: S3FileStore, *chunks: bytes) -> str:
    writer = store.create(ACME)
    for chunk in chunks:
        writer.write(chunk)
    return writer.commit()


def test_a_blob_is_read_back_whole_and_from_any_byte_on(store: S3FileStore) -> None:
    blob = stored(store, b"one\n", b"two\n")
    with store.open(blob) as opened:
        assert opened.read() == b"one\ntwo\n"
    with store.open(blob, start=4) as opened:
        assert opened.read(2) == b"tw"


def test_a_blob_of_several_parts_is_whole(store: S3FileStore) -> None:
    chunk = bytes(range(256)) * 4096
    blob = stored(store, *[chunk] * 17)
    with store.open(blob) as opened:
        assert opened.read() == chunk * 17


def test_an_empty_blob_is_a_blob(store: S3FileStore) -> None:
    with store.open(stored(store)) as opened:
        assert opened.read() == b""


def test_slices_come_in_the_order_they_were_asked_for(store: S3FileStore) -> None:
    blob = stored(store, b"0123456789")
    assert store.read_slices(blob, [(8, 2), (0, 3), (3, 2), (6, 0)]) == [b"89", b"012", b"34", b""]
    with pytest.raises(BlobMissing):
        store.read_slices(blob, [(8, 3)])


def test_nothing_is_there_before_it_is_whole(store: S3FileStore, client: Any) -> None:
    writer = store.create(ACME)
    writer.write(b"half")
    assert [found["Key"] for found in client.list_objects_v2(Bucket=BUCKET)["Contents"]] == [NOT_OURS]
    assert [found.name for found in store.blobs()] == []
    blob = stored(store, b"whole")
    assert [found.name for found in store.blobs()] == [blob]


def test_what_is_given_up_leaves_nothing(store: S3FileStore, client: Any) -> None:
    writer = store.create(ACME)
    writer.write(b"x" * s3_store.PART_BYTES)
    writer.abort()
    writer.abort()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=BUCKET)


def test_what_dead_writers_left_goes_and_what_is_not_ours_stays(store: S3FileStore, client: Any) -> None:
    """The server of this test says of every upload that it is years old."""
    store.create(ACME).write(b"half")
    client.create_multipart_upload(Bucket=BUCKET, Key=NOT_OURS)
    assert list(store.blobs()) == []
    left = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert [upload["Key"] for upload in left] == [NOT_OURS]


def test_a_removed_blob_is_gone_and_may_be_removed_again(store: S3FileStore) -> None:
    blob = stored(store, b"text")
    store.delete(blob)
    store.delete(blob)
    with pytest.raises(BlobMissing):
        store.open(blob)


def test_no_name_leads_to_what_is_not_ours(store: S3FileStore) -> None:
    for use in (store.open, store.delete):
        with pytest.raises(BlobMissing):
            use("readme.txt")


def test_a_bucket_that_is_not_there_is_one_line(endpoint_url: str, store: S3FileStore) -> None:
    with pytest.raises(FileStoreUnavailable, match=r"s3_bucket\) cannot be used: NoSuchBucket"):
        S3FileStore("elsewhere", endpoint_url=endpoint_url).create(ACME)


def test_a_bucket_out_of_reach_is_one_line(store: S3FileStore) -> None:
    with pytest.raises(FileStoreUnavailable, match="cannot be used: EndpointConnectionError"):
        S3FileStore(BUCKET, endpoint_url="http://127.0.0.1:9").create(ACME)

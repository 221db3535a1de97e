"""Keeps blobs in a bucket that speaks S3: `<prefix><tenant>/<random>`.

A blob is uploaded in parts and is there when the upload is completed. Uploads that dead writers left are
aborted hours later, whenever all blobs are listed. Credentials come from where the library looks for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gateway.errors import FileStoreUnavailable
from gateway.files.blob_names import check_blob_name, is_blob_name, new_blob_name
from gateway.files.slices import read_slices
from gateway.files.store import LEFT_AFTER, BlobMissing, StoredBlob
from gateway.tenants.ids import TenantId

PART_BYTES: Final = 8 * 1024 * 1024  # S3 takes none below 5 MiB but the last
_MISSING: Final = ("404", "NoSuchKey", "InvalidRange")


class S3FileStore:
    """The bucket is there already."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint_url: str | None = None,
        prefix: str = "",
        left_after: timedelta = LEFT_AFTER,
    ) -> None:
        self._bucket = bucket
        self._left_after = left_after
        self._prefix = prefix
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            config=Config(
                connect_timeout=5, read_timeout=30, retries={"max_attempts": 3, "mode": "standard"}
            ),
        )

    def create(self, tenant: TenantId) -> "S3BlobWriter":
        """Begins a blob. Raises FileStoreUnavailable."""
        name = new_blob_name(tenant)
        with _told():
            return S3BlobWriter(self._client, self._bucket, self._prefix + name, name)

    def open(self, blob: str, *, start: int = 0) -> BinaryIO:
        """Reads a blob from byte `start` on. Raises BlobMissing, FileStoreUnavailable."""
        return cast(BinaryIO, self._body(blob, f"bytes={start}-" if start else None))

    def read_slices(self, blob: str, slices: list[tuple[int, int]]) -> list[bytes]:
        """Parts of a blob. Raises BlobMissing, FileStoreUnavailable."""
        return read_slices(slices, lambda start, num: self._read(blob, start, num))

    def delete(self, blob: str) -> None:
        """Removes a blob; one that is not there is removed already. Raises FileStoreUnavailable."""
        check_blob_name(blob)
        with _told():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + blob)

    def blobs(self) -> Iterator[StoredBlob]:
        """All that there are, tenant by tenant. Raises FileStoreUnavailable."""
        with _told():
            self._abort_what_was_left()
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for found in page.get("Contents", ()):
                    name = found["Key"].removeprefix(self._prefix)
                    if is_blob_name(name):
                        yield StoredBlob(name, found["LastModified"])

    def _read(self, blob: str, start: int, num_bytes: int) -> bytes:
        if num_bytes == 0:
            return b""
        with _told():
            part = bytes(self._body(blob, f"bytes={start}-{start + num_bytes - 1}").read())
        if len(part) < num_bytes:
            raise BlobMissing("a blob is shorter than was written down")
        return part

    def _body(self, blob: str, span: str | None) -> Any:
        check_blob_name(blob)
        wanted = {"Bucket": self._bucket, "Key": self._prefix + blob}
        with _told():
            return self._client.get_object(**wanted, **({} if span is None else {"Range": span}))["Body"]

    def _abort_what_was_left(self) -> None:
        pages = self._client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
            for upload in page.get("Uploads", ()):
                is_ours = is_blob_name(upload["Key"].removeprefix(self._prefix))
                if is_ours and datetime.now(UTC) - upload["Initiated"] > self._left_after:
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )


class S3BlobWriter:
    """A blob that is being uploaded, one part after the other."""

    def __init__(self, client: Any, bucket: str, key: str, name: str) -> None:
        self._client = client
        self._where = {"Bucket": bucket, "Key": key}
        self._name = name
        self._rest = bytearray()
        self._parts: list[dict[str, Any]] = []
        self._upload = client.create_multipart_upload(**self._where)["UploadId"]

    def write(self, chunk: bytes) -> None:
        """Appends. Raises FileStoreUnavailable."""
        self._rest += chunk
        while len(self._rest) >= PART_BYTES:
            self._send(bytes(self._rest[:PART_BYTES]))
            del self._rest[:PART_BYTES]

    def commit(self) -> str:
        """The blob is whole; its name. Raises FileStoreUnavailable."""
        if self._rest or not self._parts:
            self._send(bytes(self._rest))
        with _told():
            self._client.complete_multipart_upload(
                **self._where, UploadId=self._upload, MultipartUpload={"Parts": self._parts}
            )
        return self._name

    def abort(self) -> None:
        """Forgets what was written; what the bucket does not hear of now goes an hour later."""
        with suppress(BotoCoreError, ClientError):
            self._client.abort_multipart_upload(**self._where, UploadId=self._upload)

    def _send(self, part: bytes) -> None:
        number = len(self._parts) + 1
        with _told():
            sent = self._client.upload_part(
                **self._where, UploadId=self._upload, PartNumber=number, Body=part
            )
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})


@contextmanager
def _told() -> Iterator[None]:
    """What the bucket says, as one line."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise BlobMissing("a blob is not where it was written") from error
        raise _unavailable(code) from error
    except BotoCoreError as error:
        raise _unavailable(type(error).__name__) from error


def _unavailable(why: str) -> FileStoreUnavailable:
    return FileStoreUnavailable(
        f"The bucket that files are kept in ([files] s3_bucket) cannot be used: {why}."
    )

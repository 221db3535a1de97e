"""Chooses the file store that the settings name."""

from gateway.files.absent_store import AbsentFileStore
from gateway.files.local_store import LocalFileStore
from gateway.files.store import FileStore
from gateway.setting_sources import ConfigurationError
from gateway.settings import FilesSection


def file_store(settings: FilesSection) -> FileStore:
    """The store; nothing is written or asked yet. Raises ConfigurationError."""
    if settings.s3_bucket is not None:
        return _bucket(settings.s3_bucket, settings)
    if settings.directory is not None:
        return LocalFileStore(settings.directory, left_after=settings.left_after)
    return AbsentFileStore()


def _bucket(bucket: str, settings: FilesSection) -> FileStore:
    try:
        # Here, as its library is an extra: who keeps files in a folder need not have it.
        from gateway.files.s3_store import S3FileStore
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"files.s3_bucket (SLUICE_FILES__S3_BUCKET) needs {error.name}: pip install 'sluice-llm[s3]'"
        ) from error
    return S3FileStore(
        bucket,
        endpoint_url=settings.s3_endpoint_url,
        prefix=settings.s3_prefix,
        left_after=settings.left_after,
    )

"""What an Idempotency-Key is, for files and batches alike."""

from datetime import timedelta
from typing import Final

KEY_LIFE: Final = timedelta(hours=24)  # then it may be used for something else
LONGEST_KEY: Final = 255  # characters

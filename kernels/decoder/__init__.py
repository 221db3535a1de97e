"""All layers of a Llama-family decoder in one call, where there are native operators.

Its reference is the model itself, computed operator by operator (engine.models.llama).
"""

from kernels.decoder.native import OPERATORS, Decoder, DecoderLayer, DecoderShape, DecoderStep

__all__ = ["OPERATORS", "Decoder", "DecoderLayer", "DecoderShape", "DecoderStep"]

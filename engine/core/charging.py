"""What scheduled work costs a tenant, in tokens of service: prompt 1 and output 2, as in VTC's artifact."""

from engine.core.sequence import GenerationParams

PROMPT_TOKEN_COST = 1.0
CACHED_TOKEN_COST = 0.1  # a hit is cheap, but it holds memory
OUTPUT_TOKEN_COST = 2.0


def sampled_token_cost(params: GenerationParams) -> float:
    """The cost of one token of output: drawing from a filtered distribution sorts the vocabulary."""
    if params.temperature == 0:
        return OUTPUT_TOKEN_COST
    if params.top_p < 1 or params.top_k > 0:
        return OUTPUT_TOKEN_COST + 0.2
    return OUTPUT_TOKEN_COST + 0.1

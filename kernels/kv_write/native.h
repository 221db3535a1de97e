// Rotary embedding of queries and keys, and the write of keys and values into their pages, for one token.
#pragma once

#include "simd.h"

namespace sluice {

enum class CacheKind : int32_t { kFloat32 = 0, kBfloat16 = 1 };

// One layer's pages, as the native operators keep them: keys with their dimensions outside and the block's
// offsets inside, so that attention reads the same dimension of neighbouring keys at once.
struct KvCache {
  CacheKind kind;
  int32_t num_kv_heads;
  int32_t block_size;
  int32_t head_dim;
  void* keys;    // [num_blocks, num_kv_heads, head_dim, block_size]
  void* values;  // [num_blocks, num_kv_heads, block_size, head_dim]
};

// `qkv` holds the query heads, then the key heads, then the value heads. Rotated queries, times `query_scale`,
// go to `query` [num_heads * head_dim]; keys, rotated, and values go to `slot`. `cos` and `sin` are [head_dim],
// `sin` negative in its first half.
void kv_write_token(const float* qkv, int num_heads, const float* cos, const float* sin, int64_t slot,
                    float query_scale, const KvCache& cache, float* query);

}  // namespace sluice

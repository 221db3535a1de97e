#include "native.h"

#include "threads.h"

namespace sluice {
namespace {

// `to` [head_dim] = x * cos + (x with its halves exchanged) * sin, times `scale`.
SLUICE_INLINE void rotate(const float* head, const float* cos, const float* sin, int head_dim, float scale,
                          float* to) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[i + half];
    to[i] = (low * cos[i] + high * sin[i]) * scale;
    to[i + half] = (high * cos[i + half] + low * sin[i + half]) * scale;
  }
}

template <class Stored>
void write_head(const float* key, const float* value, int head, int64_t slot, const KvCache& cache) {
  const int64_t tile = (slot / cache.block_size * cache.num_kv_heads + head) * cache.block_size * cache.head_dim;
  const int64_t offset = slot % cache.block_size;
  Stored* keys = static_cast<Stored*>(cache.keys) + tile + offset;
  Stored* values = static_cast<Stored*>(cache.values) + tile + offset * cache.head_dim;
  for (int d = 0; d < cache.head_dim; ++d) {
    narrow(key[d], keys + int64_t(d) * cache.block_size);
    narrow(value[d], values + d);
  }
}

}  // namespace

void kv_write_token(const float* qkv, int num_heads, const float* cos, const float* sin, int64_t slot,
                    float query_scale, const KvCache& cache, float* query) {
  const int head_dim = cache.head_dim;
  for (int head = 0; head < num_heads; ++head)
    rotate(qkv + head * head_dim, cos, sin, head_dim, query_scale, query + head * head_dim);
  const float* keys = qkv + num_heads * head_dim;
  const float* values = keys + cache.num_kv_heads * head_dim;
  float rotated[512];
  for (int head = 0; head < cache.num_kv_heads; ++head) {
    rotate(keys + head * head_dim, cos, sin, head_dim, 1.0f, rotated);
    if (cache.kind == CacheKind::kFloat32)
      write_head<float>(rotated, values + head * head_dim, head, slot, cache);
    else
      write_head<Bfloat16>(rotated, values + head * head_dim, head, slot, cache);
  }
}

}  // namespace sluice

using namespace sluice;

extern "C" void sluice_kv_write(const float* qkv, int num_tokens, int num_heads, const float* cos,
                                const float* sin, const int64_t* slots, const KvCache* cache, float* query) {
  const int head_dim = cache->head_dim, width = (num_heads + 2 * cache->num_kv_heads) * head_dim;
  parallel_ranges(num_tokens, 4, [&](int first, int last) {
    for (int64_t i = first; i < last; ++i)
      kv_write_token(qkv + i * width, num_heads, cos + i * head_dim, sin + i * head_dim, slots[i], 1.0f, *cache,
                     query + i * num_heads * head_dim);
  });
}

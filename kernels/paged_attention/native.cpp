#include "native.h"

#include <algorithm>

#include "threads.h"
#include "tile.h"

namespace sluice {
namespace {

constexpr int kTileKeys = 32;      // keys that are looked at together
constexpr int kSpanKeys = 512;     // keys after which the running softmax starts anew and is merged
constexpr int kItemRows = 60;      // query rows of one item
constexpr int kMaxHeadDim = 256;
static_assert(kTileKeys % kTileWidth == 0);

int padded(int head_dim) { return (head_dim + kTileWidth - 1) / kTileWidth * kTileWidth; }

// A partial result's row: the weighted values, the largest score and the sum of weights.
int partial_stride(int head_dim) { return padded(head_dim) + 2; }

struct Shape {
  int group, head_dim, stride;

  Shape(const AttentionPlan& plan, const KvCache& cache)
      : group(plan.num_heads / cache.num_kv_heads), head_dim(cache.head_dim), stride(padded(cache.head_dim)) {}
};

// The running softmax of some rows over the keys seen so far (Milakov and Gimelshein, 2018).
struct Rows {
  alignas(64) float values[kItemRows * kMaxHeadDim];
  float largest[kItemRows], weight[kItemRows];

  void clear(int num_rows, int stride) {
    std::fill_n(values, num_rows * stride, 0.0f);
    std::fill_n(largest, num_rows, -kInfinity);
    std::fill_n(weight, num_rows, 0.0f);
  }
};

// What one thread needs for an item.
struct Scratch {
  alignas(64) float keys[kMaxHeadDim * kTileKeys];    // [head_dim][kTileKeys]
  alignas(64) float values[kTileKeys * kMaxHeadDim];  // [kTileKeys][stride], zero in the padding
  alignas(64) float query[kItemRows * kMaxHeadDim];   // [num_rows][head_dim]
  alignas(64) float scores[kTileRows * kTileKeys];
  Rows span, total;
};

// Adds `other`, values of `stride` floats with their largest score and weight, to a row.
SLUICE_INLINE void merge_row(float* values, float* largest, float* weight, const float* other,
                             float other_largest, float other_weight, int stride) {
  if (other_weight == 0) return;
  const float most = *largest > other_largest ? *largest : other_largest;
  const float own = *weight == 0 ? 0 : exponential(*largest - most), its = exponential(other_largest - most);
  for (int d = 0; d < stride; d += kLanes)
    store(values + d, load(values + d) * splat(own) + load(other + d) * splat(its));
  *weight = *weight * own + other_weight * its;
  *largest = most;
}

// A few neighbouring keys and their values, on their page or copied from it.
template <class Number>
struct Tile {
  const Number* keys;  // [head_dim][kTileKeys], rows `key_stride` apart; past `num_keys` they may hold anything
  int64_t key_stride;
  const Number* values;  // [num_keys][padded head_dim], rows `value_stride` apart
  int64_t value_stride;
  int position, num_keys;
  bool is_inside;  // whether all kTileKeys of a row may be read
};

// Copies a tile as floats.
template <class Stored>
Tile<float> copied(const Tile<Stored>& tile, const Shape& shape, Scratch& to) {
  for (int d = 0; d < shape.head_dim; ++d) {
    const Stored* from = tile.keys + d * tile.key_stride;
    float* row = to.keys + d * kTileKeys;
    if (tile.is_inside) {
      for (int i = 0; i < kTileKeys; i += kLanes) store(row + i, load(from + i));
    } else {
      for (int i = 0; i < tile.num_keys; ++i) row[i] = widen(from[i]);
    }
  }
  for (int i = 0; i < tile.num_keys; ++i) {
    const Stored* from = tile.values + i * tile.value_stride;
    float* row = to.values + i * shape.stride;
    int d = 0;
    for (; d + kLanes <= shape.head_dim; d += kLanes) store(row + d, load(from + d));
    for (; d < shape.stride; ++d) row[d] = d < shape.head_dim ? widen(from[d]) : 0.0f;
  }
  return {to.keys, kTileKeys, to.values, shape.stride, tile.position, tile.num_keys, true};
}

template <int kRows, class Number>
void score(const float* query, const Tile<Number>& tile, const Shape& shape, float* scores) {
  for (int first = 0; first < kTileKeys; first += kTileWidth) {
    Floats sums[kRows][2] = {};
    add_products<kRows>(query, shape.head_dim, tile.keys + first, tile.key_stride, shape.head_dim, sums);
    for (int r = 0; r < kRows; ++r) {
      store(scores + r * kTileKeys + first, sums[r][0]);
      store(scores + r * kTileKeys + first + kLanes, sums[r][1]);
    }
  }
}

// Turns a row's scores into weights and returns what its former values shrink by. Keys from `num_visible` on
// are not seen; at least one is.
SLUICE_INLINE float softmax_row(float* scores, int num_visible, float* largest, float* weight) {
  for (int i = num_visible; i < kTileKeys; ++i) scores[i] = -kInfinity;
  Floats most = load(scores);
  for (int i = kLanes; i < kTileKeys; i += kLanes) most = maximum(load(scores + i), most);
  const float before = *largest, tile_largest = largest_lane(most);
  *largest = tile_largest > before ? tile_largest : before;
  Floats total{};
  for (int i = 0; i < kTileKeys; i += kLanes) {
    const Floats part = exponential(load(scores + i) - splat(*largest));
    store(scores + i, part);
    total += part;
  }
  const float shrink = *weight == 0 ? 0.0f : before == *largest ? 1.0f : exponential(before - *largest);
  *weight = *weight * shrink + sum_of_lanes(total);
  return shrink;
}

template <int kRows, class Number>
void add_values(float* to, const float* shrink, const float* weights, const Tile<Number>& tile, const Shape& shape) {
  for (int first = 0; first < shape.stride; first += kTileWidth) {
    Floats sums[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = load(to + r * shape.stride + first) * splat(shrink[r]);
      sums[r][1] = load(to + r * shape.stride + first + kLanes) * splat(shrink[r]);
    }
    add_products<kRows>(weights, kTileKeys, tile.values + first, tile.value_stride, tile.num_keys, sums);
    for (int r = 0; r < kRows; ++r) {
      store(to + r * shape.stride + first, sums[r][0]);
      store(to + r * shape.stride + first + kLanes, sums[r][1]);
    }
  }
}

// Lets all of an item's rows look at a tile.
template <class Number>
void attend_tile(const AttentionItem& item, int first_position, const Tile<Number>& tile, const Shape& shape,
                 Scratch& scratch) {
  for (int row = 0; row < item.num_rows; row += kTileRows) {
    const int num_rows = std::min(kTileRows, item.num_rows - row);
    const int last_position = first_position + (item.first_row + row + num_rows - 1) / shape.group;
    if (last_position < tile.position) continue;
    with_tile_rows(num_rows, [&](auto rows) {
      score<rows>(scratch.query + row * shape.head_dim, tile, shape, scratch.scores);
      float shrink[kTileRows];
      for (int r = 0; r < rows; ++r) {
        float* scores = scratch.scores + r * kTileKeys;
        const int own_position = first_position + (item.first_row + row + r) / shape.group;
        const int num_visible = std::min(tile.num_keys, own_position - tile.position + 1);
        if (num_visible > 0) {
          shrink[r] = softmax_row(scores, num_visible, scratch.span.largest + row + r, scratch.span.weight + row + r);
        } else {
          std::fill_n(scores, kTileKeys, 0.0f);
          shrink[r] = 1.0f;
        }
      }
      add_values<rows>(scratch.span.values + row * shape.stride, shrink, scratch.scores, tile, shape);
    });
  }
}

// The tile at `position`, which ends where its block does, and at fixed places inside it.
template <class Stored>
Tile<Stored> tile_at(const AttentionBatch& batch, const KvCache& cache, const AttentionItem& item, int position) {
  const int offset = position % cache.block_size;
  const int64_t block = batch.block_tables[int64_t(item.seq) * batch.table_stride + position / cache.block_size];
  const int64_t start = (block * cache.num_kv_heads + item.kv_head) * cache.block_size * cache.head_dim;
  const int num_keys = std::min({kTileKeys - offset % kTileKeys, cache.block_size - offset,
                                 kSpanKeys - position % kSpanKeys, batch.seq_lens[item.seq] - position});
  return {static_cast<const Stored*>(cache.keys) + start + offset,
          cache.block_size,
          static_cast<const Stored*>(cache.values) + start + int64_t(offset) * cache.head_dim,
          cache.head_dim,
          position,
          num_keys,
          offset + kTileKeys <= cache.block_size};
}

template <class Stored>
void attend_span(const AttentionPlan& plan, const KvCache& cache, const AttentionItem& item, int span,
                 const Shape& shape, Scratch& scratch) {
  const AttentionBatch& batch = plan.batch;
  const int num_queries = batch.query_starts[item.seq + 1] - batch.query_starts[item.seq];
  const int first_position = batch.seq_lens[item.seq] - num_queries;
  const int last_row = item.first_row + item.num_rows - 1;
  const int end = std::min((span + 1) * kSpanKeys, first_position + last_row / shape.group + 1);
  scratch.span.clear(item.num_rows, shape.stride);
  for (int position = span * kSpanKeys; position < end;) {
    const auto tile = tile_at<Stored>(batch, cache, item, position);
    // Rows beyond one tile's pay for the copy, as it spares each of them the conversion.
    const bool is_direct = tile.is_inside && shape.stride == shape.head_dim &&
                           (item.num_rows <= kTileRows || std::is_same<Stored, float>::value);
    if (is_direct)
      attend_tile(item, first_position, tile, shape, scratch);
    else
      attend_tile(item, first_position, copied(tile, shape, scratch), shape, scratch);
    position += tile.num_keys;
  }
}

const float* query_row(const AttentionPlan& plan, const AttentionItem& item, int row, const Shape& shape,
                       const float* query) {
  const int packed = item.first_row + row;
  const int64_t token = plan.batch.query_starts[item.seq] + packed / shape.group;
  const int head = item.kv_head * shape.group + packed % shape.group;
  return query + (token * plan.num_heads + head) * shape.head_dim;
}

void finish_row(const float* values, float weight, int head_dim, float* output) {
  for (int d = 0; d < head_dim; ++d) output[d] = values[d] / weight;
}

void compute_item(AttentionPlan& plan, const KvCache& cache, const AttentionItem& item, const float* query,
                  float* output) {
  static thread_local Scratch scratch;
  const Shape shape(plan, cache);
  for (int row = 0; row < item.num_rows; ++row)
    std::copy_n(query_row(plan, item, row, shape, query), shape.head_dim, scratch.query + row * shape.head_dim);
  scratch.total.clear(item.num_rows, shape.stride);
  for (int span = item.first_span; span < item.first_span + item.num_spans; ++span) {
    if (cache.kind == CacheKind::kFloat32)
      attend_span<float>(plan, cache, item, span, shape, scratch);
    else
      attend_span<Bfloat16>(plan, cache, item, span, shape, scratch);
    for (int row = 0; row < item.num_rows; ++row)
      merge_row(scratch.total.values + row * shape.stride, scratch.total.largest + row, scratch.total.weight + row,
                scratch.span.values + row * shape.stride, scratch.span.largest[row], scratch.span.weight[row],
                shape.stride);
  }
  for (int row = 0; row < item.num_rows; ++row) {
    const float* values = scratch.total.values + row * shape.stride;
    if (item.partial < 0) {
      finish_row(values, scratch.total.weight[row], shape.head_dim,
                 output + (query_row(plan, item, row, shape, query) - query));
    } else {
      float* partial = plan.partials.data() + int64_t(item.partial + row) * partial_stride(shape.head_dim);
      std::copy_n(values, shape.stride, partial);
      partial[shape.stride] = scratch.total.largest[row];
      partial[shape.stride + 1] = scratch.total.weight[row];
    }
  }
}

void merge_item(const AttentionPlan& plan, const KvCache& cache, const AttentionItem& item, const float* query,
                float* output) {
  const Shape shape(plan, cache);
  for (int row = 0; row < item.num_rows; ++row) {
    alignas(64) float values[kMaxHeadDim] = {};
    float largest = -kInfinity, weight = 0;
    for (int span = 0; span < item.num_spans; ++span) {
      const int64_t at = item.partial + int64_t(span) * item.num_rows + row;
      const float* partial = plan.partials.data() + at * partial_stride(shape.head_dim);
      merge_row(values, &largest, &weight, partial, partial[shape.stride], partial[shape.stride + 1], shape.stride);
    }
    finish_row(values, weight, shape.head_dim, output + (query_row(plan, item, row, shape, query) - query));
  }
}

int num_spans(int num_keys) { return (num_keys + kSpanKeys - 1) / kSpanKeys; }

}  // namespace

void plan_attention(const AttentionBatch& batch, int num_heads, const KvCache& cache, AttentionPlan* plan) {
  const int group = num_heads / cache.num_kv_heads;
  int num_partials = 0;
  plan->batch = batch;
  plan->num_heads = num_heads;
  plan->items.clear();
  plan->merges.clear();
  for (int seq = 0; seq < batch.num_seqs; ++seq) {
    const int num_queries = batch.query_starts[seq + 1] - batch.query_starts[seq];
    const int first_position = batch.seq_lens[seq] - num_queries;
    for (int kv_head = 0; kv_head < cache.num_kv_heads; ++kv_head)
      for (int first = 0; first < num_queries * group; first += kItemRows) {
        const int num_rows = std::min(kItemRows, num_queries * group - first);
        const int num_keys = first_position + (first + num_rows - 1) / group + 1;
        AttentionItem item{seq, kv_head, first, num_rows, 0, num_spans(num_keys), -1, int64_t(num_keys) * (num_rows + 4)};
        // Only single tokens are cut: the chunks of a prompt are many items already.
        if (num_queries > 1 || item.num_spans == 1) {
          plan->items.push_back(item);
          continue;
        }
        item.partial = num_partials;
        plan->merges.push_back(item);
        for (int span = 0; span < item.num_spans; ++span, num_partials += num_rows)
          plan->items.push_back({seq, kv_head, first, num_rows, span, 1, num_partials, int64_t(kSpanKeys) * (num_rows + 4)});
      }
  }
  std::stable_sort(plan->items.begin(), plan->items.end(),
                   [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
  plan->partials.resize(int64_t(num_partials) * partial_stride(cache.head_dim));
}

void paged_attention(AttentionPlan& plan, const KvCache& cache, const float* query, float* output) {
  parallel_for(int(plan.items.size()), [&](int i) { compute_item(plan, cache, plan.items[i], query, output); });
  parallel_for(int(plan.merges.size()), [&](int i) { merge_item(plan, cache, plan.merges[i], query, output); });
}

}  // namespace sluice

using namespace sluice;

extern "C" void sluice_paged_attention(const AttentionBatch* batch, int num_heads, const KvCache* cache,
                                       const float* query, float* output) {
  AttentionPlan plan;
  plan_attention(*batch, num_heads, *cache, &plan);
  paged_attention(plan, *cache, query, output);
}

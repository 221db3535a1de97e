// A step through all layers of a Llama-family decoder in one call: the operators of the other folders, in the
// order of the model.

#include <algorithm>
#include <chrono>
#include <vector>

#include "../kv_write/native.h"
#include "../linear/native.h"
#include "../paged_attention/native.h"
#include "../rms_norm/native.h"
#include "../silu_and_mul/native.h"
#include "threads.h"

namespace sluice {

// All of these are mirrored in Python, field by field.
struct Layer {
  const float* input_norm;           // [hidden_size]
  const float* post_attention_norm;  // [hidden_size]
  Linear qkv, attention_output, gate_and_up, down;
  KvCache cache;
};

struct Decoder {
  int32_t num_layers, hidden_size, intermediate_size, num_heads, head_dim, vocab_size;
  float epsilon, query_scale;
  CacheKind embedding_kind;
  const void* embedding;  // [vocab_size, hidden_size]
  const float* final_norm;
  const float* cos;  // [most positions, head_dim]
  const float* sin;
  Linear output;
  const Layer* layers;
};

struct Step {
  int32_t num_tokens, num_sampled;
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* slots;
  const int64_t* sampled_tokens;  // [num_sampled], rising: which tokens of the step are followed by a new one
  AttentionBatch attention;
};

// Seconds by operator, for those who want to know where a step's time goes.
enum Operator {
  kNorm,
  kQkv,
  kKvWrite,
  kAttention,
  kAttentionOutput,
  kGateAndUp,
  kActivation,
  kDown,
  kOutput
};

// Buffers that grow to what the largest step needed, and stay.
// The attention of the tokens that are sampled from, each as a sequence of one query.
class SampledAttention {
 public:
  AttentionPlan plan;

  void fit(const Step& step, int num_heads, const KvCache& cache) {
    const AttentionBatch& all = step.attention;
    starts_.resize(step.num_sampled + 1);
    lens_.resize(step.num_sampled);
    tables_.resize(int64_t(step.num_sampled) * all.table_stride);
    for (int i = 0, seq = 0; i < step.num_sampled; ++i) {
      const int64_t token = step.sampled_tokens[i];
      while (all.query_starts[seq + 1] <= token) ++seq;
      starts_[i + 1] = i + 1;
      lens_[i] = int32_t(step.positions[token] + 1);
      std::copy_n(all.block_tables + int64_t(seq) * all.table_stride, all.table_stride,
                  tables_.begin() + int64_t(i) * all.table_stride);
    }
    plan_attention({step.num_sampled, all.table_stride, starts_.data(), lens_.data(), tables_.data()}, num_heads,
                   cache, &plan);
  }

 private:
  std::vector<int32_t> starts_, lens_, tables_;
};

class Workspace {
 public:
  float *residual, *normed, *qkv, *query, *attended, *gate_and_up, *activated, *logits;
  LinearInput input;
  AttentionPlan attention;
  SampledAttention sampled;

  void fit(const Decoder& d, int num_tokens, int num_sampled) {
    const int kv_width = 2 * d.layers[0].cache.num_kv_heads * d.head_dim, width = d.num_heads * d.head_dim;
    const int widest = std::max({d.hidden_size, width, d.intermediate_size});
    const int rows = std::max(num_tokens, num_sampled);
    residual = floats(0, int64_t(rows) * d.hidden_size);
    normed = floats(1, int64_t(rows) * d.hidden_size);
    qkv = floats(2, int64_t(rows) * (width + kv_width));
    query = floats(3, int64_t(rows) * width);
    attended = floats(4, int64_t(rows) * width);
    gate_and_up = floats(5, int64_t(rows) * 2 * d.intermediate_size);
    activated = floats(6, int64_t(rows) * d.intermediate_size);
    logits = floats(7, std::max<int64_t>(1, int64_t(num_sampled) * d.vocab_size));
    values_.resize(std::max<size_t>(values_.size(), int64_t(rows) * padded_in_size(widest)));
    input.quantised.scales = floats(8, int64_t(rows) * num_groups(widest));
    input.quantised.sums = floats(9, int64_t(rows) * num_groups(widest));
    input.quantised.values = values_.data();
    split_row_.resize(std::max<size_t>(split_row_.size(), 2 * padded_in_size(widest)));
    input.quantised.split_row = split_row_.data();
  }

 private:
  float* floats(int which, int64_t count) {
    auto& buffer = buffers_[which];
    if (int64_t(buffer.size()) < count) buffer.resize(count);
    return buffer.data();
  }

  std::vector<float> buffers_[10];
  std::vector<int16_t> values_;
  std::vector<int8_t> split_row_;
};

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {}

  void lap(Operator which) {
    if (!seconds_) return;
    const auto now = std::chrono::steady_clock::now();
    seconds_[which] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Makes rows ready for `layer`: quantised, if that is what it reads.
SLUICE_INLINE void prepare(const Linear& layer, const float* rows, int row, Workspace& work) {
  if (reads_quantised(layer.kind))
    quantise_row(rows + int64_t(row) * layer.in_size, layer.in_size, work.input.quantised, row);
}

constexpr int kRowGrain = 4;  // rows below which sharing costs more than it saves

template <class RowWork>
void each_row(int num_rows, const RowWork& work) {
  parallel_ranges(num_rows, kRowGrain, [&](int first, int last) {
    for (int row = first; row < last; ++row) work(row);
  });
}

void embed(const Decoder& d, const Step& step, Workspace& work) {
  each_row(step.num_tokens, [&](int row) {
    float* to = work.residual + int64_t(row) * d.hidden_size;
    const int64_t from = int64_t(step.token_ids[row]) * d.hidden_size;
    for (int i = 0; i < d.hidden_size; ++i)
      to[i] = d.embedding_kind == CacheKind::kFloat32 ? static_cast<const float*>(d.embedding)[from + i]
                                                      : widen(static_cast<const Bfloat16*>(d.embedding)[from + i]);
  });
}

void norm_for(const Linear& layer, const float* weight, const Decoder& d, int num_rows, Workspace& work) {
  each_row(num_rows, [&](int row) {
    const int64_t at = int64_t(row) * d.hidden_size;
    rms_norm_row(work.residual + at, weight, d.hidden_size, d.epsilon, work.normed + at);
    prepare(layer, work.normed, row, work);
  });
  work.input.rows = work.normed;
}

// The first half of a layer: each token's keys and values go to the cache, and its queries to the workspace.
void compute_keys(const Decoder& d, const Layer& layer, const Step& step, Workspace& work, Stopwatch& watch) {
  const int num_tokens = step.num_tokens, width = d.num_heads * d.head_dim;
  norm_for(layer.qkv, layer.input_norm, d, num_tokens, work);
  watch.lap(kNorm);
  linear(layer.qkv, work.input, num_tokens, work.qkv, Output::kStore);
  watch.lap(kQkv);
  each_row(num_tokens, [&](int row) {
    const int64_t angle = int64_t(step.positions[row]) * d.head_dim;
    kv_write_token(work.qkv + int64_t(row) * layer.qkv.out_size, d.num_heads, d.cos + angle, d.sin + angle,
                   step.slots[row], d.query_scale, layer.cache, work.query + int64_t(row) * width);
  });
  watch.lap(kKvWrite);
}

// The second half: what the residual stream gains from attention and from the feed-forward network.
void compute_rest(const Decoder& d, const Layer& layer, AttentionPlan& attention, int num_tokens, Workspace& work,
                  Stopwatch& watch) {
  paged_attention(attention, layer.cache, work.query, work.attended);
  watch.lap(kAttention);
  each_row(num_tokens, [&](int row) { prepare(layer.attention_output, work.attended, row, work); });
  work.input.rows = work.attended;
  linear(layer.attention_output, work.input, num_tokens, work.residual, Output::kAdd);
  watch.lap(kAttentionOutput);
  norm_for(layer.gate_and_up, layer.post_attention_norm, d, num_tokens, work);
  watch.lap(kNorm);
  linear(layer.gate_and_up, work.input, num_tokens, work.gate_and_up, Output::kStore);
  watch.lap(kGateAndUp);
  each_row(num_tokens, [&](int row) {
    silu_and_mul_row(work.gate_and_up + int64_t(row) * 2 * d.intermediate_size, d.intermediate_size,
                     work.activated + int64_t(row) * d.intermediate_size);
    prepare(layer.down, work.activated, row, work);
  });
  work.input.rows = work.activated;
  watch.lap(kActivation);
  linear(layer.down, work.input, num_tokens, work.residual, Output::kAdd);
  watch.lap(kDown);
}

// Moves the rows of tokens that are sampled from to the front: of all others the last layer's keys and values were
// all that is ever read.
void keep_sampled(const Decoder& d, const Step& step, Workspace& work) {
  const int width = d.num_heads * d.head_dim;
  for (int i = 0; i < step.num_sampled; ++i) {
    const int64_t from = step.sampled_tokens[i];
    if (from == i) continue;
    std::copy_n(work.residual + from * d.hidden_size, d.hidden_size, work.residual + int64_t(i) * d.hidden_size);
    std::copy_n(work.query + from * width, width, work.query + int64_t(i) * width);
  }
  work.sampled.fit(step, d.num_heads, d.layers[0].cache);
}

void compute_logits(const Decoder& d, const Step& step, Workspace& work) {
  for (int i = 0; i < step.num_sampled; ++i) {
    const int64_t at = int64_t(i) * d.hidden_size;
    rms_norm_row(work.residual + at, d.final_norm, d.hidden_size, d.epsilon, work.normed + at);
    prepare(d.output, work.normed, i, work);
  }
  work.input.rows = work.normed;
  linear(d.output, work.input, step.num_sampled, work.logits, Output::kStore);
}

}  // namespace
}  // namespace sluice

using namespace sluice;

extern "C" {

Workspace* sluice_workspace_new() { return new Workspace; }

void sluice_workspace_delete(Workspace* work) { delete work; }

// Computes a step: keys and values go to the layers' caches, logits of the sampled rows to the workspace.
// Adds the seconds of each operator to `seconds`, unless it is null. Returns the logits [num_sampled, vocab_size],
// or null, having done nothing, for a token that the model does not know.
float* sluice_decoder_forward(const Decoder* decoder, const Step* step, Workspace* work, double* seconds) {
  for (int i = 0; i < step->num_tokens; ++i)
    if (step->token_ids[i] < 0 || step->token_ids[i] >= decoder->vocab_size) return nullptr;
  work->fit(*decoder, step->num_tokens, step->num_sampled);
  Stopwatch watch(seconds);
  plan_attention(step->attention, decoder->num_heads, decoder->layers[0].cache, &work->attention);
  embed(*decoder, *step, *work);
  const int last = decoder->num_layers - 1;
  for (int i = 0; i < last; ++i) {
    compute_keys(*decoder, decoder->layers[i], *step, *work, watch);
    compute_rest(*decoder, decoder->layers[i], work->attention, step->num_tokens, *work, watch);
  }
  compute_keys(*decoder, decoder->layers[last], *step, *work, watch);
  if (step->num_sampled == 0) return work->logits;
  keep_sampled(*decoder, *step, *work);
  compute_rest(*decoder, decoder->layers[last], work->sampled.plan, step->num_sampled, *work, watch);
  compute_logits(*decoder, *step, *work);
  watch.lap(kOutput);
  return work->logits;
}
}

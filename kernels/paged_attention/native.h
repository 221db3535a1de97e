// Causal attention over paged keys and values: which pieces of work a step has, and each layer's computation.
#pragma once

#include <vector>

#include "../kv_write/native.h"

namespace sluice {

// As RaggedBatch in batch.py.
struct AttentionBatch {
  int32_t num_seqs;
  int32_t table_stride;
  const int32_t* query_starts;  // [num_seqs + 1]
  const int32_t* seq_lens;      // [num_seqs]
  const int32_t* block_tables;  // [num_seqs, table_stride]
};

// Some query rows of one sequence and key head against some of its keys. The query heads that share a key head
// are rows beside one another, so that its keys are read once for all: row r is head r % group of token
// r / group.
struct AttentionItem {
  int32_t seq;
  int32_t kv_head;
  int32_t first_row;
  int32_t num_rows;
  int32_t first_span;
  int32_t num_spans;
  int32_t partial;  // where its rows begin among the partial results, or -1: it covers all of its rows' keys
  int64_t cost;
};

// All of one step's attention, the same in every layer. Contexts are cut at fixed positions, whatever else
// there is to do, and the pieces are put together in order: results depend neither on threads nor on company.
struct AttentionPlan {
  AttentionBatch batch;
  int32_t num_heads;
  std::vector<AttentionItem> items;   // the costliest first
  std::vector<AttentionItem> merges;  // rows whose pieces are put together afterwards
  std::vector<float> partials;
};

void plan_attention(const AttentionBatch& batch, int num_heads, const KvCache& cache, AttentionPlan* plan);

// `query` [num_tokens, num_heads, head_dim], already scaled; `output` as `query`.
void paged_attention(AttentionPlan& plan, const KvCache& cache, const float* query, float* output);

}  // namespace sluice

// The next token of each row of logits.
#pragma once

#include <cstdint>

namespace sluice {

// How each row's token is chosen; as SamplingRow in reference.py, one array for each of its fields.
struct SamplingRows {
  int32_t num_rows;
  int32_t num_banned;
  const float* temperatures;
  const float* top_ps;
  const int32_t* top_ks;
  const uint64_t* seeds;
  const int64_t* positions;
  const int32_t* banned_rows;  // [num_banned]: the row that may not become ...
  const int32_t* banned_ids;   // ... this token
};

// `logits` [num_rows, vocab_size] are overwritten. `is_finite` says which rows were all numbers; another row's
// token has no meaning.
void sample(float* logits, int vocab_size, const SamplingRows& rows, int64_t* token_ids, uint8_t* is_finite);

}  // namespace sluice

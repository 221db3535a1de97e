#include "native.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "simd.h"
#include "threads.h"

namespace sluice {
namespace {

// The finaliser of SplitMix64, as in reference.py.
uint64_t mix(uint64_t state) {
  state += 0x9E3779B97F4A7C15u;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return state ^ (state >> 31);
}

double uniform(uint64_t seed, int64_t position) {
  return double(mix(mix(seed) ^ uint64_t(position)) >> 16) * 0x1p-48;
}

bool all_finite(const float* logits, int size) {
  Floats faults{};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) faults += load(logits + i) * 0.0f;
  float fault = sum_of_lanes(faults);
  for (; i < size; ++i) fault += logits[i] * 0.0f;
  return fault == 0;
}

float largest_of(const float* values, int size) {
  Floats most = splat(-kInfinity);
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) most = maximum(load(values + i), most);
  float largest = largest_lane(most);
  for (; i < size; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

struct Draw {
  const float* logits;
  int size;
  std::vector<float> weights;  // e to the (logit less the largest) / temperature

  Draw(const float* logits, int size, float temperature, float largest)
      : logits(logits), size(size), weights(size) {
    const float inverse = 1.0f / temperature;
    int i = 0;
    for (; i + kLanes <= size; i += kLanes)
      store(&weights[i], exponential((load(logits + i) - splat(largest)) * splat(inverse)));
    for (; i < size; ++i) weights[i] = exponential((logits[i] - largest) * inverse);
  }

  double total() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }

  // Ids of the tokens whose logit is at least `bound`, likeliest first, equal ones by rising id.
  std::vector<int> likeliest(float bound) const {
    std::vector<int> ids;
    for (int i = 0; i < size; ++i)
      if (logits[i] >= bound) ids.push_back(i);
    std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    return ids;
  }

  // A logit that at least `count` tokens reach: that many blocks have a token that does.
  float reached_by(int count) const {
    const int num_blocks = std::max(count, 512), block = size / num_blocks;
    if (block < 2) return -kInfinity;
    std::vector<float> most(num_blocks);
    for (int b = 0; b < num_blocks; ++b) most[b] = largest_of(logits + int64_t(b) * block, block);
    std::nth_element(most.begin(), most.begin() + count - 1, most.end(), std::greater<float>());
    return most[count - 1];
  }

  // Zeroes all but the likeliest `top_k`, and of those all but the fewest that hold `top_p` of their weight.
  void keep_likeliest(int top_k, float top_p, float largest, float temperature) {
    std::vector<int> ids;
    double whole;
    if (top_k > 0 && top_k < size) {
      ids = likeliest(reached_by(top_k));
      ids.resize(top_k);
      whole = 0;
      for (int id : ids) whole += weights[id];
    } else {
      whole = total();
      // Tokens below this weight hold less than 1 - top_p together, so none of them is needed.
      const double least = (1.0 - top_p) * whole / size;
      ids = likeliest(least > 0 ? largest + temperature * float(std::log(least)) - 1e-3f * temperature : -kInfinity);
    }
    std::vector<float> kept(size, 0.0f);
    double before = 0;
    for (int id : ids) {
      if (before > 0 && before >= top_p * whole) break;
      kept[id] = weights[id];
      before += weights[id];
    }
    weights.swap(kept);
  }

  // Inverts the cumulative distribution, in the order of token ids.
  int choose(double at) const {
    const double target = total() * at;
    double sum = 0;
    for (int i = 0; i < size; ++i) {
      sum += weights[i];
      if (sum > target) return i;
    }
    return size - 1;
  }
};

int64_t choose_token(const float* logits, int size, int row, const SamplingRows& rows) {
  const float largest = largest_of(logits, size), temperature = rows.temperatures[row];
  const int top_k = rows.top_ks[row];
  if (temperature <= 0 || top_k == 1) {
    const int64_t id = std::find(logits, logits + size, largest) - logits;
    return id < size ? id : 0;
  }
  Draw draw(logits, size, temperature, largest);
  if ((top_k > 0 && top_k < size) || rows.top_ps[row] < 1)
    draw.keep_likeliest(top_k, rows.top_ps[row], largest, temperature);
  return draw.choose(uniform(rows.seeds[row], rows.positions[row]));
}

}  // namespace

void sample(float* logits, int vocab_size, const SamplingRows& rows, int64_t* token_ids, uint8_t* is_finite) {
  parallel_for(rows.num_rows, [&](int row) {
    float* own = logits + int64_t(row) * vocab_size;
    is_finite[row] = all_finite(own, vocab_size);
    if (!is_finite[row]) {
      token_ids[row] = 0;
      return;
    }
    for (int i = 0; i < rows.num_banned; ++i)
      if (rows.banned_rows[i] == row) own[rows.banned_ids[i]] = -kInfinity;
    token_ids[row] = choose_token(own, vocab_size, row, rows);
  });
}

}  // namespace sluice

extern "C" void sluice_sample(float* logits, int vocab_size, const sluice::SamplingRows* rows, int64_t* token_ids,
                              uint8_t* is_finite) {
  sluice::sample(logits, vocab_size, *rows, token_ids, is_finite);
}

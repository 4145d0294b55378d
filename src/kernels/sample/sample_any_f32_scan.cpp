// sample by a few passes over a row of logits. The tokens are always those of the reference:
//
//   - Every filter keeps a prefix of the ids by (falling logit, rising id), so the kept set is one
//     cut: a last logit and a last id. Only the ids near the cut are sorted.
//   - A quick pass may only drop ids that cannot matter; ids that it keeps are computed as in the
//     reference, in double. The draw computes the noise of all hopeful ids 4 to 16 at a time, and
//     exactly for the few that could win (sample_scan_body.h gives the bound).
//   - top-p compares a mass with the total of all weights. The quick pass gives the total to 1e-10:
//     if the comparison is closer than that, the row is computed again in the reference's order
//     of summation.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <optional>

#include "core/threads.h"
#include "kernels/sample/sample_math.h"
#include "kernels/sample/sample_rows.h"
#include "kernels/sample/sample_scan.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

constexpr int32_t kMaxSlots = 16;  // the most rows worked on at a time
constexpr int32_t kFirstPrefix = 256;

// One row's scratch.
struct Slot {
  float* values;          // [vocab, padded]
  float* block_greatest;  // [blocks]
  float* block_order;     // [blocks]
  int32_t* ids;           // [vocab]

  static int32_t padded(int32_t vocab) { return round_up<int32_t>(vocab, kSampleBlock); }
  static Slot take(Scratch& scratch, int32_t vocab) {
    Slot slot;
    slot.values = scratch.take<float>(padded(vocab));
    slot.block_greatest = scratch.take<float>(padded(vocab) / kSampleBlock);
    slot.block_order = scratch.take<float>(padded(vocab) / kSampleBlock);
    slot.ids = scratch.take<int32_t>(vocab);
    return slot;
  }
};

// The kept ids: those with a greater value, and of those with this value the ones up to last_id.
struct Cut {
  float value = -FLT_MAX;
  int32_t last_id = INT32_MAX;
  bool keeps(float other, int32_t id) const {
    return other > value || (other == value && id <= last_id);
  }
};

class RowSampler {
 public:
  RowSampler(const SampleScanCode& code, const SampleRequest& request, const float* raw,
             int32_t vocab, const Slot& slot)
      : code_(code), request_(request), raw_(raw), vocab_(vocab), slot_(slot) {}

  SampleAnswer answer() {
    SampleAnswer answer;
    answer.token = token();
    if (request_.num_logprobs >= 0) fill_logprobs(answer);
    return answer;
  }

 private:
  int32_t token() {
    if (is_greedy(request_) && !changes_logits()) {
      best_ = code_.greatest(raw_, vocab_);
      if (best_ > -INFINITY && best_ <= FLT_MAX) return code_.first_equal(raw_, vocab_, best_);
    }
    adjust();
    best_ = code_.greatest(slot_.values, vocab_);
    if (best_ == -INFINITY) return lowest_allowed(request_, vocab_);
    if (is_greedy(request_)) return code_.first_equal(slot_.values, vocab_, best_);
    return draw(filter());
  }

  bool changes_logits() const {
    return request_.allowed_mask != nullptr || request_.num_bias > 0 || has_penalties();
  }
  bool has_penalties() const {
    return request_.num_history > 0 &&
           (request_.repetition_penalty != 1 || request_.frequency_penalty != 0 ||
            request_.presence_penalty != 0);
  }
  bool in_vocab(int32_t id) const { return id >= 0 && id < vocab_; }

  // Values of all ids after mask, bias and penalties.
  void adjust() {
    code_.clean(raw_, request_.allowed_mask, vocab_, slot_.values);
    // ids[id] is the place of id in the history, if the history has id at that place: such a set
    // needs no clearing.
    int32_t* place = slot_.ids;
    const int32_t num_history = has_penalties() ? request_.num_history : 0;
    for (int32_t i = 0; i < num_history; ++i) {
      const int32_t id = request_.history_ids[i];
      if (!in_vocab(id)) continue;
      place[id] = i;
      set_value(id, 0, request_.history_counts[i]);
    }
    for (int32_t i = 0; i < request_.num_bias; ++i) {
      const int32_t id = request_.bias_ids[i];
      if (!in_vocab(id)) continue;
      int32_t count = -1;
      if (num_history > 0) {
        const int32_t at = place[id];
        if (at >= 0 && at < num_history && request_.history_ids[at] == id)
          count = request_.history_counts[at];
      }
      set_value(id, request_.bias_values[i], count);
    }
  }
  void set_value(int32_t id, float bias, int32_t count) {
    if (allowed(request_, id)) slot_.values[id] = adjusted_logit(request_, raw_[id], bias, count);
  }

  // Puts the first `wanted` ids by (falling value, rising id), and perhaps some more, unsorted,
  // into slot ids; returns the number of ids. Only ids with a value above -inf.
  int32_t collect(const float* values, int32_t wanted) {
    const int32_t num_blocks = Slot::padded(vocab_) / kSampleBlock;
    code_.block_greatest(values, vocab_, slot_.block_greatest);
    // At least `wanted` blocks hold a value not below the wanted-th greatest of the blocks'
    // greatest.
    float least = -FLT_MAX;
    if (wanted < num_blocks) {
      std::copy_n(slot_.block_greatest, num_blocks, slot_.block_order);
      std::nth_element(slot_.block_order, slot_.block_order + wanted - 1,
                       slot_.block_order + num_blocks, [](float a, float b) { return a > b; });
      least = std::max(least, slot_.block_order[wanted - 1]);
    }
    int32_t count = 0;
    for (int32_t block = 0; block < num_blocks; ++block) {
      if (!(slot_.block_greatest[block] >= least)) continue;
      const int32_t end = std::min(vocab_, (block + 1) * kSampleBlock);
      for (int32_t id = block * kSampleBlock; id < end; ++id) {
        if (values[id] >= least) slot_.ids[count++] = id;
      }
    }
    return count;
  }
  // Collects, and sorts the first `wanted`; returns the number of sorted ids.
  int32_t collect_sorted(const float* values, int32_t wanted) {
    const int32_t count = collect(values, wanted);
    const int32_t num_sorted = std::min(count, wanted);
    sort_ids(values, num_sorted, count);
    return num_sorted;
  }

  // Sorts so that the first `num_sorted` of `count` slot ids are in their final places.
  void sort_ids(const float* values, int32_t num_sorted, int32_t count) {
    std::partial_sort(slot_.ids, slot_.ids + num_sorted, slot_.ids + count,
                      [values](int32_t a, int32_t b) {
                        return values[a] != values[b] ? values[a] > values[b] : a < b;
                      });
  }

  Cut cut_after(int32_t place) const { return {slot_.values[slot_.ids[place]], slot_.ids[place]}; }
  // The reference's weight: exp of the distance to the best.
  double weight(float value) const {
    return std::exp((static_cast<double>(value) - best_) / request_.temperature);
  }

  Cut filter() {
    const int32_t k = request_.top_k > 0 && request_.top_k < vocab_ ? request_.top_k : 0;
    if (request_.top_p < 1) return k > 0 ? top_p_of_first(k) : top_p();
    if (k == 0) return {};
    const int32_t count = collect(slot_.values, k);
    if (count < k) return {};  // fewer than k ids have a value
    const float* values = slot_.values;
    std::nth_element(slot_.ids, slot_.ids + k - 1, slot_.ids + count,
                     [values](int32_t a, int32_t b) {
                       return values[a] != values[b] ? values[a] > values[b] : a < b;
                     });
    return cut_after(k - 1);
  }

  // top-p among the first k ids, as the reference computes it.
  Cut top_p_of_first(int32_t k) {
    const int32_t count = collect_sorted(slot_.values, k);
    double total = 0;
    for (int32_t i = 0; i < count; ++i) total += weight(slot_.values[slot_.ids[i]]);
    double mass = 0;
    for (int32_t i = 0; i < count; ++i) {
      mass += weight(slot_.values[slot_.ids[i]]);
      if (mass >= static_cast<double>(request_.top_p) * total) return cut_after(i);
    }
    return cut_after(count - 1);
  }

  double mass_above(float value) const {
    return code_.sum_exp(slot_.values, vocab_, value, best_,
                         1.0 / static_cast<double>(request_.temperature));
  }

  // top-p among all ids: the total is a quick sum, the mass is that of a sorted prefix.
  Cut top_p() {
    const double total = mass_above(-INFINITY);
    for (int32_t size : {kFirstPrefix, 8 * kFirstPrefix}) {
      const int32_t count = collect_sorted(slot_.values, size);
      if (const auto cut = cut_in_sorted(count, 0.0, total)) return *cut;
    }
    return top_p_far(slot_.values[slot_.ids[0]], total);
  }

  // The cut where the mass of the sorted slot ids, added to that of all ids before them, reaches
  // top_p. If the error of the sums leaves doubt, the row is computed as the reference does.
  // Nothing if top_p is not reached.
  std::optional<Cut> cut_in_sorted(int32_t count, double mass_before, double total) {
    constexpr double kDoubt = 1e-10;
    const double wanted = static_cast<double>(request_.top_p) * total;
    if (mass_before > 0 && wanted - mass_before <= kDoubt * total) return top_p_of_first(vocab_);
    double mass = mass_before;
    for (int32_t i = 0; i < count; ++i) {
      mass += weight(slot_.values[slot_.ids[i]]);
      if (std::fabs(mass - wanted) <= kDoubt * total) return top_p_of_first(vocab_);
      if (mass > wanted) return cut_after(i);
    }
    return std::nullopt;
  }

  // The cut of a flat distribution is thousands of ids deep: bisects for a range of values that
  // holds the cut and few ids, and sorts these.
  Cut top_p_far(float greatest, double total) {
    constexpr int kMaxSteps = 40;
    const double wanted = static_cast<double>(request_.top_p) * total;
    double high = greatest;  // the mass of greater values is too little
    double low = std::max(-static_cast<double>(FLT_MAX), greatest - 800.0 * request_.temperature);
    int32_t count_high = 0, count_low = vocab_;
    for (int step = 0; step < kMaxSteps && count_low - count_high > kFirstPrefix; ++step) {
      const auto middle = static_cast<float>(0.5 * (low + high));
      const bool enough = mass_above(middle) >= wanted;
      (enough ? low : high) = middle;
      (enough ? count_low : count_high) = code_.count_above(slot_.values, vocab_, middle);
    }
    // Floats, since both are float values or the initial ends: low may be just below the least
    // value.
    const auto above = static_cast<float>(low), upto = static_cast<float>(high);
    const int32_t count = collect_between(above, upto);
    const auto cut = cut_in_sorted(count, mass_above(upto), total);
    return cut ? *cut : top_p_of_first(vocab_);
  }
  // Puts the ids with above < value <= upto, sorted, into slot ids; returns their number.
  int32_t collect_between(float above, float upto) {
    int32_t count = 0;
    for (int32_t id = 0; id < vocab_; ++id) {
      if (slot_.values[id] > above && slot_.values[id] <= upto) slot_.ids[count++] = id;
    }
    sort_ids(slot_.values, count, count);
    return count;
  }

  // Gumbel-max over the kept ids.
  int32_t draw(const Cut& cut) const {
    const double temperature = request_.temperature;
    const double least_weight =
        request_.min_p > 0 ? std::min(1.0, static_cast<double>(request_.min_p)) : 0.0;
    auto score = [&](int32_t id) {
      return static_cast<double>(slot_.values[id]) / temperature +
             gumbel_noise(request_.seed, request_.step, id);
    };
    // The greatest logit is always kept: other scores must exceed its score.
    int32_t best_id = code_.first_equal(slot_.values, vocab_, best_);
    double best_score = score(best_id);
    SampleHope hope{
        .values = slot_.values,
        .size = Slot::padded(vocab_),
        .least = cut.value,
        .best = best_,
        .inverse_t = static_cast<float>(1.0 / temperature),
        .key = {static_cast<uint32_t>(request_.seed), static_cast<uint32_t>(request_.seed >> 32)},
        .step = {static_cast<uint32_t>(request_.step), static_cast<uint32_t>(request_.step >> 32)}};
    for (int32_t id = 0;; ++id) {
      hope.gap = static_cast<float>(best_score - static_cast<double>(best_) / temperature);
      id = code_.next_hopeful(hope, id);
      if (id >= vocab_) return best_id;
      if (!cut.keeps(slot_.values[id], id) || weight(slot_.values[id]) < least_weight) continue;
      const double found = score(id);
      if (found > best_score || (found == best_score && id < best_id)) {
        best_score = found;
        best_id = id;
      }
    }
  }

  // From the raw logits. If there is +inf they are cleaned first; NaN and -inf need no copy.
  void fill_logprobs(SampleAnswer& answer) {
    const float* raw = raw_;
    float best = code_.greatest(raw, vocab_);
    if (best > FLT_MAX) {
      code_.clean(raw_, nullptr, vocab_, slot_.values);
      raw = slot_.values;
      best = FLT_MAX;
    }
    if (best == -INFINITY) {
      if (answer.token >= 0) answer.logprob = -INFINITY;
      return;
    }
    best = clean_logit(best);
    const double log_total = std::log(code_.sum_exp(raw, vocab_, -INFINITY, best, 1.0));
    auto logprob = [&](float logit) {
      if (!(logit > -INFINITY)) return -INFINITY;
      return static_cast<float>(static_cast<double>(clean_logit(logit)) - best - log_total);
    };
    const int32_t wanted = std::min({request_.num_logprobs, kMaxTopLogprobs, vocab_});
    if (wanted > 0) {
      answer.num_top = collect_sorted(raw, wanted);
      for (int32_t i = 0; i < answer.num_top; ++i) {
        answer.top_ids[i] = slot_.ids[i];
        answer.top_logprobs[i] = logprob(raw[slot_.ids[i]]);
      }
    }
    if (answer.token < 0) return;
    const float logit = raw[answer.token];
    answer.logprob = logprob(logit);
    answer.rank = code_.count_above(raw, vocab_, std::isnan(logit) ? -INFINITY : logit);
  }

  const SampleScanCode& code_;
  const SampleRequest& request_;
  const float* raw_;
  const int32_t vocab_;
  const Slot slot_;
  float best_ = 0;
};

void run(const SampleScanCode& code, const SampleParams& params) {
  Scratch scratch(params.launch.workspace);
  Slot slots[kMaxSlots];
  const int32_t num_slots = std::min(params.num_rows, kMaxSlots);
  for (int32_t i = 0; i < num_slots; ++i) slots[i] = Slot::take(scratch, params.vocab);
  for (int32_t first = 0; first < params.num_rows; first += num_slots) {
    auto task = [&](int64_t i, int) {
      const int64_t row = first + i;
      RowSampler sampler(code, params.requests[row], params.logits + row * params.vocab,
                         params.vocab, slots[i]);
      params.answers[row] = sampler.answer();
    };
    params.launch.stream->pool->run(std::min(num_slots, params.num_rows - first), task);
  }
}

}  // namespace

uint64_t sample_scan_workspace(const SampleParams& params) {
  Scratch scratch(nullptr);
  for (int32_t i = 0; i < std::min(params.num_rows, kMaxSlots); ++i)
    Slot::take(scratch, params.vocab);
  return scratch.bytes();
}

void sample_any_f32_scan_portable(const SampleParams& params) { run(kSampleScanPortable, params); }
#if defined(__x86_64__)
void sample_any_f32_scan_avx2(const SampleParams& params) { run(kSampleScanAvx2, params); }
void sample_any_f32_scan_avx512(const SampleParams& params) { run(kSampleScanAvx512, params); }
#endif

}  // namespace moxie

// sample on CUDA: a cluster of 8 blocks for each row of logits does the whole step in one launch.
// If all rows are plain (is_plain), two small kernels do it (sample_plain_cuda.cu).
//
// Each block keeps the changed logits of its slice of the vocabulary in shared memory, or in the
// workspace if a slice does not fit (sm_120). A logit and its id make one key, ordered as in
// sample.h (falling logit, rising id), so that all keys differ. Top-k and top-p are then a search
// for the key at which a prefix ends, four ways a pass; a pass is a loop over the slice and one sum
// over the cluster. Probabilities are summed as integers, 2^43 for the greatest, so that the order
// of summation cannot change a token. Rows beyond kMaxClusters are done later in the same launch.
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "kernels/cluster.cuh"
#include "kernels/sample/advance.h"
#include "kernels/sample/sample_keys.cuh"
#include "kernels/sample/sample_rows.h"

namespace moxie {
namespace {

using namespace sampling;

constexpr int kCluster = 8;  // the greatest size that every device with clusters supports
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxClusters = 32;
constexpr int kMaxGathered = 512;
static_assert(kMaxGathered <= kThreads, "a thread has one gathered key");
constexpr int kMassBits = 43;
static_assert(kIdBits + kMassBits < 64, "the mass of a whole vocabulary must not overflow");
static_assert(kWarps == 16, "the second stage of a reduction is half a warp");

struct SampleLaunch {
  const float* logits;            // [rows, vocab]
  const SampleRequest* requests;  // [rows]
  SampleAnswer* answers;          // [rows]
  float* scratch;                 // [clusters, blocks, slice]; null: slices in shared memory
  int32_t num_rows;
  int32_t vocab;
  int32_t slice;  // ids a block; the last blocks may have fewer
};

// What blocks of a cluster read from each other.
struct Shared {
  uint64_t by_warp[4][kWarps];
  uint64_t by_block[2][4];  // two sets alternate: one barrier a reduction is enough
  uint64_t top_keys[kMaxTopLogprobs];
  uint32_t num_top;
  uint32_t num_gathered;              // of the leader
  uint64_t gathered[kMaxGathered];    // of the leader
  uint64_t candidates[kMaxGathered];  // copied from the leader
  uint64_t weights[kMaxGathered];     // of candidates: 1, or mass
  uint64_t cut;
};

// The block's slice of one row of logits.
struct Slice {
  float* z;       // [end - begin] changed logits
  int32_t begin;  // ids
  int32_t end;
};

class Cluster {
 public:
  __device__ explicit Cluster(Shared& shared) : shared_(shared) {}

  // Combines values[] of all threads of the cluster; all get the result. Called by the whole
  // cluster.
  template <typename Combine, int N>
  __device__ void reduce(uint64_t (&values)[N]) {
    static_assert(N <= 4, "Shared holds four values");
    const Combine combine;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int n = 0; n < N; ++n) {
      values[n] = over_lanes<16>(values[n], combine);
      if (lane == 0) shared_.by_warp[n][warp] = values[n];
    }
    __syncthreads();
    if (warp == 0) {
      for (int n = 0; n < N; ++n) {
        const uint64_t value = over_lanes<8>(shared_.by_warp[n][lane % kWarps], combine);
        if (lane == 0) shared_.by_block[turn_][n] = value;
      }
    }
    group_.sync();
    // Zero changes neither a sum nor a maximum.
    const int block = lane % kCluster;
    for (int n = 0; n < N; ++n) {
      values[n] = over_lanes<4>(
          block < num_blocks() ? *group_.in_block(&shared_.by_block[turn_][n], block) : 0, combine);
    }
    turn_ ^= 1;
  }
  template <typename Combine>
  __device__ uint64_t reduce_one(uint64_t value) {
    uint64_t values[1] = {value};
    reduce<Combine>(values);
    return values[0];
  }

  __device__ int block_idx() const { return group_.rank(); }
  __device__ int num_blocks() const { return group_.num_blocks(); }
  __device__ Shared& leader() { return *group_.in_block(&shared_, 0); }
  __device__ void sync() { group_.sync(); }

 private:
  // Groups of 2 * kOffset lanes.
  template <int kOffset, typename Combine>
  __device__ static uint64_t over_lanes(uint64_t value, Combine combine) {
#pragma unroll
    for (int offset = kOffset; offset > 0; offset /= 2) {
      value = combine(value, __shfl_xor_sync(~0u, value, offset));
    }
    return value;
  }

  Shared& shared_;
  ClusterOfBlocks group_;
  int turn_ = 0;
};

// exp((z - best) / temperature) in units of 2^-kMassBits.
__device__ uint64_t mass_of(float z, float best, float temperature) {
  const float weight = z >= best ? 1.0f : expf((z - best) / temperature);
  return __float2ull_rn(weight * static_cast<float>(uint64_t{1} << kMassBits));
}

// The best key of the slice's logits, over the cluster; 0 if no logit is above -inf.
__device__ uint64_t best_key(Cluster& cluster, const Slice& slice) {
  uint64_t best = 0;
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    const float z = slice.z[id - slice.begin];
    if (z > -INFINITY) best = Max()(best, key_of(z, id));
  }
  return cluster.reduce_one<Max>(best);
}

// The range of keys in a search: {key >= low} holds the target, {key >= high} does not.
struct Bracket {
  uint64_t low, high;
  uint64_t num_low, num_high;  // ids of {key >= low} and {key >= high}
  uint64_t held_high;          // ids or mass of {key >= high}
};

// The end of a search, when few keys are in the bracket: they are gathered in the leader, and each
// block finds the cut among them.
template <bool kMass>
__device__ uint64_t cut_among_few(Cluster& cluster, Shared& shared, const Slice& slice,
                                  uint64_t target, const Bracket& bracket, float best,
                                  float temperature) {
  Shared& leader = cluster.leader();
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    const uint64_t key = key_of(slice.z[id - slice.begin], id);
    if (key < bracket.low || key >= bracket.high) continue;
    leader.gathered[atomicAdd(&leader.num_gathered, 1u)] = key;
  }
  cluster.sync();
  const int count = static_cast<int>(leader.num_gathered);
  const int i = static_cast<int>(threadIdx.x);
  const uint64_t mine = i < count ? leader.gathered[i] : 0;
  if (i < count) {
    shared.candidates[i] = mine;
    shared.weights[i] = kMass ? mass_of(value_of(mine), best, temperature) : 1;
  }
  if (i == 0) shared.cut = 0;
  cluster.sync();  // all have read the leader's list
  if (i < count) {
    uint64_t held = bracket.held_high;
    for (int j = 0; j < count; ++j) held += shared.candidates[j] >= mine ? shared.weights[j] : 0;
    if (held >= target) atomicMax(reinterpret_cast<unsigned long long*>(&shared.cut), mine);
  }
  __syncthreads();
  return shared.cut;
}

// A key c such that {key >= c} is the shortest prefix of the order that holds `target` ids, or with
// kMass the mass `target`. The caller guarantees that {key >= low} holds that much, and that no key
// is greater than `best`. Narrows low <= c < high, four ways a pass, until few keys are left.
template <bool kMass>
__device__ uint64_t find_cut(Cluster& cluster, Shared& shared, const Slice& slice, uint64_t target,
                             uint64_t low, uint64_t best, float temperature) {
  constexpr uint64_t kCountBits = 21, kCountMask = (uint64_t{1} << kCountBits) - 1;
  static_assert(kIdBits < kCountBits && 3 * kCountBits < 64, "three counts travel in one word");
  // A barrier of the cluster comes between this and the first gathered key.
  if (threadIdx.x == 0) shared.num_gathered = 0;
  Bracket bracket{
      .low = low, .high = best + 1, .num_low = kMaxVocab + 1, .num_high = 0, .held_high = 0};
  const float best_value = value_of(best);
  for (bool first = true;; first = false) {
    const uint64_t width = bracket.high - bracket.low;
    const uint64_t num_between = bracket.num_low - bracket.num_high;
    if (width <= 1 || num_between <= 1 || (!kMass && bracket.num_low == target)) break;
    if (num_between <= kMaxGathered) {
      return cut_among_few<kMass>(cluster, shared, slice, target, bracket, best_value, temperature);
    }
    uint64_t pivots[3] = {bracket.low + width / 4, bracket.low + width / 2,
                          bracket.low + 3 * width / 4};
    if (first) {  // keys are unevenly spread: most of the mass is near the best
      const uint64_t guess = key_of(best_value - 12 * temperature, kMaxVocab - 1);
      if (guess > bracket.low) {
        pivots[0] = guess;
        pivots[1] = key_of(best_value - 4 * temperature, kMaxVocab - 1);
        pivots[2] = key_of(best_value - temperature, kMaxVocab - 1);
      }
    }
    uint64_t sums[kMass ? 4 : 1] = {};  // counts at the pivots, then masses
    for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
      const float z = slice.z[id - slice.begin];
      const uint64_t key = key_of(z, id);
      if (key < pivots[0]) continue;
      [[maybe_unused]] uint64_t mass = 0;
      if constexpr (kMass) mass = mass_of(z, best_value, temperature);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (key < pivots[i]) continue;
        sums[0] += uint64_t{1} << (kCountBits * i);
        if constexpr (kMass) sums[1 + i] += mass;
      }
    }
    cluster.reduce<Sum>(sums);
#pragma unroll
    for (int i = 0; i < 3; ++i) {  // rising pivots hold ever less
      const uint64_t num = (sums[0] >> (kCountBits * i)) & kCountMask;
      const uint64_t held = kMass ? sums[kMass ? 1 + i : 0] : num;
      if (held >= target) {
        bracket.low = pivots[i];
        bracket.num_low = num;
      } else if (pivots[i] < bracket.high) {
        bracket.high = pivots[i];
        bracket.num_high = num;
        bracket.held_high = held;
      }
    }
  }
  return bracket.low;
}

__device__ bool allowed(const SampleRequest& request, int32_t id) {
  return request.allowed_mask == nullptr || ((request.allowed_mask[id / 32] >> (id % 32)) & 1u);
}

// A logit after bias and penalties: in double, each operation rounded as on the CPU, and rounded to
// F32 once. `count` is -1 for an id without history.
__device__ float adjusted(const SampleRequest& request, float raw, float bias, int32_t count) {
  double value = clean(raw);
  if (value == -INFINITY) return -INFINITY;
  value = __dadd_rn(value, bias);
  if (count >= 0 && request.repetition_penalty > 0) {
    const double penalty = request.repetition_penalty;
    value = value > 0 ? __ddiv_rn(value, penalty) : __dmul_rn(value, penalty);
  }
  if (count > 0) {
    value = __dadd_rn(value, -__dmul_rn(request.frequency_penalty, count));
    value = __dadd_rn(value, -static_cast<double>(request.presence_penalty));
  }
  return clean(static_cast<float>(value));
}

// The last entry for an id in the bias list, from `first` on; -1 if none. Only the last entry
// counts.
__device__ int32_t last_bias_entry(const SampleRequest& request, int32_t id, int32_t first) {
  for (int32_t i = request.num_bias - 1; i >= first; --i) {
    if (request.bias_ids[i] == id) return i;
  }
  return -1;
}

// Applies mask, bias and penalties in place. The few ids with a bias or a history are computed
// again from their raw logit, so that they are rounded once.
__device__ void change_logits(const SampleRequest& request, const float* raw, const Slice& slice) {
  if (request.allowed_mask != nullptr) {
    for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
      if (!allowed(request, id)) slice.z[id - slice.begin] = -INFINITY;
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < request.num_bias; i += kThreads) {
    const int32_t id = request.bias_ids[i];
    if (id < slice.begin || id >= slice.end || !allowed(request, id)) continue;
    if (last_bias_entry(request, id, i) != i) continue;
    slice.z[id - slice.begin] = adjusted(request, raw[id], request.bias_values[i], -1);
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < request.num_history; i += kThreads) {
    const int32_t id = request.history_ids[i];
    if (id < slice.begin || id >= slice.end || !allowed(request, id)) continue;
    const int32_t entry = last_bias_entry(request, id, 0);
    const float bias = entry < 0 ? 0.0f : request.bias_values[entry];
    slice.z[id - slice.begin] = adjusted(request, raw[id], bias, request.history_counts[i]);
  }
  __syncthreads();
}

// Top-k, top-p, min-p and the draw, for a row whose best key is `best`.
__device__ int32_t draw(Cluster& cluster, Shared& shared, const SampleRequest& request,
                        const Slice& slice, int32_t vocab, uint64_t best) {
  const float best_value = value_of(best), temperature = request.temperature;
  uint64_t cut = 0;
  if (request.top_k > 0 && request.top_k < vocab) {
    cut = find_cut<false>(cluster, shared, slice, static_cast<uint64_t>(request.top_k), 0, best,
                          1.0f);
  }
  if (request.top_p < 1) {
    uint64_t total = 0;
    for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
      const float z = slice.z[id - slice.begin];
      if (key_of(z, id) >= cut) total += mass_of(z, best_value, temperature);
    }
    total = cluster.reduce_one<Sum>(total);
    const double share = fmax(0.0, static_cast<double>(request.top_p));
    const auto target = static_cast<uint64_t>(ceil(share * static_cast<double>(total)));
    cut = find_cut<true>(cluster, shared, slice, target > 0 ? target : 1, cut, best, temperature);
  }
  float least = kHopeless;  // of (z - best) / temperature
  if (request.min_p > 0) least = fmaxf(least, logf(fminf(request.min_p, 1.0f)));
  uint64_t winner = 0;
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    const float z = slice.z[id - slice.begin];
    const float distance = (z - best_value) / temperature;
    if (distance >= least && key_of(z, id) >= cut) {
      winner = Max()(winner, key_of(distance + gumbel(request.seed, request.step, id), id));
    }
  }
  return id_of(cluster.reduce_one<Max>(winner));
}

// The lowest id that the mask allows, -1 if none.
__device__ int32_t lowest_allowed(Cluster& cluster, const SampleRequest& request,
                                  const Slice& slice) {
  uint64_t best = 0;
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    if (allowed(request, id)) best = Max()(best, key_of(0.0f, id));
  }
  best = cluster.reduce_one<Max>(best);
  return best == 0 ? -1 : id_of(best);
}

// What the log-probabilities of a row need: log(sum exp(raw)) as the maximum and the log of the
// rest.
struct RawTotal {
  float best = -INFINITY;
  double log_rest = 0;

  __device__ float logprob(float raw) const {
    if (raw == -INFINITY) return -INFINITY;
    return static_cast<float>(static_cast<double>(raw) - best - log_rest);
  }
};

// The total of the raw logits, which are still in the slice; writes the best ids to the answer.
__device__ RawTotal rank_raw(Cluster& cluster, Shared& shared, const SampleRequest& request,
                             const Slice& slice, int32_t vocab, SampleAnswer& answer) {
  RawTotal total;
  if (threadIdx.x == 0) shared.num_top = 0;
  const uint64_t best = best_key(cluster, slice);  // a cluster barrier: all threads see num_top
  if (best == 0) return total;
  total.best = value_of(best);
  uint64_t mass = 0;
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    mass += mass_of(slice.z[id - slice.begin], total.best, 1.0f);
  }
  mass = cluster.reduce_one<Sum>(mass);
  total.log_rest = log(static_cast<double>(mass) / static_cast<double>(uint64_t{1} << kMassBits));

  const int32_t wanted = min(min(request.num_logprobs, kMaxTopLogprobs), vocab);
  if (wanted <= 0) return total;
  const uint64_t cut =
      find_cut<false>(cluster, shared, slice, static_cast<uint64_t>(wanted), 0, best, 1.0f);
  Shared& leader = cluster.leader();
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    const float z = slice.z[id - slice.begin];
    const uint64_t key = key_of(z, id);
    if (z > -INFINITY && key >= cut) leader.top_keys[atomicAdd(&leader.num_top, 1u)] = key;
  }
  cluster.sync();
  if (cluster.block_idx() == 0 && threadIdx.x < shared.num_top) {
    const uint64_t key = shared.top_keys[threadIdx.x];
    int place = 0;
    for (uint32_t i = 0; i < shared.num_top; ++i) place += shared.top_keys[i] > key;
    answer.top_ids[place] = id_of(key);
    answer.top_logprobs[place] = total.logprob(value_of(key));
    if (threadIdx.x == 0) answer.num_top = static_cast<int32_t>(shared.num_top);
  }
  return total;
}

__device__ void sample_row(Cluster& cluster, Shared& shared, const SampleRequest& request,
                           const float* raw, const Slice& slice, int32_t vocab,
                           SampleAnswer& answer) {
  const bool first = cluster.block_idx() == 0 && threadIdx.x == 0;
  const bool with_logprobs = request.num_logprobs >= 0;
  if (cluster.block_idx() == 0 && threadIdx.x < kMaxTopLogprobs) {
    answer.top_ids[threadIdx.x] = 0;
    answer.top_logprobs[threadIdx.x] = 0;
    if (threadIdx.x == 0) answer.num_top = 0;
  }
#pragma unroll 8
  for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
    slice.z[id - slice.begin] = clean(raw[id]);
  }
  __syncthreads();
  RawTotal total;
  if (with_logprobs) total = rank_raw(cluster, shared, request, slice, vocab, answer);
  change_logits(request, raw, slice);

  const uint64_t best = best_key(cluster, slice);
  const bool greedy = !(request.temperature >= kGreedyTemperature);
  const int32_t token = best == 0 ? lowest_allowed(cluster, request, slice)
                        : greedy  ? id_of(best)
                                  : draw(cluster, shared, request, slice, vocab, best);
  float logprob = 0;
  uint64_t rank = 0;
  if (with_logprobs && token >= 0) {
    const float chosen = clean(raw[token]);
    logprob = total.logprob(chosen);
    for (int32_t id = slice.begin + threadIdx.x; id < slice.end; id += kThreads) {
      rank += clean(raw[id]) > chosen;
    }
    rank = cluster.reduce_one<Sum>(rank);
  }
  if (first) {
    answer.token = token;
    answer.logprob = logprob;
    answer.rank = static_cast<int32_t>(rank);
  }
  // The next row overwrites the slice and num_top: every thread of the block must have read them.
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, 2) sample_rows(const __grid_constant__ SampleLaunch p) {
  extern __shared__ float shared_slice[];
  __shared__ Shared shared;
  Cluster cluster(shared);
  Slice slice;
  slice.z =
      p.scratch == nullptr ? shared_slice : p.scratch + static_cast<int64_t>(blockIdx.x) * p.slice;
  slice.begin = min(cluster.block_idx() * p.slice, p.vocab);
  slice.end = min(slice.begin + p.slice, p.vocab);
  const int32_t num_blocks = cluster.num_blocks();
  const auto num_clusters = static_cast<int32_t>(gridDim.x) / num_blocks;
  for (int32_t row = static_cast<int32_t>(blockIdx.x) / num_blocks; row < p.num_rows;
       row += num_clusters) {
    sample_row(cluster, shared, p.requests[row], p.logits + static_cast<int64_t>(row) * p.vocab,
               slice, p.vocab, p.answers[row]);
  }
  cluster.sync();  // no block may end while another reads its shared memory
}

int32_t slice_of(int32_t vocab, int32_t num_blocks) {
  return round_up(ceil_div(vocab, num_blocks), 4);
}
int32_t num_clusters(int32_t num_rows) { return num_rows < kMaxClusters ? num_rows : kMaxClusters; }

}  // namespace

const char* sample_f32_gumbel_cuda_refuses(const SampleParams& params) {
  if (const char* why = refuses_part(params)) return why;
  return params.vocab > kMaxVocab ? "the vocabulary is larger than 1048576" : nullptr;
}

uint64_t sample_f32_gumbel_cuda_workspace(const SampleParams& params) {
  const uint64_t slices = uint64_t{4} * kCluster *
                          static_cast<uint64_t>(num_clusters(params.num_rows)) *
                          static_cast<uint64_t>(slice_of(params.vocab, kCluster));
  return std::max(slices, sample_plain_workspace(params));
}

void sample_f32_gumbel_cuda(const SampleParams& params) {
  if (params.num_rows == 0) return;
  cudaStream_t stream = launch_stream(params.launch.stream);
  if (params.all_plain) return sample_plain("sample_f32_gumbel_cuda", params);
  const int32_t num_blocks = code_has_clusters() ? kCluster : 1;  // of a row
  const int32_t slice = slice_of(params.vocab, num_blocks);
  const uint64_t slice_bytes = uint64_t{4} * static_cast<uint64_t>(slice);
  const bool in_shared = slice_bytes + sizeof(Shared) <= shared_memory().of_block;
  const SampleLaunch launch{
      .logits = params.logits,
      .requests = params.requests,
      .answers = params.answers,
      .scratch = in_shared ? nullptr : reinterpret_cast<float*>(params.launch.workspace),
      .num_rows = params.num_rows,
      .vocab = params.vocab,
      .slice = slice};
  launch_kernel("sample_f32_gumbel_cuda", sample_rows, launch,
                {.grid = dim3(static_cast<unsigned>(num_blocks * num_clusters(params.num_rows))),
                 .num_threads = kThreads,
                 .shared_bytes = in_shared ? slice_bytes : 0,
                 .cluster = num_blocks},
                stream);
  if (params.advance != nullptr) advance_cuda(params);
}

}  // namespace moxie

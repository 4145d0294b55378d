// Speeds that were measured on GPUs, from the records under docs/: what predictions for other GPUs
// are made from. A test compares them with the records.
#pragma once

#include <span>
#include <string>

#include "core/base.h"

namespace moxie {

/// Which rows ran.
enum class GpuRows : uint8_t {
  kHopper,    ///< with wgmma and clusters
  kPortable,  ///< mma.sync; qkv, out, route and attend with clusters (`--arch-limit sm_80`)
  kSm80,      ///< code for sm_80: no clusters, no programmatic launch
};
const char* rows_name(GpuRows rows);

/// A prompt of n_prompt tokens, or (0) one token of each of `streams` streams; behind `depth`
/// tokens of each.
struct SpeedTest {
  int32_t n_prompt = 0, depth = 0, streams = 1;
};
/// "pp2048", "tg128@d8192", "tg32@d1024@b64".
SpeedTest parse_test(const std::string& name);

/// Tests of one card in one run, with its limits.
struct SpeedSource {
  const char* file;  ///< under docs/
  const char* gpu;   ///< GpuCard::name
  GpuRows rows;
  double read_gb_s, product_gflops;  ///< of the instruction that the rows for many tokens use
};

/// Models are `synthetic:gpt-oss-120b` and `synthetic:gpt-oss-20b`, with a BF16 cache.
struct MeasuredSpeed {
  const SpeedSource* source;
  const char* bench;  ///< in the record; empty: its only one
  const char* test;
  int32_t billions;  ///< 120, 20
  bool all_mxfp4;    ///< or checkpoint precision
  double tok_s;
};

std::span<const MeasuredSpeed> measured_speeds();

}  // namespace moxie

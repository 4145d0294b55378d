// What the tables of operations between ranks (reduce, gather) have in common.
#pragma once

#include "core/rank_link.h"
#include "kernels/gemv/cuda_times.h"

namespace moxie {

/// Why a row for ranks on CPUs, in one process or several, cannot run these params; null if it can.
template <typename P>
const char* refuses_cpu_link(const P& p) {
  return p.kind == LinkKind::kThreads || p.kind == LinkKind::kSockets ? nullptr
                                                                      : "ranks are not on CPUs";
}
/// The same of a row for ranks on GPUs.
template <typename P>
const char* refuses_peer_link(const P& p) {
  return p.kind == LinkKind::kPeers ? nullptr : "ranks are not GPUs of one process";
}
/// The same of a row for ranks on GPUs of several processes.
template <typename P>
const char* refuses_nccl_link(const P& p) {
  return p.kind == LinkKind::kNccl ? nullptr : "ranks are not processes with a GPU each";
}
/// Of a row that reads the others' arrays where they are, bound by memory.
template <typename P>
double link_read_us(const P& p, const DeviceRates& rates) {
  constexpr double kMeetingUs = 1.0;
  return kMeetingUs + 1e-3 * Op<P>::work(p).bytes / rates.read_gb_s;
}
template <typename P>
uint64_t no_link_workspace(const P&) {
  return 0;
}

/// A row for ranks on GPUs (kernels/rank_mail.cuh).
template <typename P>
constexpr Row<P> peers_row(const char* name, const char* supports, const char* limits,
                           const char* (*refuses)(const P&),
                           double (*predict_us)(const P&, const DeviceRates&),
                           void (*run)(const P&), const char* ran_on = kRanAnyCuda) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .needs = kCudaAny,
          .supports = supports,
          .limits = limits,
          .ran_on = ran_on,
          .layout = PackedLayout::kFragment16x32,
          .forms = {.x = kAnyX, .l1 = kAnyL1, .reduce = kAnyReduce},
          .is_batch_invariant = true,
          .refuses = refuses,
          .predict_us = predict_us,
          .workspace = no_link_workspace<P>,
          .run = run};
}

/// A row for ranks on GPUs of several processes (kernels/rank_gather.cuh).
template <typename P>
constexpr Row<P> nccl_row(const char* name, const char* supports, const char* limits,
                          const char* (*refuses)(const P&),
                          double (*predict_us)(const P&, const DeviceRates&),
                          void (*run)(const P&)) {
  Row<P> row = peers_row<P>(name, supports, limits, refuses, predict_us, run);
  row.ran_on = kRanOnH100;
  return row;
}
/// Such an exchange of so many bytes of a rank, in the order of several hosts' links, of which none
/// was measured. Between two H100s over NVLink: some 10 us and 120 GB/s.
inline double nccl_us(double bytes) {
  constexpr double kFixedUs = 20, kGbS = 20;
  return kFixedUs + 1e-3 * bytes / kGbS;
}

}  // namespace moxie
